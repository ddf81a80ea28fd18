// Which rows are shown: words that must occur, and conditions such as config.lr<0.01 or last.valid/loss<=0.5.
import { value } from "./text.js";

export const SIGNS = ["=", "≠", "<", "≤", ">", "≥"];
const SPELT = { "!=": "≠", "<=": "≤", ">=": "≥" };
const TESTS = {
  "=": (a, b) => a === b,
  "≠": (a, b) => a !== b,
  "<": (a, b) => a < b,
  "≤": (a, b) => a <= b,
  ">": (a, b) => a > b,
  "≥": (a, b) => a >= b,
};

/** A text such as `config.lr<=0.1` as { field, sign, wanted }, or null where it is none of a known field. */
export function condition(text, fields) {
  for (const { 0: found, index: at } of text.matchAll(/!=|<=|>=|[=≠<≤>≥]/g)) {
    const name = text.slice(0, at);
    const field = fields.get(name) ?? fields.get(`config.${name}`) ?? fields.get(`last.${name}`);
    if (field) return { field, sign: SPELT[found] ?? found, wanted: text.slice(at + found.length) };
  }
  return null;
}

export const spelt = ({ field, sign, wanted }) => `${field.name}${sign}${wanted}`;

export function meets(row, { field, sign, wanted }) {
  const given = field.read(row);
  if (given === undefined || given === null) return sign === "≠";
  if (typeof given === "number" && wanted.trim() !== "" && !Number.isNaN(Number(wanted))) return TESTS[sign](given, Number(wanted));
  return TESTS[sign](value(given).toLowerCase(), wanted.trim().toLowerCase());
}

/** The rows that have all the words (in their name, state, model, device or config) and meet all the conditions. */
export function chosen(rows, { search, where }, fields) {
  const conditions = where.map((text) => condition(text, fields)).filter(Boolean);
  const words = [];
  for (const word of search.toLowerCase().split(/\s+/).filter(Boolean)) {
    const meant = condition(word, fields);
    if (meant) conditions.push(meant);
    else words.push(word);
  }
  return rows.filter((row) => conditions.every((each) => meets(row, each)) && words.every((word) => says(row).includes(word)));
}

function says(row) {
  const config = Object.entries(row.config ?? {}).map(([key, each]) => `${key}=${value(each)}`);
  return [row.id, row.state, row.model, row.device, ...config].join("\n").toLowerCase();
}
