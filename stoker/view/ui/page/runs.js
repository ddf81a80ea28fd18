// The list of runs with their curves beside it: search, filters, groups, sorting and live updates.
import { link, withChanges } from "./address.js";
import { archive, remove, tag } from "./annotate.js";
import * as api from "./api.js";
import { filterRows, parseSearch } from "./conditions.js";
import { el, refill, say } from "./dom.js";
import { fieldsOf, sortRows, USUAL } from "./fields.js";
import { Chips, ColumnChooser, FilterForm } from "./filters.js";
import { groupRows, spread } from "./groups.js";
import { Lines } from "./lines.js";
import { Overlay } from "./overlay.js";
import { number } from "./text.js";

const DRAWN = 12; // runs beside the list, if none are chosen
const MOST_DRAWN = 100; // of the chosen ones, or in groups
const WIDE = "(min-width: 1100px)"; // where charts are shown unless they are switched off

export class RunsView {
  constructor(app) {
    Object.assign(this, { app, rows: new Map(), picked: new Set(), fields: fieldsOf([]), columnsShown: "", groupsOffered: "", open: new Set() });
    const change = (changes, how = { replace: true }) => app.change(changes, how);
    this.search = el("input", { type: "search", id: "search", "aria-label": "Search runs", placeholder: "search, or lr<0.01",
      autocomplete: "off", spellcheck: "false", oninput: () => change({ q: this.search.value }) });
    this.filters = new FilterForm((condition) => change({ where: [...this.query.where, condition] }));
    this.columns = new ColumnChooser((names) => change({ col: names.join() === USUAL.join() ? [] : names }));
    this.chips = new Chips((place) => change({ where: this.query.where.filter((_, each) => each !== place) }));
    this.groups = el("select", { "aria-label": "Group by", onchange: () => change({ group: this.groups.value }) });
    this.archived = el("button", { type: "button", class: "toggle", onclick: () => change({ archived: !this.query.archived }) });
    this.chartsButton = el("button", { type: "button", class: "toggle", onclick: () => change({ charts: this.query.charts ? "0" : "1" }) }, "Charts");
    this.actions = new Actions(this);
    this.count = el("span", { class: "muted", role: "status" });
    this.sort = el("select", { "aria-label": "Sort by", onchange: () => change({ sort: this.sort.value }) });
    this.head = el("tr");
    this.body = el("tbody");
    this.lines = new Lines((id, picked) => this.pick(id, picked));
    this.empty = el("p", { class: "empty", hidden: true });
    this.overlay = new Overlay(change, { group: "runs", search: "metric" });
    this.note = el("p", { class: "muted", role: "status" });
    this.charts = el("section", { class: "beside", "aria-label": "Curves" }, this.overlay.plots.bar.element, this.note, this.overlay.plots.grid);
    this.element = el("div", { class: "runs" },
      el("div", { class: "title" }, el("h1", {}, "Runs"), this.count),
      el("div", { class: "bar" }, this.search, this.filters.element, this.columns.element, this.groups,
        el("label", { class: "sort" }, "sort by", this.sort), this.archived, this.chartsButton, this.actions.element),
      this.chips.element,
      el("div", { class: "halves" },
        el("div", { class: "scroll listing" }, el("table", { class: "list" }, el("caption", { class: "unseen" }, "All runs"), el("thead", {}, this.head), this.body), this.empty),
        this.charts));
    this.wide = matchMedia(WIDE);
    this.resized = () => this.app.route();
    this.wide.addEventListener("change", this.resized);
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
      sort: sort.replace(/^-/, ""), down: sort.startsWith("-"), group: params.get("group") ?? "", archived: params.get("archived") === "1",
      charts: params.has("charts") ? params.get("charts") === "1" : this.wide.matches,
    };
    if (this.search.value !== this.query.search) this.search.value = this.query.search;
    this.overlay.set(params);
    this.draw();
  }

  async refresh(signal) {
    const answer = await api.runs(signal);
    this.app.setFolder(answer);
    this.rows = new Map(answer.runs.map((row) => [row.id, row]));
    this.loaded = true;
    this.draw();
    this.overlay.renew();
  }

  receive(kind, data) {
    if (kind !== "runs") return;
    const known = this.rows;
    this.rows = new Map(known);
    for (const row of data.runs ?? []) this.rows.set(row.id, row);
    for (const id of data.gone ?? []) this.rows.delete(id);
    this.draw();
    if (data.runs?.some(({ id, update }) => this.drawn?.has(id) && known.get(id)?.update !== update)) this.overlay.renew();
  }

  draw() {
    const all = [...this.rows.values()];
    const rows = all.filter((row) => this.query.archived || !row.archived);
    this.fields = fieldsOf(rows);
    const { sort, down, columns } = this.query;
    const field = this.fields.get(sort) ?? this.fields.get("began");
    const parsed = parseSearch(this.query, this.fields);
    const shown = sortRows(filterRows(rows, parsed), field, down);
    const grouping = this.query.group ? this.fields.get(this.query.group) : undefined;
    this.drawHead(field);
    this.drawCharts(shown, grouping);
    const fields = columns.map((name) => this.fields.get(name)).filter(Boolean);
    this.lines.keep(this.rows);
    const line = (row) => this.lines.line(row, fields, { picked: this.picked.has(row.id), look: this.drawn.get(row.id) });
    const elements = grouping ? groupRows(shown, grouping).flatMap((group) => [this.groupLine(group, fields), ...(this.open.has(group.key) ? group.rows.map(line) : [])]) : shown.map(line);
    const { children } = this.body;
    if (elements.length !== children.length || elements.some((each, place) => each !== children[place])) refill(this.body, elements);
    say(this.count, shown.length === rows.length ? `${rows.length}` : `${shown.length} of ${rows.length}`);
    this.empty.hidden = shown.length > 0 || !this.loaded;
    say(this.empty, this.nothing(rows, parsed));
    this.filters.offer(this.fields, rows);
    this.columns.offer(this.fields, columns);
    this.chips.show(this.query.where, this.fields);
    this.offerGroups(rows);
    const archived = all.filter((row) => row.archived).length;
    this.archived.hidden = !archived;
    this.archived.setAttribute("aria-pressed", String(this.query.archived));
    say(this.archived, `${archived} archived`);
    this.actions.show(this.pickedRows(), this.app.control);
  }

  /** The curves of the chosen runs, or of the first ones; with groups, of all that fit. */
  drawCharts(shown, grouping) {
    this.charts.hidden = !this.query.charts;
    this.element.classList.toggle("with-charts", this.query.charts);
    this.chartsButton.setAttribute("aria-pressed", String(this.query.charts));
    this.drawn = new Map();
    if (!this.query.charts) {
      this.overlay.plots.show([]);
      return;
    }
    const chosen = shown.filter(({ id }) => this.picked.has(id));
    const wanted = chosen.length ? chosen : shown.filter(({ state }) => state !== "unread");
    const rows = wanted.slice(0, chosen.length || grouping ? MOST_DRAWN : DRAWN);
    const looks = this.overlay.show(rows, grouping);
    for (const row of rows) this.drawn.set(row.id, looks.get(grouping ? groupRows([row], grouping)[0].key : row.id));
    say(this.note, wanted.length > rows.length ? `The first ${rows.length} of ${wanted.length} runs are drawn: choose others in the list.` : "");
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

  /** What the runs can be grouped by: settings that differ, and a few others. */
  offerGroups(rows) {
    const differing = [...this.fields.values()].filter((field) => (field.kind === "config" || ["state", "model", "device", "tags"].includes(field.name))
      && (field.name === this.query.group || new Set(rows.map((row) => JSON.stringify(field.read(row)))).size > 1));
    const offered = JSON.stringify([differing.map(({ name }) => name), this.query.group]);
    if (offered === this.groupsOffered) return;
    this.groupsOffered = offered;
    refill(this.groups, el("option", { value: "" }, "no groups"), differing.map(({ name, title }) => el("option", { value: name }, `group by ${title}`)));
    this.groups.value = this.query.group;
  }

  /** The row of a group: the mean and the range of each number. */
  groupLine({ key, label, rows }, fields) {
    const open = this.open.has(key);
    const toggle = () => {
      this.open[open ? "delete" : "add"](key);
      this.draw();
    };
    const swatch = el("i", { class: "swatch" });
    const look = this.drawn.get(rows[0].id);
    if (look) swatch.style.borderTopColor = look.colour();
    const cells = fields.map((field) => {
      const found = field.numeric && field.name !== "began" ? spread(rows.map(field.read)) : null;
      const text = found && found.low !== found.high ? [number(found.mean), el("small", {}, `${number(found.low)} – ${number(found.high)}`)]
        : new Set(rows.map(field.show)).size === 1 ? field.show(rows[0]) : "";
      return el("td", { class: field.numeric ? "number" : "", "data-label": field.title }, text);
    });
    return el("tr", { class: "group" }, el("td", { class: "pick" },
      el("button", { type: "button", class: "quiet", "aria-expanded": String(open), "aria-label": `Runs with ${label}`, onclick: toggle }, open ? "▾" : "▸")),
    el("th", { scope: "row" }, look && swatch, label, el("small", {}, rows.length === 1 ? "1 run" : `${rows.length} runs`)), cells);
  }

  /** The URL holds the chosen runs, for the way back from a comparison. */
  pick(id, picked) {
    const others = [...this.picked].filter((each) => each !== id);
    this.app.change({ pick: picked ? [...others, id] : others }, { replace: true });
  }

  /** The chosen runs that exist. */
  pickedRows() {
    return [...this.picked].map((id) => this.rows.get(id)).filter(Boolean);
  }

  compareThem() {
    const id = this.pickedRows().map((row) => row.id);
    if (id.length > 1) this.app.go(link("compare", "", withChanges(new URLSearchParams(), { id, group: this.query.group })));
  }

  key(key) {
    const id = document.activeElement?.closest?.("tr")?.dataset.id;
    if (key === "c") this.compareThem();
    else if (key === "x" && id !== undefined) this.pick(id, !this.picked.has(id));
    else return this.query.charts && this.overlay.plots.key(key);
    return true;
  }

  leave() {
    this.wide.removeEventListener("change", this.resized);
    this.overlay.plots.destroy();
  }
}

/** What can be done with the chosen runs. */
class Actions {
  constructor(view) {
    this.rows = [];
    const done = () => view.app.change({ pick: [] }, { replace: true });
    const button = (text, act, attributes = {}) => el("button", { type: "button", ...attributes, onclick: () => act(this.rows) }, text);
    this.compare = button("", () => view.compareThem(), { class: "primary" });
    this.archive = button("", (rows) => archive(rows, rows.some((row) => !row.archived), done));
    this.changes = el("span", { class: "actions" }, button("Tag", (rows) => tag(rows, done)), this.archive, button("Delete", (rows) => remove(rows, done)));
    this.element = el("span", { class: "actions chosen" }, this.changes, this.compare);
  }

  show(rows, allowed) {
    this.rows = rows;
    this.element.hidden = !rows.length;
    this.changes.hidden = !allowed;
    this.compare.hidden = rows.length < 2;
    say(this.compare, `Compare ${rows.length}`);
    say(this.archive, rows.some((row) => !row.archived) ? "Archive" : "Unarchive");
  }
}
