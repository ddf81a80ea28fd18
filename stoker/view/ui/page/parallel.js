// Parallel coordinates: an axis for each field in which runs differ, a line for each run; dragging along an axis selects runs.
import { el, refill, svg } from "./dom.js";
import { number, value } from "./text.js";

const HEIGHT = 240;
const [TOP, BOTTOM, SIDE] = [44, 28, 56]; // CSS pixels around the axes
const MOST_AXES = 12;
const NARROWEST = 84; // CSS pixels between two axes; if there is less space, fewer axes are drawn

export class Parallel {
  /** `choose(ids)` receives the runs inside all selected ranges, or null without any. */
  constructor(looks, choose) {
    Object.assign(this, { looks, choose, axes: [], brushes: new Map(), shown: "", rows: [], dragged: null });
    this.drawing = svg("svg", { height: HEIGHT, role: "img" });
    this.clearButton = el("button", { type: "button", onclick: () => this.clear() }, "Show all runs");
    this.hint = el("p", { class: "muted" }, "Drag along an axis to choose runs.");
    this.element = el("div", { class: "parallel" }, this.drawing, el("div", { class: "under" }, this.hint, this.clearButton));
    this.drawing.addEventListener("pointerdown", (event) => this.press(event));
    this.drawing.addEventListener("pointermove", (event) => this.drag(event));
    this.drawing.addEventListener("pointerup", () => this.release());
    this.drawing.addEventListener("pointercancel", () => this.release());
    this.sized = new ResizeObserver(() => this.draw());
    this.sized.observe(this.element);
  }

  show(rows, different, results, reset) {
    const shown = JSON.stringify([rows.map(({ id }) => id), [...different], [...results]]);
    if (shown === this.shown && !reset) return;
    Object.assign(this, { shown, rows });
    const named = [...[...different].map(([name, byRun]) => ["config", name, byRun]), ...[...results].sort(validFirst).map(([name, byRun]) => ["result", name, byRun])];
    this.axes = named.map(([kind, name, byRun]) => axisOf(`${kind}.${name}`, name, byRun)).filter(Boolean);
    this.element.hidden = !this.axes.length;
    this.draw();
  }

  /** As many axes as fit, config and results in turn. */
  fitting(width) {
    const room = Math.min(MOST_AXES, Math.max(2, 1 + Math.floor((width - 2 * SIDE) / NARROWEST)));
    const [config, result] = ["config.", "result."].map((kind) => this.axes.filter(({ key }) => key.startsWith(kind)));
    const results = Math.min(result.length, Math.max(Math.ceil(room / 2), room - config.length));
    return [...config.slice(0, room - results), ...result.slice(0, results)];
  }

  draw() {
    const width = this.element.clientWidth;
    if (!width || !this.axes.length) return;
    this.seen = this.fitting(width);
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("aria-label", `Parallel axes of ${this.rows.length} runs: ${this.seen.map(({ title }) => title).join(", ")}`);
    this.seen.forEach((axis, place) => {
      axis.x = SIDE + (place * (width - 2 * SIDE)) / Math.max(1, this.seen.length - 1);
    });
    const kept = this.kept();
    refill(this.drawing, this.rows.map(({ id }) => this.line(id, !kept || kept.has(id))), this.seen.map((axis) => this.axis(axis)));
    this.clearButton.hidden = !this.brushes.size;
  }

  line(id, kept) {
    const points = this.seen.map((axis) => [axis.x, axis.at(id)]);
    let path = "";
    points.forEach(([x, at], place) => {
      if (at === null) return;
      path += `${place > 0 && points[place - 1][1] !== null ? "L" : "M"}${x.toFixed(1)} ${down(at).toFixed(1)}`;
    });
    const { colour, dash } = this.looks.get(id);
    return svg("path", { class: kept ? "line" : "line faded", d: path, stroke: colour(), "stroke-dasharray": dash.join(" ") || null },
      svg("title", {}, id));
  }

