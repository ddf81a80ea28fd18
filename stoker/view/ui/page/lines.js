// The rows of the list; kept between drawings, so that focus, checkbox and pointer stay.
import { link } from "./address.js";
import { el, refill, say } from "./dom.js";
import { badge, Progress } from "./state.js";

export class Lines {
  /** `pick(id, picked)` is called for a checkbox. */
  constructor(pick) {
    Object.assign(this, { pick, lines: new Map() });
  }

  /** Forgets the rows of runs that are gone. */
  keep(rows) {
    for (const id of this.lines.keys()) if (!rows.has(id)) this.lines.delete(id);
  }

  /** The row of a run with these columns; `look` is how its curves are drawn, if they are. */
  line(row, fields, { picked, look }) {
    const line = this.lines.get(row.id) ?? this.made(row);
    line.pick.checked = picked;
    line.element.classList.toggle("picked", picked);
    line.swatch.hidden = !look;
    if (look) line.swatch.style.borderTopColor = look.colour();
    if (look) line.swatch.style.borderTopStyle = look.dash.length ? "dashed" : "solid";
    const columns = fields.map(({ name }) => name).join("\n");
    if (row !== line.row || columns !== line.columns) {
      Object.assign(line, { row, columns });
      say(line.open, row.title || row.id);
      line.open.title = row.note ?? "";
      line.problem.hidden = !row.problem;
      say(line.problem, row.problem ? `⚠ ${row.problem}` : "");
      refill(line.about, row.title && el("small", {}, row.id), row.archived && el("small", {}, "archived"), (row.tags ?? []).map((tag) => el("small", { class: "tag" }, tag)));
      refill(line.element, line.fixed, fields.map((field) => cell(row, field, line)));
    }
    return line.element;
  }

  made(row) {
    const pick = el("input", { type: "checkbox", "aria-label": `Compare ${row.name}`, onchange: () => this.pick(row.id, pick.checked) });
    const open = el("a", { href: link("run", row.id), "data-stop": true }, row.id);
    const [swatch, about, problem] = [el("i", { class: "swatch" }), el("span", { class: "about" }), el("small", { class: "problem", hidden: true })];
    const fixed = [el("td", { class: "pick" }, pick), el("th", { scope: "row" }, swatch, open, about, problem)];
    const line = { pick, open, swatch, about, problem, fixed, element: el("tr", { "data-id": row.id }, fixed), progress: new Progress(`Progress of ${row.name}`) };
    this.lines.set(row.id, line);
    return line;
  }
}

function cell(row, field, line) {
  const text = field.show(row);
  const attributes = { class: `${field.numeric ? "number" : ""} of-${field.kind === "run" ? field.name : field.kind}`, "data-label": field.title };
  if (field.name === "state") return el("td", attributes, badge(row.state, row.reason));
  if (field.name === "best" && row.best) {
    const [number, ...name] = text.split(" ");
    return el("td", attributes, el("span", {}, number, el("small", {}, name.join(" "))));
  }
  if (field.name !== "progress") return el("td", attributes, text);
  line.progress.show(row.state === "finished" ? null : row.fraction, text); // a full bar adds nothing
  return el("td", attributes, line.progress.element);
}
