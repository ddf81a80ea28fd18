// Several runs: their curves in shared charts, best or last values, differing settings, and parallel axes of all of it.
import { link } from "./address.js";
import * as api from "./api.js";
import { Looks } from "./colours.js";
import { el, refill, say } from "./dom.js";
import { fieldsOf } from "./fields.js";
import { Overlay } from "./overlay.js";
import { Parallel } from "./parallel.js";
import { badge } from "./state.js";
import { differences, results } from "./tables.js";

const MOST_RUNS = 100; // drawn at once; further ones are in the tables and on the parallel axes
const PAUSE = 2000; // milliseconds between two readings of the tables while runs are active

export class CompareView {
  constructor(app, { params }) {
    const ids = [...new Set(params.getAll("id"))];
    Object.assign(this, { app, all: ids, looks: new Looks().of(ids), answer: null, timer: 0, kept: null, shown: "", offered: "" });
    this.heading = el("h1", {}, `${ids.length} runs`);
    this.legend = el("ul", { class: "runs-legend", "aria-label": "Runs" });
    this.note = el("p", { class: "muted", role: "status" });
    this.kind = el("select", { "aria-label": "Which values", onchange: () => app.change({ value: this.kind.value }, { replace: true }) },
      [["", "best values"], ["last", "last values"]].map(([value, text]) => el("option", { value }, text)));
    this.groups = el("select", { "aria-label": "Group by", onchange: () => app.change({ group: this.groups.value }, { replace: true }) });
    this.overlay = new Overlay((changes, how) => app.change(changes, how), { group: "compare", search: "q" });
    this.parallel = new Parallel(this.looks, (kept) => this.brush(kept));
    this.tables = el("div");
    this.element = el("div", { class: "compare" }, el("div", { class: "title" }, this.heading, el("span", { class: "actions" }, this.kind, this.groups)), this.legend,
      el("section", { class: "detail" }, el("h2", {}, "Settings and results"), this.parallel.element),
      el("section", { class: "detail" }, el("h2", {}, "Curves"), this.overlay.plots.bar.element, this.note, this.overlay.plots.grid), this.tables);
    this.repaint = () => this.draw(true);
    window.addEventListener("themechange", this.repaint);
  }

  title = () => `${this.all.length} runs`;
  ids = () => [];

  update({ params }) {
    this.overlay.set(params);
    this.values = params.get("value") === "last" ? "last" : "best";
    this.kind.value = this.values === "last" ? "last" : "";
    this.group = params.get("group") ?? "";
    this.draw();
  }

  async refresh(signal) {
    if (!this.all.length) throw new Error("Nothing to compare: choose two or more runs in the list.");
    this.answer = await api.compare(this.all, signal);
    this.draw();
    this.overlay.renew();
  }

  receive(kind, { runs = [], gone = [] }) {
    const changed = new Set([...runs.map(({ id }) => id), ...gone]);
    if (kind !== "runs" || !this.answer || !this.all.some((id) => changed.has(id)) || this.timer) return;
    this.timer = setTimeout(async () => {
      this.timer = 0;
      this.answer = await api.compare(this.all).catch(() => this.answer);
      this.draw();
      this.overlay.renew();
    }, PAUSE);
  }

  brush(kept) {
    this.kept = kept;
    this.drawLegend(true);
    this.drawPlots();
  }

  draw(reset = false) {
    if (!this.answer) return;
    const { rows, config } = this.answer;
    const different = api.mapOf(config.different);
    const directions = new Map(rows.flatMap(({ directed }) => Object.entries(directed)));
    const found = valuesOf(rows, this.values);
    this.drawLegend(reset);
    this.parallel.show(rows, different, new Map([...found].filter(([name]) => directions.has(name))), reset);
    this.offerGroups([...different.keys()]);
    this.drawPlots();
    refill(this.tables, results(this.values === "best" ? "Best values" : "Last values", rows, found, directions, this.looks),
      differences(rows, different, api.mapOf(config.same), this.looks));
  }

  offerGroups(names) {
    const offered = JSON.stringify([names, this.group]);
    if (offered === this.offered) return;
    this.offered = offered;
    refill(this.groups, el("option", { value: "" }, "no groups"), names.map((name) => el("option", { value: `config.${name}` }, `group by ${name}`)));
    this.groups.value = this.group;
    this.groups.hidden = !names.length;
  }

  drawLegend(reset) {
    const shown = JSON.stringify([this.answer.rows.map(({ id, title, state }) => [id, title, state]), this.kept && [...this.kept]]);
    if (shown === this.shown && !reset) return;
    this.shown = shown;
    refill(this.legend, this.answer.rows.map(({ id, title, state, reason }) => {
      const swatch = el("i", { class: "swatch" });
      swatch.style.borderTopColor = this.looks.get(id).colour();
      swatch.style.borderTopStyle = this.looks.get(id).dash.length ? "dashed" : "solid";
      return el("li", { class: this.kept && !this.kept.has(id) ? "faded" : "" }, swatch, el("a", { href: link("run", id) }, title || id), badge(state, reason),
        el("button", { type: "button", class: "quiet", "aria-label": `Remove ${id}`, onclick: () => this.leaveOut(id) }, "×"));
    }));
  }

  leaveOut(id) {
    this.app.change({ id: this.all.filter((each) => each !== id) });
  }

  /** The curves of the selected runs, or of all, up to a limit. */
  drawPlots() {
    const wanted = this.answer.rows.filter(({ id }) => !this.kept || this.kept.has(id));
    const left = wanted.length - MOST_RUNS;
    say(this.note, left > 0 ? `The first ${MOST_RUNS} are drawn, ${left} more are not: drag along an axis above to choose.` : "");
    this.overlay.show(wanted.slice(0, MOST_RUNS), this.group ? fieldsOf(wanted).get(this.group) : undefined);
  }

  key(key) {
    if (key === "Escape" && this.kept) {
      this.parallel.clear();
      return true;
    }
    return this.overlay.plots.key(key);
  }

  leave() {
    clearTimeout(this.timer);
    window.removeEventListener("themechange", this.repaint);
    this.overlay.plots.destroy();
    this.parallel.destroy();
  }
}

/** The best values of runs, or the last: name → id → value. A number without a direction has no best one, so its last is shown. */
function valuesOf(rows, kind) {
  const found = new Map();
  for (const { id, bests, last } of rows) {
    for (const [name, value] of Object.entries(kind === "best" ? { ...last, ...bests } : last)) {
      if (!found.has(name)) found.set(name, {});
      found.get(name)[id] = value;
    }
  }
  return found;
}
