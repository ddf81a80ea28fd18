// The list of runs: search, filters, sorting and live updates; leads to one run or a comparison.
import { link, withChanges } from "./address.js";
import * as api from "./api.js";
import { filterRows, parseSearch } from "./conditions.js";
import { el, refill, say } from "./dom.js";
import { fieldsOf, sortRows, USUAL } from "./fields.js";
import { Chips, ColumnChooser, FilterForm } from "./filters.js";
import { badge, Progress } from "./state.js";

export class RunsView {
  constructor(app) {
    Object.assign(this, { app, rows: new Map(), lines: new Map(), picked: new Set(), fields: fieldsOf([]), columnsShown: "" });
    const change = (changes) => app.change(changes, { replace: true });
    this.search = el("input", { type: "search", id: "search", "aria-label": "Search runs", placeholder: "search, or lr<0.01",
      autocomplete: "off", spellcheck: "false", oninput: () => change({ q: this.search.value }) });
    this.filters = new FilterForm((condition) => change({ where: [...this.query.where, condition] }));
    this.columns = new ColumnChooser((names) => change({ col: names.join() === USUAL.join() ? [] : names }));
    this.chips = new Chips((place) => change({ where: this.query.where.filter((_, each) => each !== place) }));
    this.compare = el("button", { type: "button", class: "primary", onclick: () => this.compareThem() });
    this.count = el("span", { class: "muted", role: "status" });
    this.sort = el("select", { "aria-label": "Sort by", onchange: () => change({ sort: this.sort.value }) });
    this.head = el("tr");
    this.body = el("tbody");
    this.empty = el("p", { class: "empty", hidden: true });
    this.element = el("div", { class: "runs" },
      el("div", { class: "title" }, el("h1", {}, "Runs"), this.count),
      el("div", { class: "bar" }, this.search, this.filters.element, this.columns.element,
        el("label", { class: "sort" }, "sort by", this.sort), this.compare),
      this.chips.element,
      el("div", { class: "scroll" }, el("table", { class: "list" }, el("caption", { class: "unseen" }, "All runs"), el("thead", {}, this.head), this.body)),
      this.empty);
  }

  title = () => "Runs";
  ids = () => [];

  update(address) {
    const { params } = address;
    const columns = params.getAll("col");
    const sort = params.get("sort") ?? "-began";
    this.picked = new Set(params.getAll("pick"));
    this.query = {
      search: params.get("q") ?? "", where: params.getAll("where"), columns: columns.length ? columns : USUAL,
      sort: sort.replace(/^-/, ""), down: sort.startsWith("-"),
    };
    if (this.search.value !== this.query.search) this.search.value = this.query.search;
    this.draw();
  }

  async refresh(signal) {
    const answer = await api.runs(signal);
    this.app.setFolder(answer);
    this.rows = new Map(answer.runs.map((row) => [row.id, row]));
    this.loaded = true;
    this.draw();
  }

  receive(kind, data) {
    if (kind !== "runs") return;
    for (const row of data.runs ?? []) this.rows.set(row.id, row);
    for (const id of data.gone ?? []) this.rows.delete(id);
    this.draw();
  }

  draw() {
    const rows = [...this.rows.values()];
    this.fields = fieldsOf(rows);
    const { sort, down, columns } = this.query;
    const field = this.fields.get(sort) ?? this.fields.get("began");
    const parsed = parseSearch(this.query, this.fields);
    const shown = sortRows(filterRows(rows, parsed), field, down);
    this.drawHead(field);
    for (const [id, line] of this.lines) if (!this.rows.has(id)) { line.element.remove(); this.lines.delete(id); }
    refill(this.body, shown.map((row) => this.line(row, columns)));
    say(this.count, shown.length === rows.length ? `${rows.length}` : `${shown.length} of ${rows.length}`);
    this.empty.hidden = shown.length > 0 || !this.loaded;
    say(this.empty, this.nothing(rows, parsed));
    this.filters.offer(this.fields, rows);
    this.columns.offer(this.fields, columns);
    this.chips.show(this.query.where, this.fields);
    this.drawPicked();
  }

  nothing(rows, { malformed: [wrong] }) {
    if (!rows.length) return `There are no runs in ${this.app.folder} yet. Train with run="${this.app.folder}/first", and it appears here.`;
    return wrong ? `${wrong} is malformed: write a name, one sign and a value, such as lr<0.01.` : "No run matches.";
  }

