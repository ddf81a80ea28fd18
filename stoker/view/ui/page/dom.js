// Creates elements. Text becomes text nodes only, so that no name can become markup.

export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export const byId = (id) => document.getElementById(id);

/** Replaces the children of an element and keeps the focus if the focused element is still there. */
export function refill(element, ...children) {
  const focused = document.activeElement;
  element.replaceChildren(...clean(children));
  if (focused !== document.activeElement && element.contains(focused)) focused.focus({ preventScroll: true });
}

/** Sets the text only if it differs, so that a selection in it survives. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A button that opens a small card below itself. */
export function popover(title, attributes, ...content) {
  const opened = el("details", { class: "popover" }, el("summary", { role: "button", ...attributes }, title), el("div", { class: "card" }, content));
  opened.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !opened.open) return;
    opened.open = false;
    opened.querySelector("summary").focus();
    event.stopPropagation();
  });
  return opened;
}

document.addEventListener("pointerdown", ({ target }) => {
  for (const opened of document.querySelectorAll("details.popover[open]")) if (!opened.contains(target)) opened.open = false;
});

/** A text to copy, and the button that does; where the browser allows no copying, the text is selected instead. */
export function copyable(text, what) {
  const code = el("code", {}, text);
  const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy ${what}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
    }
  } }, "Copy");
  return el("span", { class: "copyable" }, code, button);
}

function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...clean(children));
  return made;
}

const clean = (children) => children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
