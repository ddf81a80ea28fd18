// The fields of a row in the list: its columns, and what it can be sorted and filtered by.
import { count, duration, number, of, value, when } from "./text.js";

export const USUAL = ["state", "best", "progress", "seconds", "began"];

const BUILT_IN = [
  { name: "name", title: "Run", read: (row) => row.title || row.name },
  { name: "state", title: "State", read: (row) => row.state },
  { name: "progress", title: "Progress", numeric: true, read: (row) => row.fraction ?? row.epoch, show: (row) => of(row.epoch, row.epochs) },
  { name: "best", title: "Best", numeric: true, read: (row) => row.best?.value, show: best },
  { name: "seconds", title: "Time", numeric: true, read: (row) => row.seconds, show: (row) => duration(row.seconds) },
  { name: "began", title: "Began", numeric: true, read: (row) => row.began, show: (row) => when(row.began) },
  { name: "epoch", title: "Epoch", numeric: true, read: (row) => row.epoch, show: (row) => of(row.epoch, row.epochs) },
  { name: "update", title: "Update", numeric: true, read: (row) => row.update, show: (row) => count(row.update) },
  { name: "model", title: "Model", read: (row) => row.model },
  { name: "device", title: "Device", read: (row) => row.device },
  { name: "tags", title: "Tags", list: true, read: (row) => (row.tags?.length ? row.tags.join(", ") : undefined) },
  { name: "note", title: "Note", read: (row) => row.note || undefined },
];

/** All fields of some rows by name: the built-in ones, then settings as `config.…`, then metrics, best and last; names are unique. */
export function fieldsOf(rows) {
  const fields = new Map(BUILT_IN.map((field) => [field.name, { kind: "run", show: (row) => value(field.read(row) ?? undefined), ...field }]));
  for (const row of rows) {
    for (const key of Object.keys(row.config ?? {})) add(fields, configField(key));
    for (const key of Object.keys(row.bests ?? {})) add(fields, metricField("best", "best", key, (each) => each.bests));
    for (const key of Object.keys(row.last ?? {})) add(fields, metricField("number", "last", key, (each) => each.last));
  }
  return fields;
}

const add = (fields, field) => fields.has(field.name) || fields.set(field.name, field);
const own = (object, key) => (object && Object.hasOwn(object, key) ? object[key] : undefined);

function configField(key) {
  const read = (row) => own(row.config, key);
  return { kind: "config", name: `config.${key}`, title: key, read, show: (row) => value(read(row)) };
}

function metricField(kind, word, key, numbers) {
  const read = (row) => own(numbers(row), key);
  return { kind, name: `${word}.${key}`, title: kind === "best" ? `best ${key}` : key, numeric: true, read, show: (row) => number(read(row)) };
}

function best(row) {
  return row.best ? `${number(row.best.value)} ${row.best.name}` : "–";
}

/** Orders rows by a field; rows without a value come last in either direction, numbers before words. */
export function sortRows(rows, field, down) {
  const sign = down ? -1 : 1;
  const rank = (given) => (given === undefined || given === null || Number.isNaN(given) ? 2 : typeof given === "number" ? 0 : 1);
  const keyed = rows.map((row) => [field.read(row), row]);
  keyed.sort(([a, first], [b, second]) => {
    if (rank(a) !== rank(b)) return rank(a) === 2 || rank(b) === 2 ? rank(a) - rank(b) : sign * (rank(a) - rank(b));
    const order = rank(a) === 0 ? a - b : rank(a) === 1 ? compare(value(a), value(b)) : 0;
    return sign * order || compare(first.id, second.id);
  });
  return keyed.map(([, row]) => row);
}

const collator = new Intl.Collator("en", { numeric: true }); // run-9 before run-10
const compare = (a, b) => collator.compare(a, b);
