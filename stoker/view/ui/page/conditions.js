// Which rows are shown: words that must occur, and conditions such as config.lr<0.01 or last.valid/loss<=0.5.
import { value } from "./text.js";

export const SIGNS = ["=", "≠", "<", "≤", ">", "≥"];
const ASCII_SIGNS = { "!=": "≠", "<=": "≤", ">=": "≥" };
const TESTS = {
  "=": (a, b) => a === b,
  "≠": (a, b) => a !== b,
  "<": (a, b) => a < b,
  "≤": (a, b) => a <= b,
  ">": (a, b) => a > b,
  "≥": (a, b) => a >= b,
};

/** A text such as `config.lr<=0.1` as { field, sign, wanted }, or null if its field is unknown. */
export function condition(text, fields) {
  for (const { 0: found, index: at } of text.matchAll(/!=|<=|>=|[=≠<≤>≥]/g)) {
    const name = text.slice(0, at);
    const field = fieldOf(name, fields);
    const wanted = text.slice(at + found.length);
    if (field && (wanted || found !== "=")) return { field, sign: ASCII_SIGNS[found] ?? found, wanted };
  }
  return null;
}

/** The field of that name; a setting is found by the end of its name too, so that `hidden` finds model.hidden. */
function fieldOf(name, fields) {
  if (fields.has(name) || !name) return fields.get(name);
  const settings = [...fields.values()].filter(({ kind, title }) => kind === "config" && (title === name || title.endsWith(`.${name}`)));
  if (!settings.length) return fields.get(`last.${name}`);
  settings.sort((a, b) => (a.title !== name) - (b.title !== name));
  return { ...settings[0], read: (row) => settings.map((field) => field.read(row)).find((given) => given !== undefined) };
}

/** Whether a condition is malformed, such as lr<<x or lr<: two signs, or a sign without a value. */
export function isMalformed({ sign, wanted }) {
  return isOrder(sign) ? /^\s*([=≠<≤>≥!]|$)/.test(wanted) : wanted.startsWith("=");
}

export const conditionText = ({ field, sign, wanted }) => `${field.name}${sign}${wanted}`;

export function meets(row, { field, sign, wanted }) {
  const actual = field.read(row);
  if (actual === undefined || actual === null) return sign === "≠";
  if (field.list && !isOrder(sign)) return actual.toLowerCase().split(", ").includes(wanted.trim().toLowerCase()) === (sign === "=");
  if (typeof actual === "number") {
    if (wanted.trim() !== "" && !Number.isNaN(Number(wanted))) return TESTS[sign](actual, Number(wanted));
    if (isOrder(sign)) return false; // no number comes before or after a word
  }
  return TESTS[sign](value(actual).toLowerCase(), wanted.trim().toLowerCase());
}

/** Parses a search and the filters into conditions, words that must occur, and the texts that are malformed. */
export function parseSearch({ search, where }, fields) {
  const typed = search.split(/\s+/).filter(Boolean);
  const parsed = [...where, ...typed].map((text) => [text, condition(text, fields) ?? condition(text.toLowerCase(), fields)]);
  const known = parsed.filter(([, each]) => each);
  return {
    conditions: known.map(([, each]) => each),
    words: parsed.slice(where.length).filter(([, each]) => !each).map(([text]) => text.toLowerCase()),
    malformed: known.filter(([, each]) => isMalformed(each)).map(([text]) => text),
  };
}

/** The rows that have all the words (in their name, title, tags, note, state, model, device or settings) and meet all the conditions. */
export function filterRows(rows, { conditions, words, malformed }) {
  if (malformed.length) return [];
  return rows.filter((row) => conditions.every((each) => meets(row, each)) && words.every((word) => searchText(row).includes(word)));
}

const isOrder = (sign) => "<≤>≥".includes(sign);

function searchText(row) {
  const config = Object.entries(row.config ?? {}).map(([key, each]) => `${key}=${value(each)}`);
  return [row.id, row.title, row.state, row.model, row.device, row.note, ...(row.tags ?? []), ...config].join("\n").toLowerCase();
}
