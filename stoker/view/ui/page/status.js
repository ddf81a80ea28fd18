// The status of a run as a row of facts.
import { el, refill, say } from "./dom.js";
import { count, duration, number, of, when } from "./text.js";

export class StatusPane {
  constructor() {
    this.element = el("dl", { class: "facts" });
    this.shown = "";
    this.values = new Map();
  }

  show({ row, status }) {
    const facts = factsOf({ row, status });
    const names = facts.map(([name]) => name).join("\n");
    if (names !== this.shown) {
      this.shown = names;
      this.values = new Map(facts.map(([name]) => [name, { value: el("span"), note: el("small") }]));
      refill(this.element, [...this.values].map(([name, { value, note }]) => el("div", { class: name === "Now" ? "now" : "" }, el("dt", {}, name), el("dd", {}, value, note))));
    }
    for (const [name, text, small = ""] of facts) {
      say(this.values.get(name).value, text);
      say(this.values.get(name).note, small);
    }
  }
}

/** [name, text, small text] of the known facts; only complete epochs are counted. */
function factsOf({ row, status }) {
  const running = row.state === "running";
  const best = status.best ?? row.best;
  return [
    running && ["Now", phase(status)],
    ["Epochs", of(row.epoch, status.epochs)],
    ["Update", of(status.update, status.updates)],
    (best || running) && ["Best", number(best?.value), best ? `${best.name ?? row.best?.name ?? ""}, epoch ${best.epoch}` : ""],
    ["Time", duration(status.seconds)],
    running && Number.isFinite(status.seconds_left) && ["Left", duration(status.seconds_left)],
    Number.isFinite(status.samples_per_second) && ["Samples / s", count(status.samples_per_second)],
    Number.isFinite(status.updates_per_second) && ["Updates / s", number(status.updates_per_second)],
    ["Began", when(row.began)],
    row.device && ["Device", String(row.device)],
    row.model && ["Model", String(row.model)],
  ].filter(Boolean);
}

function phase({ phase, set_name: set, epoch, batch, batches, phase_fraction: within }) {
  if (phase !== "train" && phase !== "valid") return phase;
  const closed = within === 1 && Number.isFinite(batches); // after the last batch of an epoch, `batch` is not updated any more
  return `epoch ${count(epoch)}, ${set || phase}, batch ${of(closed ? batches : batch, batches)}`;
}
