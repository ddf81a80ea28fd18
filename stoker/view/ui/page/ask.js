// Requests that change something: they need the token that the command printed, which is asked for once.
import { byId, el, refill } from "./dom.js";

const KEY = "stoker.token"; // kept until the tab is closed

/** Asks the user with a dialog, then sends; `send(token)` is called again after a wrong token. Gives its answer to `done`. */
export function confirm({ title, text = "", yes, content = null }, send, done) {
  const dialog = byId("control");
  byId("control-title").textContent = title;
  byId("control-text").textContent = text;
  refill(byId("control-content"), content);
  byId("control-yes").textContent = yes;
  tell("");
  askForToken(!sessionStorage.getItem(KEY));
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault(); // the dialog closes when the request was accepted
    const token = sessionStorage.getItem(KEY) ?? byId("control-token").value.trim();
    if (!token) {
      tell("Enter the token that stoker ui printed in its terminal.");
      return;
    }
    byId("control-yes").disabled = true;
    try {
      const answer = await send(token);
      sessionStorage.setItem(KEY, token);
      dialog.close();
      done(answer);
    } catch (error) {
      if (error.status === 403) forget();
      tell(error.message);
    } finally {
      byId("control-yes").disabled = false;
    }
  };
  byId("control-no").onclick = () => dialog.close();
  dialog.showModal();
}

/** Sends at once if the token is known, and asks with a dialog otherwise. */
export async function request(question, send, done) {
  const token = sessionStorage.getItem(KEY);
  if (!token) {
    confirm(question, send, done);
    return;
  }
  try {
    done(await send(token));
  } catch (error) {
    if (error.status === 403) sessionStorage.removeItem(KEY);
    if (error.status === 403) confirm(question, send, done);
    else notify(error.message);
  }
}

/** Shows a line at the bottom of the page, with a button if there is something to do. */
export function notify(text, action = "", act = null) {
  const close = () => { byId("toast").hidden = true; };
  refill(byId("toast"), el("span", {}, text),
    action && el("button", { type: "button", onclick: () => { close(); act(); } }, action),
    el("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: close }, "×"));
  byId("toast").hidden = false;
}

function forget() {
  sessionStorage.removeItem(KEY);
  askForToken(true);
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