  drawHead(sortedBy) {
    const shown = JSON.stringify([this.query.columns.map((name) => this.fields.has(name)), this.query, this.fields.size]);
    if (shown === this.columnsShown) return;
    this.columnsShown = shown;
    const fields = ["name", ...this.query.columns].map((name) => this.fields.get(name)).filter(Boolean);
    refill(this.head, el("th", { scope: "col", class: "pick" }, el("span", { class: "unseen" }, "Compare")), fields.map((field) => {
      const current = field === sortedBy || field.name === sortedBy.name;
      const down = current ? !this.query.down : field.numeric;
      const order = current ? (this.query.down ? "descending" : "ascending") : null;
      const button = el("button", { type: "button", onclick: () => this.sortBy(field.name, down) }, field.title,
        el("span", { class: "arrow", "aria-hidden": "true" }, current ? (this.query.down ? "↓" : "↑") : ""));
      return el("th", { scope: "col", class: field.numeric ? "number" : "", "aria-sort": order }, button);
    }));
    refill(this.sort, fields.flatMap((field) => [
      el("option", { value: field.name }, `${field.title} ↑`), el("option", { value: `-${field.name}` }, `${field.title} ↓`)]));
    this.sort.value = `${this.query.down ? "-" : ""}${sortedBy.name}`;
  }

  sortBy(name, down) {
    this.app.change({ sort: `${down ? "-" : ""}${name}` }, { replace: true });
    [...this.head.querySelectorAll("button")].find((button) => button.closest("th").hasAttribute("aria-sort"))?.focus();
  }

  /** A row of the table; kept between drawings, so that focus, checkbox and pointer stay. */
  line(row, columns) {
    let line = this.lines.get(row.id);
    if (!line) {
      const pick = el("input", { type: "checkbox", "aria-label": `Compare ${row.name}`, onchange: () => this.pick(row.id, pick.checked) });
      const open = el("a", { href: link("run", row.id), "data-stop": true }, row.id);
      const problem = el("small", { class: "problem", hidden: true });
      const fixed = [el("td", { class: "pick" }, pick), el("th", { scope: "row" }, open, problem)];
      line = { pick, problem, fixed, element: el("tr", { "data-id": row.id }, fixed), progress: new Progress(`Progress of ${row.name}`), drawn: "" };
      this.lines.set(row.id, line);
    }
    line.pick.checked = this.picked.has(row.id);
    const drawn = JSON.stringify([columns, row]);
    if (drawn !== line.drawn) {
      line.drawn = drawn;
      line.problem.hidden = !row.problem;
      say(line.problem, row.problem ? `⚠ ${row.problem}` : "");
      refill(line.element, line.fixed, columns.map((name) => this.fields.get(name)).filter(Boolean).map((field) => this.cell(row, field, line)));
    }
    return line.element;
  }

  cell(row, field, line) {
    const text = field.show(row);
    const attributes = { class: `${field.numeric ? "number" : ""} of-${field.kind === "run" ? field.name : field.kind}`, "data-label": field.title };
    if (field.name === "state") return el("td", attributes, badge(row.state, row.reason));
    if (field.name === "best" && row.best) {
      const [number, ...name] = text.split(" ");
      return el("td", attributes, el("span", {}, number, el("small", {}, name.join(" "))));
    }
    if (field.name !== "progress") return el("td", attributes, text);
    line.progress.show(row.state === "finished" ? null : row.fraction, text); // a full bar adds nothing
    return el("td", attributes, line.progress.element);
  }

  /** The URL holds the chosen runs, for the way back from a comparison. */
  pick(id, picked) {
    const others = [...this.picked].filter((each) => each !== id);
    this.app.change({ pick: picked ? [...others, id] : others }, { replace: true });
  }

  drawPicked() {
    for (const [id, line] of this.lines) line.element.classList.toggle("picked", this.picked.has(id));
    const ids = this.pickedIds();
    this.compare.hidden = ids.length < 2;
    say(this.compare, `Compare ${ids.length}`);
  }

  /** The chosen runs that exist. */
  pickedIds() {
    return [...this.picked].filter((id) => this.rows.has(id));
  }

  compareThem() {
    const ids = this.pickedIds();
    if (ids.length > 1) this.app.go(link("compare", "", withChanges(new URLSearchParams(), { id: ids })));
  }

  key(key) {
    const id = document.activeElement?.closest?.("tr")?.dataset.id;
    if (key === "c") this.compareThem();
    else if (key === "x" && id !== undefined) this.pick(id, !this.picked.has(id));
    else return false;
    return true;
  }

  leave() {}
}
