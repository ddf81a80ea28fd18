// The keys that work everywhere; others are passed to the view.
import { byId } from "./dom.js";

export function listen(app) {
  const help = byId("help");
  byId("help-button").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (document.querySelector("dialog[open]")) return; // it has its own keys
    if (isWriting(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.target.type === "range" && event.key.startsWith("Arrow")) return;
    if (act(app, event.key, help)) event.preventDefault();
  });
}

function act(app, key, help) {
  if (key === "?") help.showModal();
  else if (key === "/") document.querySelector("main input[type=search]")?.focus();
  else if (key === "j" || key === "k") walk(key === "j" ? 1 : -1);
  else if (app.view?.key(key)) return true;
  else if (key === "Escape" && app.address.view !== "runs") app.go(app.list);
  else return false;
  return true;
}

/** Focuses the next or previous run, or where there is no list of runs, the chart. */
function walk(step) {
  const rows = document.querySelectorAll("tr [data-stop]");
  const stops = [...(rows.length ? rows : document.querySelectorAll("[data-stop]"))];
  const here = stops.findIndex((stop) => stop.contains(document.activeElement) || stop.closest("tr")?.contains(document.activeElement));
  const next = stops[here < 0 ? (step > 0 ? 0 : stops.length - 1) : Math.min(stops.length - 1, Math.max(0, here + step))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const isWriting = (element) => element.matches("textarea, select, input:not([type=checkbox], [type=range])");
