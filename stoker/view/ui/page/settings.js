// The settings of charts: read from the URL, shown as a bar of controls, changed through the URL.
import { el } from "./dom.js";

export const MOST = 1000; // points of a line that are asked for: about the pixels of a wide plot
const USUAL = 0.6; // the smoothing that the key `s` brings

export function settingsOf(params) {
  const by = params.get("by");
  return {
    by: ["epoch", "time"].includes(by) ? by : "update",
    log: params.get("log") === "1",
    smoothing: Math.min(0.99, Math.max(0, Number(params.get("smooth")) || 0)),
    from: finite(params.get("from")),
    to: finite(params.get("to")),
    ranges: new Map(params.getAll("y").map(parseRange).filter(Boolean)),
    big: params.get("big"),
    order: ["highest", "lowest"].includes(params.get("order")) ? params.get("order") : "",
  };
}

/** A chart's own range in the URL, "0..1 loss": either end may be missing. */
export const rangeText = (title, [low, high]) => `${low ?? ""}..${high ?? ""} ${title}`;

function parseRange(text) {
  const [, low, high, title] = /^(\S*)\.\.(\S*) (.*)$/s.exec(text) ?? [];
  const range = [low, high].map((end) => finite(end ?? null));
  return title !== undefined && range.some((end) => end !== null) && [title, range];
}

/** The bar of controls; `change({name: value})` changes the URL. */
export class SettingsBar {
  constructor(change, ...more) {
    this.change = change;
    this.by = el("select", { "aria-label": "Horizontal axis", onchange: () => change({ by: this.by.value === "update" ? "" : this.by.value, from: "", to: "" }) },
      [["update", "updates"], ["epoch", "epochs"], ["time", "time"]].map(([value, text]) => el("option", { value }, text)));
    this.log = el("button", { type: "button", class: "toggle", onclick: () => this.toggleLog() }, "log scale");
    this.smooth = el("input", { type: "range", min: "0", max: "0.98", step: "0.02", id: "smooth",
      oninput: () => change({ smooth: Number(this.smooth.value) || "" }) });
    this.smoothed = el("output", { for: "smooth" });
    this.all = el("button", { type: "button", onclick: () => change({ from: "", to: "" }) }, "all of it");
    this.element = el("div", { class: "bar", role: "group", "aria-label": "Chart settings" },
      more, this.by, this.log, el("label", { class: "slider" }, "smoothing", this.smooth, this.smoothed), this.all);
  }

  show({ by, log, smoothing, from }) {
    this.now = { log, smoothing };
    this.by.value = by;
    this.log.setAttribute("aria-pressed", String(log));
    this.smooth.value = String(smoothing);
    this.smoothed.textContent = smoothing ? smoothing.toFixed(2) : "off";
    this.all.hidden = from === null;
  }

  toggleLog() {
    this.change({ log: !this.now.log });
  }

  toggleSmoothing() {
    this.change({ smooth: this.now.smoothing ? "" : USUAL });
  }
}

/** The range after a key, from the visible one: + and − zoom around the middle, ← and → move. */
export function moveRange(key, [from, to], [first, last]) {
  const width = to - from;
  const [start, end] = {
    "+": [from + width / 4, to - width / 4],
    "-": [from - width / 2, to + width / 2],
    ArrowLeft: [from - width / 4, to - width / 4],
    ArrowRight: [from + width / 4, to + width / 4],
  }[key];
  const [clipped, ended] = [Math.max(first, start), Math.min(last, end)];
  return clipped <= first && ended >= last ? null : [clipped, ended];
}

export const finite = (text) => (text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