  axis(axis) {
    const brush = this.brushes.get(axis.key);
    const title = svg("text", { x: axis.x, y: 16, class: "name" }, shortened(axis.title));
    title.append(svg("title", {}, axis.title));
    return svg("g", { class: "axis", "data-axis": axis.title },
      svg("line", { x1: axis.x, x2: axis.x, y1: TOP, y2: HEIGHT - BOTTOM }), title,
      axis.ends.map(([at, text]) => svg("text", { x: axis.x + 5, y: down(at) + (at === 1 ? -5 : at === 0 ? 14 : 4), class: at === 1 || at === 0 ? "end" : "mid" }, shortened(text))),
      brush && svg("rect", { class: "brush", x: axis.x - 7, width: 14, y: down(brush[1]), height: Math.max(2, down(brush[0]) - down(brush[1])) }));
  }

  /** The runs inside all selected ranges; null without any. */
  kept() {
    if (!this.brushes.size) return null;
    const inside = ({ id }) => [...this.brushes].every(([key, [low, high]]) => {
      const at = this.axes.find((axis) => axis.key === key)?.at(id) ?? null;
      return at !== null && at >= low && at <= high;
    });
    return new Set(this.rows.filter(inside).map(({ id }) => id));
  }

  press(event) {
    const { left } = this.drawing.getBoundingClientRect();
    const x = event.clientX - left;
    const axis = this.seen.find((each) => Math.abs(each.x - x) < 16);
    if (!axis) return;
    event.preventDefault();
    this.drawing.setPointerCapture(event.pointerId);
    this.dragged = { axis, start: this.up(event), before: this.brushes.has(axis.key) };
  }

  drag(event) {
    if (!this.dragged) return;
    const [a, b] = [this.dragged.start, this.up(event)];
    this.brushes.set(this.dragged.axis.key, [Math.min(a, b), Math.max(a, b)]);
    this.draw();
  }

  /** A click without a drag clears the axis. */
  release() {
    if (!this.dragged) return;
    const { key } = this.dragged.axis;
    const [low, high] = this.brushes.get(key) ?? [0, 0];
    if (high - low < 0.01) this.brushes.delete(key);
    this.dragged = null;
    this.draw();
    this.choose(this.kept());
  }

  clear() {
    this.brushes.clear();
    this.draw();
    this.choose(null);
  }

  up(event) {
    const y = event.clientY - this.drawing.getBoundingClientRect().top;
    return Math.min(1, Math.max(0, (HEIGHT - BOTTOM - y) / (HEIGHT - BOTTOM - TOP)));
  }

  destroy() {
    this.sized.disconnect();
  }
}

const down = (at) => HEIGHT - BOTTOM - at * (HEIGHT - BOTTOM - TOP);
const shortened = (text) => (text.length > 14 ? `${text.slice(0, 6)}…${text.slice(-7)}` : text);
const validFirst = ([a], [b]) => Number(b.startsWith("valid/")) - Number(a.startsWith("valid/"));

/** An axis with `at(id)` from 0 (below) to 1: numbers by value (logarithmic for wide ranges), others as a list. */
function axisOf(key, title, byRun) {
  const given = new Map(Object.entries(byRun).filter(([, each]) => each !== null));
  const values = [...given.values()];
  if (new Set(values.map(value)).size < 2) return null;
  const numeric = values.every((each) => typeof each === "number");
  return { key, title, ...(numeric ? byNumber(given, values) : byWord(given, values)) };
}

function byNumber(given, values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const scale = low > 0 && high / low >= 50 ? Math.log : (x) => x;
  const at = (x) => (scale(x) - scale(low)) / (scale(high) - scale(low));
  return {
    at: (id) => (given.has(id) ? at(given.get(id)) : null),
    ends: [[0, number(low)], [1, number(high)]],
  };
}

function byWord(given, values) {
  const words = [...new Set(values.map(value))].sort();
  const at = (word) => words.indexOf(word) / (words.length - 1);
  const seen = words.length <= 6 ? words : [words[0], words.at(-1)];
  return { at: (id) => (given.has(id) ? at(value(given.get(id))) : null), ends: seen.map((word) => [at(word), word]) };
}
