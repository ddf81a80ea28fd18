// Several runs: their curves in shared charts, config differences, last values, and parallel axes of all of it.
import { link } from "./address.js";
import * as api from "./api.js";
import { ofRuns } from "./colours.js";
import { el, refill, say } from "./dom.js";
import { Parallel } from "./parallel.js";
import { Plots } from "./plots.js";
import { MOST } from "./settings.js";
import { badge } from "./state.js";
import { differences, finals } from "./tables.js";

const MOST_RUNS = 12; // drawn at once; further ones are in the tables and on the parallel axes
const PAUSE = 2000; // milliseconds between two readings of the tables while runs are active

export class CompareView {
  constructor(app, { params }) {
    const ids = [...new Set(params.getAll("id"))];
    Object.assign(this, { app, all: ids, looks: ofRuns(ids), answer: null, directions: new Map(), timer: 0, kept: null, shown: "" });
    this.heading = el("h1", {}, `${ids.length} runs`);
    this.legend = el("ul", { class: "runs-legend", "aria-label": "Runs" });
    this.note = el("p", { class: "muted", role: "status" });
    this.search = el("input", { type: "search", "aria-label": "Search metrics", placeholder: "search metrics", autocomplete: "off",
      spellcheck: "false", oninput: () => app.change({ q: this.search.value }, { replace: true }) });
    this.plots = new Plots((changes, how) => app.change(changes, how), { group: "compare", more: [this.search] });
    this.parallel = new Parallel(this.looks, (kept) => this.brush(kept));
    this.tables = el("div");
    this.element = el("div", { class: "compare" }, el("div", { class: "title" }, this.heading), this.legend,
      el("section", { class: "detail" }, el("h2", {}, "Config and results"), this.parallel.element),
      el("section", { class: "detail" }, el("h2", {}, "Curves"), this.plots.bar.element, this.note, this.plots.grid), this.tables);
    this.repaint = () => this.draw(true);
    window.addEventListener("themechange", this.repaint);
  }

  title = () => `${this.all.length} runs`;
  ids = () => this.all.slice(0, MOST_RUNS);

  update({ params }) {
    this.params = params;
    this.query = (params.get("q") ?? "").toLowerCase();
    if (this.search.value.toLowerCase() !== this.query) this.search.value = this.query;
    this.plots.set(params);
    if (this.answer) this.drawPlots();
  }

  async refresh(signal) {
    if (!this.all.length) throw new Error("Nothing to compare: choose two or more runs in the list.");
    this.answer = await api.compare(this.all, signal);
    await this.learn(signal);
    this.plots.panels.forEach((panel) => panel.renew(true));
    this.draw();
  }

  /** The metrics and their directions: those of the first run, then those of runs with others. */
  async learn(signal) {
    for (const { id, last } of this.answer.rows) {
      if (this.directions.size && Object.keys(last).every((name) => this.directions.has(name))) continue;
      const { names, directions } = await api.run(id, signal);
      for (const name of names) this.directions.set(name, this.directions.get(name) ?? directions[name]);
    }
  }

  receive(kind, news) {
    if (kind !== "run" || !this.answer || news.reset) return;
    for (const panel of this.plots.panels.values()) if (news.updated.includes(panel.title)) panel.renew();
    if (!this.timer) {
      this.timer = setTimeout(async () => {
        this.timer = 0;
        this.answer = await api.compare(this.all).catch(() => this.answer);
        this.draw();
      }, PAUSE);
    }
  }

  brush(kept) {
    this.kept = kept;
    this.drawLegend(true);
    this.drawPlots();
  }

  /** The runs whose curves are drawn: the selected ones, or all, up to a limit. */
  drawnIds() {
    return this.all.filter((id) => !this.kept || this.kept.has(id)).slice(0, MOST_RUNS);
  }

  draw(reset = false) {
    if (!this.answer) return;
    const { rows, config, final } = this.answer;
    const [different, ended] = [api.mapOf(config.different), api.mapOf(final)];
    this.drawLegend(reset);
    this.parallel.show(rows, different, new Map([...ended].filter(([name]) => this.directions.get(name))), reset);
    this.drawPlots();
    refill(this.tables, finals(rows, ended, this.directions, this.looks), differences(rows, different, api.mapOf(config.same), this.looks));
  }

  drawLegend(reset) {
    const shown = JSON.stringify([this.answer.rows.map(({ id, state }) => [id, state]), this.kept && [...this.kept]]);
    if (shown === this.shown && !reset) return;
    this.shown = shown;
    refill(this.legend, this.answer.rows.map(({ id, state, reason }) => {
      const swatch = el("i", { class: "swatch" });
      swatch.style.borderTopColor = this.looks.get(id).colour();
      swatch.style.borderTopStyle = this.looks.get(id).dash.length ? "dashed" : "solid";
      return el("li", { class: this.kept && !this.kept.has(id) ? "faded" : "" }, swatch, el("a", { href: link("run", id) }, id), badge(state, reason),
        el("button", { type: "button", class: "quiet", "aria-label": `Remove ${id}`, onclick: () => this.leaveOut(id) }, "×"));
    }));
  }

  leaveOut(id) {
    this.app.change({ id: this.all.filter((each) => each !== id) });
  }

  drawPlots() {
    const ids = this.drawnIds();
    const left = (this.kept?.size ?? this.all.length) - ids.length;
    say(this.note, left > 0 ? `The first ${ids.length} are drawn, ${left} more are not: drag along an axis above to choose.` : "");
    const names = [...this.directions.keys()].filter((name) => name.toLowerCase().includes(this.query));
    const lines = ids.map((id) => ({ key: id, label: id, ...this.looks.get(id) }));
    this.plots.show(names.sort(validFirst).map((name) => ({
      key: JSON.stringify([name, ids]), title: name, lines, load: (settings, signal) => this.load(ids, name, settings, signal),
    })));
  }

  async load(ids, name, { by, from, to }, signal) {
    const found = await Promise.all(ids.map(async (id) => {
      const start = by === "time" ? (this.answer.rows.find((row) => row.id === id)?.began ?? 0) : 0;
      const there = (x) => (x === null ? null : x + start);
      const most = Math.floor(MOST / Math.max(1, Math.sqrt(ids.length))); // many lines need less of each
      const line = (await api.points(id, [name], { by, from: there(from), to: there(to), most }, signal)).get(name);
      return [id, { x: start ? line.x.map((x) => x - start) : line.x, y: line.y }];
    }));
    return new Map(found);
  }

  key(key) {
    if (key === "Escape" && this.kept) {
      this.parallel.clear();
      return true;
    }
    return this.plots.key(key);
  }

  leave() {
    clearTimeout(this.timer);
    window.removeEventListener("themechange", this.repaint);
    this.plots.destroy();
    this.parallel.destroy();
  }
}

/** Validation metrics first; those that belong to no data set last. */
const validFirst = (a, b) => rank(a) - rank(b);
const rank = (name) => (name.startsWith("valid/") ? 0 : name.includes("/") ? 1 : 2);
