// Runs in groups that share a setting: the rows of each group, and the mean and range of their curves.
import { value } from "./text.js";

/** Groups rows by a field: [{ key, label, rows }], in the order of the rows; without a field, each row is a group. */
export function groupRows(rows, field) {
  if (!field) return rows.map((row) => ({ key: row.id, label: row.title || row.id, rows: [row] }));
  const groups = new Map();
  for (const row of rows) {
    const given = field.read(row);
    const key = given === undefined || given === null || given === "" ? "–" : value(given);
    if (!groups.has(key)) groups.set(key, { key, label: `${field.title} = ${key}`, rows: [] });
    groups.get(key).rows.push(row);
  }
  return [...groups.values()];
}

/** The mean, lowest and highest of numbers, or null without any. */
export function spread(values) {
  const known = values.filter((each) => typeof each === "number");
  if (!known.length) return null;
  return { mean: known.reduce((a, b) => a + b, 0) / known.length, low: Math.min(...known), high: Math.max(...known) };
}

/** The mean and the range of curves at every x of any of them; between its points a curve is a straight line. */
export function meanAndRange(curves) {
  const drawn = curves.filter(({ x }) => x.length);
  if (drawn.length < 2) return drawn[0] ?? { x: [], y: [] };
  const x = [...new Set(drawn.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const columns = drawn.map((curve) => interpolate(curve, x));
  const found = x.map((_, place) => spread(columns.map((column) => column[place])));
  const part = (name) => found.map((each) => each?.[name] ?? null);
  return { x, y: part("mean"), low: part("low"), high: part("high") };
}

/** The values of a curve at ascending places; null outside of it and in its gaps. */
function interpolate({ x, y }, places) {
  let after = 0;
  return places.map((place) => {
    while (after < x.length && x[after] < place) after++;
    if (after === x.length || (after === 0 && x[0] > place)) return null;
    if (x[after] === place) return y[after];
    const [a, b] = [y[after - 1], y[after]];
    return a === null || b === null ? null : a + ((b - a) * (place - x[after - 1])) / (x[after] - x[after - 1]);
  });
}
