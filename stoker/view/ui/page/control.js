// Asks a run to stop or to save, waits until its record shows that it did, and says so.
import * as api from "./api.js";
import { confirm } from "./ask.js";
import { el, say } from "./dom.js";
import { count } from "./text.js";

const WORDS = {
  stop: { title: "Stop this run?", text: "It ends after the current update, saves a checkpoint, and can be resumed.", yes: "Stop it",
    asked: "Asked to stop, waiting for the next update …" },
  save: { title: "Save a checkpoint?", text: "The run saves a checkpoint after the current update and continues.", yes: "Save",
    asked: "Asked to save a checkpoint, waiting for the next update …" },
};
const asked = new Map(); // by run: the request, the checkpoints at that time, and what came of it; kept while another view is shown

/** The two buttons of a run, and a line about a request. */
export class Control {
  constructor(id) {
    Object.assign(this, { id, detail: null });
    this.save = el("button", { type: "button", onclick: () => this.ask("save") }, "Save a checkpoint");
    this.stop = el("button", { type: "button", onclick: () => this.ask("stop") }, "Stop");
    this.buttons = el("span", { class: "actions", hidden: true }, this.save, this.stop);
    this.status = el("p", { class: "asked", role: "status", hidden: true });
  }

  show(detail, allowed) {
    this.detail = detail;
    const request = asked.get(this.id);
    if (request && !request.result) request.result = resultOf(request, detail);
    const waiting = request && !request.result ? request.what : null;
    this.buttons.hidden = !(allowed && detail.row.state === "running");
    this.save.disabled = waiting !== null;
    this.stop.disabled = waiting === "stop"; // a run that never saves can still be stopped
    this.status.hidden = !request;
    say(this.status, waiting ? WORDS[waiting].asked : (request?.result ?? ""));
  }

  ask(what) {
    const { title, text, yes } = WORDS[what];
    confirm({ title, text: `${this.id}: ${text}`, yes }, (token) => api.control(this.id, what, token), () => {
      asked.set(this.id, { what, had: new Set(this.detail.checkpoints.map(sign)), result: "" });
      this.show(this.detail, true);
    });
  }
}

/** What came of a request: a save is done when there is another checkpoint, a stop when the run has ended. */
function resultOf({ what, had }, { row, checkpoints }) {
  const saved = checkpoints.findLast((each) => !had.has(sign(each)));
  if (what === "save" && saved) return `✓ Saved ${saved.name} after update ${count(saved.update)}.`;
  return row.state === "running" ? "" : `The run has ended (${row.state})${saved ? ` and saved ${saved.name}` : ""}.`;
}

const sign = ({ name, update, time }) => JSON.stringify([name, update, time]);
