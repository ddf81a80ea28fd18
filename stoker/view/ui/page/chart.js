// One uPlot chart of several lines: joined on x, smoothed, on a linear or a logarithmic scale.
import uPlot from "./uplot/uPlot.esm.js";
import { smooth } from "./smooth.js";
import { duration, number } from "./text.js";

export const HEIGHT = 220; // CSS pixels
const LEAST_DRAG = 6; // CSS pixels; less is a click with an unsteady hand

/** Each line's points, and their average if smoothing is on: [x, raw, average, raw, average, …]. */
export function table(lines, { log, smoothing }) {
  const tables = lines.map(({ x, y }) => {
    const raw = log ? y.map((value) => (value > 0 ? value : null)) : y;
    return smoothing > 0 ? [x, raw, smooth(x, raw, smoothing)] : [x, raw];
  });
  return tables.length ? uPlot.join(tables) : [[]];
}

export const hasPositive = (lines) => lines.some(({ y }) => y.some((value) => value > 0));

/** The options of a chart; `on` has `zoom(from, to)`, `reset()` and `hover(x, values)`. */
export function options(lines, settings, { width, place, key, on }) {
  const style = getComputedStyle(place);
  const axis = axisLike(style);
  const each = settings.smoothing > 0 ? 2 : 1; // series to a line
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    padding: [12, 22, 0, 0],
    scales: { x: { time: false, range: xRange(settings) }, y: { distr: settings.log ? 3 : 1 } },
    axes: [
      { ...axis, size: 30, values: (_, splits) => splits.map(settings.by === "time" ? shortTime : tick) },
      { ...axis, size: wideEnough, values: (_, splits) => splits.map(tick) },
    ],
    series: [{}, ...lines.flatMap((line) => seriesOf(line, settings))],
    cursor: cursor(key, on, each),
    hooks: {
      setSelect: [(u) => u.select.width >= LEAST_DRAG && selectRange(u, on)],
      setCursor: [(u) => on.hover(...hoveredPoint(u, each))],
    },
  };
}

function seriesOf(line, { smoothing }) {
  const drawn = { stroke: line.colour(), dash: line.dash, width: 1.75, points: { size: 4, fill: line.colour() } };
  if (!(smoothing > 0)) return [drawn];
  return [{ ...drawn, width: 1, alpha: 0.4, points: { show: false } }, { ...drawn, points: { show: false } }];
}

function axisLike(style) {
  const grid = { stroke: style.borderTopColor, width: 1 };
  return { stroke: style.color, font: `12px ${style.fontFamily}`, grid, ticks: { show: false }, gap: 6 };
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

function cursor(key, on, each) {
  return {
    y: false,
    drag: { x: true, y: false, setScale: false, dist: LEAST_DRAG },
    points: { size: (_, series) => (series % each === 0 ? 7 : 0) }, // the faint line behind an average has none
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

function hoveredPoint(u, each) {
  const at = u.cursor.idx;
  if (at === null || at === undefined || u.cursor.left < 0) return [null, []];
  const values = [];
  for (let series = each; series < u.data.length; series += each) values.push(u.data[series][u.cursor.idxs[series] ?? at] ?? null);
  return [u.data[0][at], values];
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
