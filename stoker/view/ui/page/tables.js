// The tables of a comparison: a row for each name, a column for each run.
import { el } from "./dom.js";
import { number, value } from "./text.js";

/** The values of runs, name → id → value, with the best of each row marked if its direction is known. */
export function results(title, rows, values, directions, looks) {
  const lines = [...values].map(([name, byRun]) => {
    const best = bestOf(Object.values(byRun), directions.get(name));
    const cells = rows.map(({ id }) => {
      const given = Object.hasOwn(byRun, id) ? byRun[id] : undefined;
      const marked = best !== null && given === best;
      return el("td", { class: marked ? "number best" : "number" }, marked && el("span", { class: "mark", role: "img", "aria-label": "best" }, "★"), number(given));
    });
    return el("tr", {}, el("th", { scope: "row" }, name), cells);
  });
  return section(title, lines.length ? table(rows, lines, looks) : el("p", { class: "empty" }, "No values yet."));
}

/** Settings that differ; common ones are folded. */
export function differences(rows, different, same, looks) {
  const lines = [...different].map(([name, byRun]) =>
    el("tr", {}, el("th", { scope: "row" }, name), rows.map(({ id }) => el("td", {}, Object.hasOwn(byRun, id) ? value(byRun[id]) : "–"))));
  const common = el("details", {}, el("summary", {}, same.size === 1 ? "1 setting is the same" : `${same.size} settings are the same`),
    el("table", { class: "pairs" }, el("tbody", {}, [...same].map(([name, each]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value(each)))))));
  return section("Different settings", lines.length ? table(rows, lines, looks) : el("p", { class: "empty" }, "The settings are equal."), same.size > 0 && common);
}

function bestOf(values, direction) {
  const known = values.filter((each) => typeof each === "number");
  if (!known.length || !direction || known.every((each) => each === known[0])) return null;
  return known.reduce((a, b) => (direction === "min" ? Math.min(a, b) : Math.max(a, b)));
}

const section = (title, ...content) => el("section", { class: "detail" }, el("h2", {}, title), content);

function table(rows, lines, looks) {
  const heads = rows.map(({ id, title }) => {
    const swatch = el("i", { class: "swatch" });
    swatch.style.borderTopColor = looks.get(id).colour();
    return el("th", { scope: "col" }, swatch, title || id);
  });
  return el("div", { class: "scroll" }, el("table", { class: "across" }, el("thead", {}, el("tr", {}, el("td"), heads)), el("tbody", {}, lines)));
}
