// The view in the URL's fragment: #/runs?…, #/run/<id>?…, #/compare?id=…; so that links and the back button work.

/** Parses a fragment into the view, the run's id ("" except for #/run/…) and the settings. */
export function parse(hash) {
  const [path, query = ""] = split(hash.replace(/^#\/?/, ""), "?");
  const [view, id = ""] = split(path, "/");
  return { view: view || "runs", id: unquote(id), params: new URLSearchParams(query) };
}

export function link(view, id = "", params = new URLSearchParams()) {
  const query = params.toString();
  return `#/${view}${id ? `/${quote(id)}` : ""}${query ? `?${query}` : ""}`;
}

/** A run's id inside a path: every part between slashes is escaped. */
export function quote(id) {
  return id.split("/").map((part) => encodeURIComponent(part.toWellFormed())).join("/");
}

/** A copy of the settings with some changed; "", null, false and an empty list remove a setting. */
export function withChanges(params, changes) {
  const next = new URLSearchParams(params);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    const values = Array.isArray(value) ? value : [value];
    for (const each of values) {
      if (each !== "" && each !== null && each !== undefined && each !== false) next.append(name, each === true ? "1" : each);
    }
  }
  return next;
}

function split(text, by) {
  const at = text.indexOf(by);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function unquote(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a truncated link
  }
}
