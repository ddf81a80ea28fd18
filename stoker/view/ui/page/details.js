// The tabs of a run with text and tables, one function each.
import { copyable, el } from "./dom.js";
import { bytes, count, number as measured, shell, value, when } from "./text.js";

export function config({ config: given, plan, facts }) {
  return el("div", { class: "columns" },
    section("Config", isEmpty(given) ? empty("The run has no config.") : pairs(flat(given))),
    section("Plan", Array.isArray(plan) && plan.length ? el("ol", { class: "plan" }, plan.map((line) => el("li", {}, value(line)))) : empty("The run has no plan.")),
    section("Environment", pairs(ran(facts))));
}

/** The facts about the process, with its command quoted for a shell. */
function ran(facts) {
  const formats = { started: when, command: (words) => (Array.isArray(words) ? shell(words) : words) };
  return flat(facts).filter(([name, each]) => name !== "plan" && each !== null)
    .map(([name, each]) => [name, Object.hasOwn(formats, name) ? formats[name](each) : each]);
}

/** What to do if no system metric was recorded. */
export const meters = () => ["The run recorded no system metrics. A run with a name does by default; others can be added to the learner:",
  el("code", {}, "metrics=[metrics.CPUUse(), metrics.MemoryUse(), metrics.GPUUse(), metrics.GPUMemory()]"),
  "There are also metrics.CPUTemperature(), metrics.GPUPower() and metrics.GPUTemperature(). They need",
  el("code", {}, "pip install 'stoker[monitor]'")];

export function log({ log: lines, messages }) {
  const shown = messages.filter(({ kind }) => kind !== "checkpoint"); // those have a tab
  return [
    section("log.txt", lines.length ? el("pre", { tabindex: "0", "aria-label": "The last lines of log.txt" }, lines.join("\n")) : empty("The log is empty.")),
    section("Notes and warnings", shown.length ? table(["When", "Epoch", "Update", "Kind", "Text"], shown.map((each) => el("tr", { "data-kind": each.kind },
      el("td", {}, when(each.time)), number(each.epoch), number(each.update), el("td", {}, each.kind), el("td", { class: "text" }, each.text)))) : empty("None.")),
  ];
}

/** The checkpoints, newest first; the star marks the best one by the run's monitor. */
export function checkpoints({ checkpoints: found, row }) {
  const star = el("span", { class: "mark", role: "img", "aria-label": "best" }, "★");
  const monitor = row.best?.name ?? "Value";
  const rows = found.toReversed().map((each) => el("tr", { class: each.best ? "best" : "" }, el("th", { scope: "row" }, each.best && star, each.name), number(each.epoch), number(each.update),
    el("td", { class: "number" }, measured(each.value)), el("td", { class: "number" }, bytes(each.bytes)), el("td", {}, when(each.time)), el("td", { class: "text" }, each.reason),
    el("td", {}, copyable(each.path, `the path of ${each.name}`))));
  return section("Checkpoints", rows.length ? table(["Name", "Epoch", "Update", monitor, "Size", "When", "Reason", "Path"], rows) : empty("None yet."));
}

export function warnings(found) {
  const distinct = [...new Map(found.map((each) => [each.text, each])).values()].slice(-20);
  const title = found.length === 1 ? "1 warning" : `${found.length} warnings`;
  return el("details", { class: "warnings", open: found.length <= 3 }, el("summary", {}, title),
    el("ul", {}, distinct.map(({ text, epoch }) => el("li", {}, text, epoch ? el("small", {}, `epoch ${epoch}`) : null))));
}

const TEXTS = new Set(["Name", "When", "Kind", "Text", "Reason", "Path"]); // other columns have their values on the right
const section = (title, ...content) => el("section", { class: "detail" }, el("h2", {}, title), content);
const empty = (text) => el("p", { class: "empty" }, text);
const isEmpty = (given) => given === null || given === undefined || (typeof given === "object" && !Object.keys(given).length);
const number = (given) => el("td", { class: "number" }, count(given));

function table(names, rows) {
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col", class: TEXTS.has(name) ? "" : "number" }, name)))), el("tbody", {}, rows)));
}

function pairs(entries) {
  return el("table", { class: "pairs" }, el("tbody", {}, entries.map(([name, each]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value(each))))));
}

/** A nested mapping as [dotted name, value]. */
function flat(given, path = "") {
  if (given === null || typeof given !== "object" || Array.isArray(given) || !Object.keys(given).length) return path ? [[path, given]] : [];
  return Object.entries(given).flatMap(([name, each]) => flat(each, path ? `${path}.${name}` : name));
}
