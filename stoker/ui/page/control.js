// Asking a run to stop or to save, with the token that the command printed.
import * as api from "./api.js";
import { byId } from "./dom.js";

const KEY = "stoker.token"; // kept until the tab is closed
const WORDS = {
  stop: { title: "Stop this run?", text: "It ends after the update that it is at, as if it had been interrupted, and can be resumed.", yes: "Stop it" },
  save: { title: "Save a checkpoint?", text: "The run saves one after the update that it is at, and goes on.", yes: "Save" },
};

/** Asks the user, then the run; a wrong token is asked for again. */
export function askRun(id, what) {
  const { title, text, yes } = WORDS[what];
  const dialog = byId("control");
  byId("control-title").textContent = title;
  byId("control-text").textContent = `${id}: ${text}`;
  byId("control-yes").textContent = yes;
  tell("");
  askForToken(!sessionStorage.getItem(KEY));
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault(); // the dialog closes when the run has been asked
    await send(id, what, dialog);
  };
  byId("control-no").onclick = () => dialog.close();
  dialog.showModal();
}

async function send(id, what, dialog) {
  const token = sessionStorage.getItem(KEY) ?? byId("control-token").value.trim();
  if (!token) {
    tell("The token is on the terminal where stoker ui runs.");
    return;
  }
  byId("control-yes").disabled = true;
  try {
    await api.control(id, what, token);
    sessionStorage.setItem(KEY, token);
    dialog.close();
  } catch (error) {
    if (error.status === 403) {
      sessionStorage.removeItem(KEY);
      askForToken(true);
    }
    tell(error.message);
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
