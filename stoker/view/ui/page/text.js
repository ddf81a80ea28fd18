// Numbers, times and values as text.

const NONE = "–";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** A measured number with four significant digits: 0.1234, 12.35, 1.2e-05. */
export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return value === null || value === undefined ? NONE : String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3).replace(/\.?0+e/, "e");
  if (Number.isInteger(value)) return grouped.format(value);
  return String(Number(value.toPrecision(4)));
}

export const count = (value) => (Number.isFinite(value) ? grouped.format(value) : NONE);

/** Seconds as "42 s", "3 min 10 s", "5 h 02 min" or "2 d 4 h". */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${seconds < 9.95 ? Math.max(0, seconds).toFixed(1) : whole} s`;
  const [minutes, hours, days] = [Math.floor(whole / 60), Math.floor(whole / 3600), Math.floor(whole / 86400)];
  if (hours < 1) return `${minutes} min ${String(whole % 60).padStart(2, "0")} s`;
  if (days < 1) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${days} d ${hours % 24} h`;
}

/** Seconds since 1970 as local time, "2031-05-04 17:20". */
export function when(seconds) {
  if (!Number.isFinite(seconds)) return NONE;
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return NONE;
  const two = (part) => String(part).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

export function bytes(size) {
  if (!Number.isFinite(size)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = size < 1 ? 0 : Math.min(units.length - 1, Math.floor(Math.log10(size) / 3));
  return `${Number((size / 1000 ** power).toPrecision(3))} ${units[power]}`;
}

/** A value of a config: text as it is, numbers short, the rest as JSON. */
export function value(given) {
  if (typeof given === "string") return given;
  if (typeof given === "number") return String(given);
  return given === undefined ? NONE : JSON.stringify(given);
}

/** Words quoted for a shell where necessary. */
export const shell = (words) => words.map(value).map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");

/** "3 / 10", or "3" if the total is unknown. */
export const of = (done, all) => (Number.isFinite(all) ? `${count(done)} / ${count(all)}` : count(done));
