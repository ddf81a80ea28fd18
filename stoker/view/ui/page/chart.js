// One uPlot chart of several lines: joined on x, smoothed, with bands, on a linear or a logarithmic scale.
import uPlot from "./uplot/uPlot.esm.js";
import { smooth } from "./smooth.js";
import { duration, number } from "./text.js";

export const HEIGHT = 240; // CSS pixels, with the title of the x axis
const LEAST_DRAG = 6; // CSS pixels; less is a click with an unsteady hand
const BAND = "33"; // the opacity of a band, two hexadecimal digits

/** The series of a line: a mean over runs has a band, a smoothed line has its points behind it. */
function rolesOf(line, { smoothing }) {
  if (line.low) return ["low", "high", "main"];
  return smoothing > 0 ? ["faint", "main"] : ["main"];
}

/** What uPlot draws: [x, series, series, …], joined on x. */
export function table(lines, settings) {
  const { log, smoothing } = settings;
  const positive = (y) => (log ? y.map((value) => (value > 0 ? value : null)) : y);
  const tables = lines.map((line) => {
    const values = { main: positive(line.y), faint: positive(line.y), low: positive(line.low ?? []), high: positive(line.high ?? []) };
    const drawn = (role) => (smoothing > 0 && role !== "faint" ? smooth(line.x, values[role], smoothing) : values[role]);
    return [line.x, ...rolesOf(line, settings).map(drawn)];
  });
  return tables.length ? uPlot.join(tables) : [[]];
}

export const hasPositive = (lines) => lines.some(({ y }) => y.some((value) => value > 0));

/** The options of a chart; `on` has `zoom(from, to)`, `reset()` and `hover(x, values)`. */
export function options(lines, settings, { width, height, place, key, on, labels }) {
  const style = getComputedStyle(place);
  const axis = axisLike(style);
  const roles = ["x", ...lines.flatMap((line) => rolesOf(line, settings))];
  return {
    width,
    height,
    legend: { show: false },
    padding: [12, 22, 0, 0],
    scales: { x: { time: false, range: xRange(settings) }, y: { distr: settings.log ? 3 : 1, ...yRange(settings) } },
    axes: [
      { ...axis, size: 28, label: labels.x, values: (_, splits) => splits.map(settings.by === "time" ? shortTime : tick) },
      { ...axis, size: wideEnough, label: labels.y, values: (_, splits) => splits.map(tick) },
    ],
    series: [{}, ...lines.flatMap((line) => rolesOf(line, settings).map((role) => seriesOf(line, role, settings)))],
    bands: roles.flatMap((role, series) => (role === "high" ? [{ series: [series, series - 1], fill: `${lineOf(lines, settings, series).colour()}${BAND}` }] : [])),
    cursor: cursor(key, on, roles),
    hooks: {
      setSelect: [(u) => u.select.width >= LEAST_DRAG && selectRange(u, on)],
      setCursor: [(u) => on.hover(...hoveredPoint(u, roles))],
    },
  };
}

/** The line that a series belongs to. */
const lineOf = (lines, settings, series) => lines.flatMap((line) => rolesOf(line, settings).map(() => line))[series - 1];

function seriesOf(line, role, { smoothing }) {
  const drawn = { stroke: line.colour(), dash: line.dash, width: 1.75, points: { size: 4, fill: line.colour() } };
  if (role === "low" || role === "high") return { ...drawn, width: 0, points: { show: false } };
  if (role === "faint") return { ...drawn, width: 1, alpha: 0.4, points: { show: false } };
  return smoothing > 0 ? { ...drawn, points: { show: false } } : drawn;
}

function axisLike(style) {
  const grid = { stroke: style.borderTopColor, width: 1 };
  const font = `12px ${style.fontFamily}`;
  return { stroke: style.color, font, labelFont: font, labelSize: 18, labelGap: 0, grid, ticks: { show: false }, gap: 6 };
}

/** As wide as the longest label. */
function wideEnough(u, values, axis, cycle) {
  if (cycle > 1) return u.axes[axis]._size;
  const longest = Math.max(0, ...(values ?? []).map((text) => text?.length ?? 0));
  return Math.max(40, 14 + longest * 7);
}

function xRange({ from, to }) {
  return (_, low, high) => {
    const [first, last] = [from ?? low, to ?? high];
    return first < last ? [first, last] : [first - 1, first + 1];
  };
}

/** A chart's own range, either end of which may be open; without one uPlot chooses. */
function yRange({ y, log }) {
  if (!y) return {};
  return { range: (_, low, high) => {
    const [first, last] = [y[0] ?? low, y[1] ?? high];
    return log ? uPlot.rangeLog(Math.max(first, 1e-300), Math.max(last, 1e-300), 10, false) : first < last ? [first, last] : [first - 1, first + 1];
  } };
}

function cursor(key, on, roles) {
  return {
    y: false,
    drag: { x: true, y: false, setScale: false, dist: LEAST_DRAG },
    points: { size: (_, series) => (roles[series] === "main" ? 7 : 0) },
    dataIdx: nearest,
    bind: { dblclick: () => () => on.reset() },
    // Mouse moves are synchronised with the other charts, presses are not: one drag zooms once.
    sync: { key, setSeries: false, scales: ["x", null], filters: { pub: (kind) => kind === "mousemove" || kind === "mouseleave" } },
  };
}

/** The index of the nearest value of a series; joined lines have gaps where only another line has a point. */
function nearest(u, series, at) {
  const values = u.data[series];
  if (series === 0 || typeof values[at] === "number") return at;
  for (let away = 1; away < values.length; away++) {
    if (typeof values[at - away] === "number") return at - away;
    if (typeof values[at + away] === "number") return at + away;
  }
  return at;
}

function hoveredPoint(u, roles) {
  const at = u.cursor.idx;
  if (at === null || at === undefined || u.cursor.left < 0) return [null, []];
  const main = roles.flatMap((role, series) => (role === "main" ? [series] : []));
  return [u.data[0][at], main.map((series) => u.data[series][u.cursor.idxs[series] ?? at] ?? null)];
}

function selectRange(u, on) {
  const { left, width } = u.select;
  const [from, to] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  on.zoom(from, to);
}

const tick = (value) => (value === null ? "" : number(value).replaceAll(",", " "));
const shortTime = (value) => (value === null ? "" : duration(value).replace(/ 00 (s|min)$/, "").replace(/\.0 s$/, " s"));

export { uPlot };
