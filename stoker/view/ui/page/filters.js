// The forms above the list: adding a condition, the active conditions, and the columns.
import { condition, conditionText, isMalformed, SIGNS } from "./conditions.js";
import { el, popover, refill } from "./dom.js";
import { value } from "./text.js";

export const KINDS = [["run", "Run"], ["config", "Settings"], ["best", "Best value"], ["number", "Last value"]];

function options(fields) {
  return KINDS.map(([kind, title]) => {
    const found = [...fields.values()].filter((field) => field.kind === kind && field.name !== "progress");
    return found.length > 0 && el("optgroup", { label: title }, found.map((field) => el("option", { value: field.name }, field.title)));
  });
}

export class FilterForm {
  constructor(add) {
    this.field = el("select", { "aria-label": "Filter by", onchange: () => this.suggest() });
    this.sign = el("select", { "aria-label": "Is" }, SIGNS.map((sign) => el("option", { value: sign }, sign)));
    this.wanted = el("input", { "aria-label": "Value", list: "known-values", autocomplete: "off", spellcheck: "false" });
    this.known = el("datalist", { id: "known-values" });
    const form = el("form", { onsubmit: (event) => this.submit(event, add) }, this.field, this.sign, this.wanted, this.known,
      el("button", { class: "primary" }, "Add"));
    this.element = popover("Filter", {}, form);
    this.offered = "";
  }

  submit(event, add) {
    event.preventDefault();
    if (!this.wanted.value.trim()) return;
    add(conditionText({ field: this.fields.get(this.field.value), sign: this.sign.value, wanted: this.wanted.value.trim() }));
    this.wanted.value = "";
    this.element.open = false;
  }

  offer(fields, rows) {
    this.fields = fields;
    this.rows = rows;
    const offered = JSON.stringify([...fields.keys()]);
    if (offered === this.offered) return;
    this.offered = offered;
    const before = this.field.value;
    refill(this.field, options(fields));
    this.field.value = this.element.open && fields.has(before) ? before : ([...fields.keys()].find((name) => name.startsWith("config.")) ?? "state");
    this.suggest();
  }

  suggest() {
    const field = this.fields.get(this.field.value);
    const known = new Set(this.rows.map((row) => field?.read(row)).filter((each) => each !== undefined && each !== null).map(value));
    refill(this.known, [...known].slice(0, 50).map((each) => el("option", { value: each })));
  }
}

export class ColumnChooser {
  constructor(choose) {
    this.choose = choose;
    this.list = el("fieldset", {}, el("legend", {}, "Columns"));
    this.element = popover("Columns", {}, this.list);
    this.offered = "";
  }

  offer(fields, columns) {
    const offered = JSON.stringify([[...fields.keys()], columns]);
    if (offered === this.offered) return;
    this.offered = offered;
    const box = (field) => el("label", {},
      el("input", { type: "checkbox", value: field.name, checked: columns.includes(field.name), onchange: (event) => this.toggle(event.target, columns) }), field.title);
    const open = this.list.contains(document.activeElement) ? document.activeElement.value : null;
    this.list.replaceChildren(el("legend", { class: "unseen" }, "Columns"), ...KINDS.flatMap(([kind, title]) => {
      const found = [...fields.values()].filter((field) => field.kind === kind && field.name !== "name");
      return found.length ? [el("p", { class: "heading" }, title), ...found.map(box)] : [];
    }));
    if (open !== null) [...this.list.querySelectorAll("input")].find((input) => input.value === open)?.focus();
  }

  toggle(input, columns) {
    this.choose(input.checked ? [...columns, input.value] : columns.filter((name) => name !== input.value));
  }
}

export class Chips {
  constructor(remove) {
    this.remove = remove;
    this.element = el("ul", { class: "chips", "aria-label": "Filters" });
    this.shown = "";
  }

  show(where, fields) {
    const texts = where.map((text) => {
      const parsed = condition(text, fields);
      if (!parsed) return `${text} (no such field)`;
      return `${parsed.field.title} ${parsed.sign} ${parsed.wanted}${isMalformed(parsed) ? " (malformed)" : ""}`;
    });
    if (JSON.stringify(texts) === this.shown) return;
    this.shown = JSON.stringify(texts);
    refill(this.element, texts.map((text, place) => el("li", {}, text,
      el("button", { type: "button", "aria-label": `Remove the filter ${text}`, onclick: () => this.remove(place) }, "×"))));
  }
}
