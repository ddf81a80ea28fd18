// The table of epochs, newest first.
import * as api from "./api.js";
import { el, refill, say } from "./dom.js";
import { count, number } from "./text.js";

const PAUSE = 2000; // milliseconds between two readings while a run is active
const MOST_EPOCHS = 200;
const MOST_NAMES = 50;

export class Epochs {
  constructor(id) {
    Object.assign(this, { id, detail: null, timer: 0, read: 0, shown: "" });
    this.note = el("p", { class: "muted", role: "status" }, "Reading the epochs …");
    this.table = el("div", { class: "scroll" });
    this.element = el("section", { class: "epochs" }, this.note, this.table);
  }

  /** Schedules reading the values again, at a limited rate. */
  renew(detail) {
    this.detail = detail;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load(), Math.max(0, this.read + PAUSE - Date.now()));
  }

  async load() {
    this.read = Date.now();
    const { names, status, row } = this.detail;
    const first = Math.max(1, status.epoch - MOST_EPOCHS + 1);
    const asked = names.slice(0, MOST_NAMES);
    try {
      const found = asked.length ? await api.epochs(this.id, asked, first) : new Map();
      this.draw({ first, best: row.best, left: names.length - asked.length, numbers: [...found].filter(([, { x }]) => x.length) });
    } catch (error) {
      say(this.note, error.message);
    }
  }

  draw(found) {
    const shown = JSON.stringify(found);
    if (shown === this.shown) return; // what is selected in it stays selected
    this.shown = shown;
    const { first, best, left, numbers } = found;
    const epochs = byEpoch(numbers, first);
    say(this.note, [!epochs.size && "No epoch has ended yet.", first > 1 && `The last ${MOST_EPOCHS} epochs.`,
      left > 0 && `${count(left)} more numbers are not shown.`].filter(Boolean).join(" "));
    this.note.hidden = !this.note.textContent;
    const names = numbers.map(([name]) => name);
    const cell = (epoch, name, given) => el("td", { class: best?.name === name && best.epoch === epoch ? "number best" : "number" },
      best?.name === name && best.epoch === epoch && el("span", { class: "mark", role: "img", "aria-label": "best" }, "★"), number(given));
    const lines = [...epochs.keys()].sort((a, b) => b - a).map((epoch) => el("tr", {}, el("th", { scope: "row" }, count(epoch)),
      names.map((name) => cell(epoch, name, epochs.get(epoch).get(name)))));
    refill(this.table, epochs.size > 0 && el("table", { class: "across" }, el("caption", { class: "unseen" }, "The values of each epoch"),
      el("thead", {}, el("tr", {}, ["Epoch", ...names].map((name) => el("th", { scope: "col", title: name }, name)))), el("tbody", {}, lines)));
  }

  leave() {
    clearTimeout(this.timer);
  }
}

/** Epoch → name → the last value in the epoch. */
function byEpoch(numbers, first) {
  const epochs = new Map();
  for (const [name, { x, y }] of numbers) {
    x.forEach((epoch, place) => {
      if (epoch < first) return; // a neighbour, sent so that lines reach the edge
      if (!epochs.has(epoch)) epochs.set(epoch, new Map());
      epochs.get(epoch).set(name, y[place]);
    });
  }
  return epochs;
}
