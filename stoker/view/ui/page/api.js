// Requests to the server. Answers are keyed by users' names, so they are Maps: "__proto__" is an ordinary key.
import { quote } from "./address.js";

export const mapOf = (object) => new Map(Object.entries(object ?? {}));

export const runs = (signal) => ask("/api/runs", { signal });
export const run = (id, signal) => ask(`/api/run/${quote(id)}`, { signal });
export const compare = (ids, signal) => ask(`/api/compare?${new URLSearchParams(ids.map((id) => ["id", id]))}`, { signal });

/** The points of some metrics of a run, thinned by the server to at most about `most`: a Map of name to {x, y}. */
export async function points(id, names, range, signal) {
  const query = new URLSearchParams([...names.map((name) => ["name", name]), ...rangeQuery(range)]);
  return mapOf((await ask(`/api/points/${quote(id)}?${query}`, { signal })).series);
}

/** A metric of some runs, in the same way: a Map of id to {x, y}, and the ids of runs that were not read to their end. */
export async function overlay(ids, name, range, signal) {
  const query = new URLSearchParams([...ids.map((id) => ["id", id]), ["name", name], ...rangeQuery(range)]);
  const { series, behind } = await ask(`/api/overlay?${query}`, { signal });
  return { series: mapOf(series), behind };
}

/** The values at the ends of epochs, from a given epoch on: a Map of name to {x, y}. */
export const epochs = (id, names, from, signal) => points(id, names, { by: "epoch", from, to: null, most: 1000, source: "epochs" }, signal);

function rangeQuery({ by, from, to, most, source = "auto" }) {
  return Object.entries({ by: by === "time" ? "elapsed" : by, from, to, most, source }).filter(([, value]) => value !== null).map(([name, value]) => [name, String(value)]);
}

export const matrix = (id, name, epoch, signal) => ask(`/api/matrix/${quote(id)}?${new URLSearchParams({ name, ...(epoch === null ? {} : { epoch }) })}`, { signal });

/** The address of a file that the run has logged. */
export const mediaUrl = (id, file) => `/api/media/${quote(id)}?${new URLSearchParams({ file })}`;
export const media = async (id, file) => (await answer(mediaUrl(id, file), {})).text();

// These need the token; an `ApiError` with status 403 means a wrong one.
export const control = (id, what, token) => post(`/api/control/${quote(id)}`, { ask: what }, token);
export const annotate = (id, changes, token) => post(`/api/annotate/${quote(id)}`, changes, token);
export const remove = (id, token) => post(`/api/remove/${quote(id)}`, {}, token);
export const restore = (key, token) => post("/api/restore", { restore: key }, token);

function post(path, body, token) {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${encodeURIComponent(token)}` };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body) });
}

export class ApiError extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

const ask = async (path, options) => (await answer(path, options)).json();

async function answer(path, options) {
  let found;
  try {
    found = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer", 0);
  }
  if (found.ok) return found;
  const { error } = await found.json().catch(() => ({}));
  throw new ApiError(error ?? `the server answered ${found.status}`, found.status);
}
