// Requests to the server. Answers are keyed by users' names, so they are Maps: "__proto__" is an ordinary key.
import { quote } from "./address.js";

export const mapOf = (object) => new Map(Object.entries(object ?? {}));

export const runs = (signal) => ask("/api/runs", { signal });
export const run = (id, signal) => ask(`/api/run/${quote(id)}`, { signal });
export const compare = (ids, signal) => ask(`/api/compare?${new URLSearchParams(ids.map((id) => ["id", id]))}`, { signal });

/** The points of some metrics of a run, thinned by the server to at most about `most`: a Map of name to {x, y}. */
export async function points(id, names, range, signal) {
  if (range.by !== "epoch") return pointsOf(id, names, range, "all", signal);
  const found = await pointsOf(id, names, range, "epochs", signal); // points within an epoch have no position on that axis
  const missing = names.filter((name) => !found.get(name).x.length);
  return missing.length ? new Map([...found, ...(await pointsOf(id, missing, range, "all", signal))]) : found;
}

/** The values at the ends of epochs, from a given epoch on: a Map of name to {x, y}. */
export const epochs = (id, names, from, signal) => pointsOf(id, names, { by: "epoch", from, to: null, most: 1000 }, "epochs", signal);

async function pointsOf(id, names, { by, from, to, most }, source, signal) {
  const query = new URLSearchParams([...names.map((name) => ["name", name]), ["by", by], ["source", source], ["most", String(most)]]);
  if (from !== null) query.set("from", String(from));
  if (to !== null) query.set("to", String(to));
  return mapOf((await ask(`/api/points/${quote(id)}?${query}`, { signal })).series);
}

/** Asks a run to stop or to save; an `ApiError` with status 403 means a wrong token. */
export function control(id, what, token) {
  return ask(`/api/control/${quote(id)}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${encodeURIComponent(token)}` },
    body: JSON.stringify({ ask: what }),
  });
}

export class ApiError extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
  }
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer", 0);
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(body.error ?? `the server answered ${answer.status}`, answer.status);
  return body;
}
