// Asks a run to stop or to save, with the token that the command printed, and waits until the record shows that it did.
import * as api from "./api.js";
import { byId, el, say } from "./dom.js";

const KEY = "stoker.token"; // kept until the tab is closed
const WORDS = {
  stop: { title: "Stop this run?", text: "It ends after the current update, saves a checkpoint, and can be resumed.", yes: "Stop it",
    asked: "Asked to stop, waiting for the next update …" },
  save: { title: "Save a checkpoint?", text: "The run saves a checkpoint after the current update and continues.", yes: "Save",
    asked: "Asked to save a checkpoint, waiting for the next update …" },
};
const waiting = new Map(); // by run: the pending request, and the checkpoints at that time; kept while another view is shown

/** The two buttons of a run, and a line about a pending request. */
export class Control {
  constructor(id) {
    Object.assign(this, { id, detail: null });
    this.save = el("button", { type: "button", onclick: () => this.ask("save") }, "Save a checkpoint");
    this.stop = el("button", { type: "button", onclick: () => this.ask("stop") }, "Stop");
    this.buttons = el("div", { class: "actions", hidden: true }, this.save, this.stop);
    this.status = el("p", { class: "asked", role: "status", hidden: true });
  }

  show(detail, allowed) {
    this.detail = detail;
    const asked = waiting.get(this.id);
    if (asked && isDone(asked, detail)) waiting.delete(this.id);
    const what = waiting.get(this.id)?.what;
    this.buttons.hidden = !(allowed && detail.row.state === "running");
    this.save.disabled = what !== undefined;
    this.stop.disabled = what === "stop"; // a run that never saves can still be stopped
    this.status.hidden = what === undefined;
    say(this.status, what ? WORDS[what].asked : "");
  }

  ask(what) {
    askRun(this.id, what, () => {
      waiting.set(this.id, { what, had: new Set(this.detail.checkpoints.map(sign)) });
      this.show(this.detail, true);
    });
  }
}

/** A stop is done when the run has ended, a save when there is another checkpoint. */
function isDone({ what, had }, { row, checkpoints }) {
  return row.state !== "running" || (what === "save" && checkpoints.some((each) => !had.has(sign(each))));
}

const sign = ({ name, update, time }) => JSON.stringify([name, update, time]);

/** Asks the user, then the run, and then calls `done`; after a wrong token it asks for another. */
function askRun(id, what, done) {
  const { title, text, yes } = WORDS[what];
  const dialog = byId("control");
  byId("control-title").textContent = title;
  byId("control-text").textContent = `${id}: ${text}`;
  byId("control-yes").textContent = yes;
  tell("");
  askForToken(!sessionStorage.getItem(KEY));
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault(); // the dialog closes when the run has been asked
    if (await send(id, what)) {
      dialog.close();
      done();
    }
  };
  byId("control-no").onclick = () => dialog.close();
  dialog.showModal();
}

/** Sends the request; returns whether that succeeded. */
async function send(id, what) {
  const token = sessionStorage.getItem(KEY) ?? byId("control-token").value.trim();
  if (!token) {
    tell("Enter the token that stoker ui printed in its terminal.");
    return false;
  }
  byId("control-yes").disabled = true;
  try {
    await api.control(id, what, token);
    sessionStorage.setItem(KEY, token);
    return true;
  } catch (error) {
    if (error.status === 403) {
      sessionStorage.removeItem(KEY);
      askForToken(true);
    }
    tell(error.message);
    return false;
  } finally {
    byId("control-yes").disabled = false;
  }
}

function askForToken(asked) {
  byId("control-token-row").hidden = !asked;
  byId("control-token").value = "";
  if (asked) byId("control-token").focus();
}

function tell(text) {
  byId("control-problem").hidden = !text;
  byId("control-problem").textContent = text;
}
