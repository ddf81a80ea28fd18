// A run's state as a shape, a word and a color, so that none of them is needed alone.
import { el, say } from "./dom.js";

const SHAPES = { running: "●", finished: "✓", stopped: "■", interrupted: "◧", failed: "✕", died: "✕", gone: "○" };

export function badge(state, reason = "") {
  return el("span", { class: "state", "data-state": Object.hasOwn(SHAPES, state) ? state : "gone", title: reason || null },
    el("span", { class: "shape", "aria-hidden": "true" }, SHAPES[state] ?? "○"), state);
}

/** A progress bar with a text. */
export class Progress {
  constructor(label) {
    this.bar = el("progress", { max: "1", "aria-label": label });
    this.text = el("span", { class: "done" });
    this.element = el("span", { class: "progress" }, this.bar, this.text);
  }

  show(fraction, text) {
    this.bar.hidden = !Number.isFinite(fraction);
    if (Number.isFinite(fraction)) this.bar.value = Math.min(1, Math.max(0, fraction));
    say(this.text, text);
  }
}
