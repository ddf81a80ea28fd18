// The charts of a view: a bar of settings, a grid of panels, and the keys for all of them.
import { el, say } from "./dom.js";
import { Panel } from "./panel.js";
import { moveRange, rangeText, SettingsBar, settingsOf } from "./settings.js";
import { count } from "./text.js";

const MOST_PANELS = 200; // further ones are found with the search

export class Plots {
  /** `change(changes, { replace })` changes the URL; `more` are additional controls. */
  constructor(change, { group, more = [] }) {
    Object.assign(this, { change, group, panels: new Map(), settings: settingsOf(new URLSearchParams()) });
    this.bar = new SettingsBar((changes) => change(changes, { replace: true }), more);
    this.grid = el("div", { class: "panels" });
    this.more = el("p", { class: "empty", role: "status" });
    this.on = {
      zoom: (from, to) => this.zoom(from, to),
      reset: () => this.reset(),
      enlarge: (title) => this.change({ big: title === this.settings.big ? "" : title }),
      order: (order) => this.change({ order }, { replace: true }),
      range: (title, range) => this.setRange(title, range),
    };
    this.repaint = () => this.panels.forEach((panel) => panel.repaint());
    window.addEventListener("themechange", this.repaint);
  }

  set(params) {
    this.settings = settingsOf(params);
    this.bar.show(this.settings);
    for (const panel of this.panels.values()) panel.set(this.settings);
  }

  /** Shows the first of these charts, [{ title, note, unit, lines, exact, load }], in this order; those with the same title are kept. */
  show(all) {
    const wanted = all.slice(0, MOST_PANELS);
    const titles = new Set(wanted.map(({ title }) => title));
    for (const [title, panel] of this.panels) {
      if (titles.has(title)) continue;
      panel.destroy();
      panel.element.remove();
      this.panels.delete(title);
    }
    wanted.forEach((each, place) => {
      const known = this.panels.get(each.title);
      if (known) known.update(each);
      else this.panels.set(each.title, new Panel({ ...each, settings: this.settings, group: this.group, on: this.on }));
      const { element } = this.panels.get(each.title);
      if (this.grid.children[place] !== element) this.grid.insertBefore(element, this.grid.children[place] ?? null);
    });
    this.more.remove();
    if (wanted.length === all.length) return;
    say(this.more, `${count(all.length - wanted.length)} more charts are not shown: search for their names.`);
    this.grid.append(this.more);
  }

  zoom(from, to) {
    this.change({ from: precise(from), to: precise(to) });
  }

  reset() {
    if (this.settings.from !== null) this.change({ from: "", to: "" });
  }

  setRange(title, range) {
    const ranges = new Map([...this.settings.ranges, [title, range]]);
    this.change({ y: [...ranges].filter(([, ends]) => ends.some((end) => end !== null)).map(([name, ends]) => rangeText(name, ends)) }, { replace: true });
  }

  key(key) {
    if (key === "Escape" && this.settings.big !== null) this.change({ big: "" });
    else if (key === "f") this.on.enlarge(this.focused()?.title ?? "");
    else if (key === "l") this.bar.toggleLog();
    else if (key === "s") this.bar.toggleSmoothing();
    else if (key === "Escape" && this.settings.from !== null) this.reset();
    else if (["+", "-", "ArrowLeft", "ArrowRight"].includes(key)) return this.move(key);
    else return false;
    return true;
  }

  move(key) {
    const panel = this.focused() ?? this.panels.values().next().value;
    const scale = panel?.chart?.scales.x;
    if (!scale) return false;
    this.whole = this.settings.from === null ? [scale.min, scale.max] : (this.whole ?? [0, Infinity]);
    const [from, to] = moveRange(key, [scale.min, scale.max], this.whole) ?? ["", ""];
    if (from === "") this.reset();
    else this.zoom(from, to);
    return true;
  }

  focused() {
    return document.activeElement?.closest?.(".panel")?.panel;
  }

  destroy() {
    window.removeEventListener("themechange", this.repaint);
    this.panels.forEach((panel) => panel.destroy());
    this.panels.clear();
  }
}

const precise = (x) => String(Number(x.toPrecision(8)));
