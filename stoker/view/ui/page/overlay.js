// Curves of several runs, a chart for each metric: a line for each run, or for each group of runs its mean and range.
import * as api from "./api.js";
import { Looks } from "./colours.js";
import { el } from "./dom.js";
import { groupRows, meanAndRange } from "./groups.js";
import { Plots } from "./plots.js";
import { MOST } from "./settings.js";

const MOST_TOTAL = 100_000; // points in one chart
const MOST_EACH = 500; // points of a line: as many as the index of a run has, so that no record is read

export class Overlay {
  /** `change(changes, how)` changes the URL, in which `search` is the name of the search for metrics. */
  constructor(change, { group, search }) {
    Object.assign(this, { search, looks: new Looks(), query: "" });
    this.input = el("input", { type: "search", "aria-label": "Search metrics", placeholder: "search metrics", autocomplete: "off",
      spellcheck: "false", oninput: () => change({ [search]: this.input.value }, { replace: true }) });
    this.plots = new Plots(change, { group, more: [this.input] });
  }

  set(params) {
    const typed = params.get(this.search) ?? "";
    if (this.input.value !== typed) this.input.value = typed;
    this.query = typed.toLowerCase();
    this.plots.set(params);
  }

  /** Draws these rows; with a field, the groups that share its value. Gives the lines by key. */
  show(rows, field) {
    const groups = groupRows(rows, field);
    const looks = this.looks.of(groups.map(({ key }) => key));
    const lines = groups.map(({ key, label, rows: members }) => ({ key, label, members: members.map(({ id }) => id), ...looks.get(key) }));
    this.plots.show(metricsOf(rows, this.query).map((name) => ({
      title: name, lines, exact: name.split("/")[0] === "lr",
      load: (settings, signal, most, progress) => load(lines, name, settings, { signal, most, progress }),
    })));
    return looks;
  }

  renew() {
    for (const panel of this.plots.panels.values()) panel.renew();
  }
}

/** Reads the runs' curves until all are read to their end, and shows what there is in between. */
async function load(lines, name, { by, from, to }, { signal, most, progress }) {
  const ids = lines.flatMap(({ members }) => members);
  const enough = most > MOST ? most : Math.min(MOST_EACH, most / Math.sqrt(ids.length / 4)); // many lines need less of each
  const each = Math.max(50, Math.floor(Math.min(enough, MOST_TOTAL / ids.length)));
  const found = new Map();
  let missing = ids;
  for (;;) {
    const { series, behind } = await api.overlay(missing, name, { by, from, to, most: each }, signal);
    for (const [id, curve] of series) found.set(id, curve);
    const curves = (members) => members.map((id) => found.get(id)).filter(Boolean);
    const result = new Map(lines.map(({ key, members }) => [key, meanAndRange(curves(members))]));
    if (!behind.length) return result;
    progress?.(result);
    missing = behind;
  }
}

/** The metrics of rows that a search finds, those of validation first; system metrics only if they are searched for. */
function metricsOf(rows, query) {
  const names = new Set(rows.flatMap(({ last, early }) => [...Object.keys(last), ...early]));
  const wanted = (name) => name.toLowerCase().includes(query) && (query !== "" || !name.startsWith("system/"));
  return [...names].filter(wanted).sort((a, b) => rank(a) - rank(b));
}

/** Validation metrics first; those that belong to no data set last. */
export const rank = (name) => (name.startsWith("valid/") ? 0 : name.startsWith("train/") ? 1 : name.includes("/") ? 2 : 3);
