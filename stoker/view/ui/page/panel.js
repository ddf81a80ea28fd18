// One chart with its heading and legend; it loads its points when it is visible, and again when there are more.
import { HEIGHT, hasPositive, options, table, uPlot } from "./chart.js";
import { el, popover, refill, say } from "./dom.js";
import { saveNumbers, savePicture } from "./export.js";
import { finite, MOST } from "./settings.js";
import { duration, number } from "./text.js";

const PAUSE = 1000; // milliseconds between two loadings of a plot, however fast its points grow
const ALL_POINTS = 20_000; // of a line in a CSV file: as many as the server sends

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) target.panel.setVisible(isIntersecting);
}, { rootMargin: "200px" });

const sized = new ResizeObserver((entries) => {
  for (const { target } of entries) target.panel.fit();
});

const sign = (lines) => JSON.stringify(lines.map(({ key, label, members }) => [key, label, members]));

export class Panel {
  /**
   * `lines`: [{ key, label, colour(), dash }]; `load(settings, signal, most, progress)` gives a Map of key to { x, y, low, high },
   * and calls `progress` with what there is while it waits for more;
   * `on` changes the settings; plots with the same `group` hover together. An `exact` chart (of learning rates) has
   * no log scale and no smoothing.
   */
  constructor({ title, note = "", unit = "", lines, exact = false, load, settings, group, on }) {
    Object.assign(this, { title, unit, lines, exact, load, settings, group, on, data: new Map(), hidden: new Set() });
    Object.assign(this, { chart: null, shape: "", stale: true, visible: false, loading: null, timer: 0, loaded: 0 });
    this.readout = el("span", { class: "readout" });
    this.note = el("small");
    this.message = el("p", { class: "message" });
    this.mount = el("div", { class: "chart", role: "img", "aria-label": title });
    this.mount.style.minHeight = `${HEIGHT}px`;
    this.mount.panel = this;
    this.enlarge = el("button", { type: "button", class: "quiet", "aria-label": `Enlarge ${title}`, onclick: () => on.enlarge(title) }, "⤢");
    this.legend = el("ul", { class: "legend" });
    this.element = el("section", { class: "panel", tabindex: "-1", "data-stop": true, "aria-label": title },
      el("header", {}, el("h3", {}, title, this.note), this.readout, el("span", { class: "tools" }, this.enlarge, this.menu())),
      this.mount, this.message, this.legend);
    this.element.panel = this;
    this.describe({ note, lines, load });
    this.applySettings();
    seen.observe(this.element);
    sized.observe(this.mount);
  }

  /** Takes other lines; they are loaded when the chart is visible. */
  update({ note = "", lines, load }) {
    if (sign(lines) === this.signed && note === this.note.textContent) return;
    this.describe({ note, lines, load });
    this.renew(true);
  }

  describe({ note, lines, load }) {
    Object.assign(this, { lines, load, signed: sign(lines), shape: "" });
    say(this.note, note);
    this.values = lines.map(() => el("span", { class: "value" }));
    this.entries = null; // made when the chart is visible: there may be hundreds of charts
    if (this.visible) this.drawLegend();
  }

  drawLegend() {
    this.entries ??= this.lines.map((line, place) => this.entry(line, place));
    refill(this.legend, this.entries);
  }

  /** The chart's own settings, and its files. */
  menu() {
    const end = (name) => el("input", { inputmode: "decimal", "aria-label": `${name} end of the y axis`, placeholder: "auto", autocomplete: "off",
      onchange: () => this.on.range(this.title, this.ends.map((input) => finite(input.value))) });
    this.ends = [end("lower"), end("upper")];
    this.order = el("select", { "aria-label": "Order of the legend", onchange: () => this.on.order(this.order.value) },
      [["", "as listed"], ["highest", "highest first"], ["lowest", "lowest first"]].map(([value, text]) => el("option", { value }, text)));
    return popover("⋯", { class: "quiet", "aria-label": `Options of ${this.title}` },
      el("div", { class: "options" }, el("span", {}, "y from"), this.ends[0], el("span", {}, "y to"), this.ends[1], el("span", {}, "Legend"), this.order,
        el("button", { type: "button", onclick: () => this.savePicture() }, "Save PNG"), el("button", { type: "button", onclick: () => this.saveNumbers() }, "Save CSV")));
  }

  applySettings() {
    const { ranges, big, order } = this.settings;
    this.ends.forEach((input, place) => { input.value = ranges.get(this.title)?.[place] ?? ""; });
    this.order.value = order;
    const isBig = big === this.title;
    this.element.classList.toggle("big", isBig);
    say(this.enlarge, isBig ? "×" : "⤢");
    this.enlarge.setAttribute("aria-label", `${isBig ? "Close" : "Enlarge"} ${this.title}`);
  }

  savePicture() {
    const style = getComputedStyle(this.element);
    const legend = this.drawn().map(({ colour, dash, label }) => ({ colour: colour(), dash, label }));
    if (this.chart) savePicture(this.title, this.chart, legend, { paper: style.backgroundColor, ink: style.color, font: style.fontFamily });
  }

  async saveNumbers() {
    const found = await this.load(this.settings, new AbortController().signal, ALL_POINTS);
    saveNumbers(this.title, this.settings.by, this.drawn().map(({ key, label }) => ({ label, ...found.get(key) })));
  }

  entry(line, place) {
    const swatch = el("i", { class: "swatch" });
    swatch.style.borderTopColor = line.colour();
    swatch.style.borderTopStyle = line.dash.length ? "dashed" : "solid";
    const button = el("button", { type: "button", "aria-pressed": String(!this.hidden.has(line.key)), title: "show or hide this line" },
      swatch, el("span", { class: "label" }, line.label), this.values[place]);
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      this.hidden[shown ? "delete" : "add"](line.key);
      this.draw();
    });
    return el("li", {}, button);
  }

  /** Changes settings; only another range or another x axis needs other points. */
  set(settings) {
    const old = this.settings;
    this.settings = settings;
    this.applySettings();
    if (["by", "from", "to"].some((name) => old[name] !== settings[name])) this.renew(true);
    else this.draw();
  }

  /** Schedules loading the points again once the chart is visible, at a limited rate. */
  renew(now = false) {
    this.stale = true;
    if (!this.visible) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetch(), now ? 0 : Math.max(0, this.loaded + PAUSE - Date.now()));
  }

  setVisible(visible) {
    this.visible = visible;
    if (visible && !this.entries) this.drawLegend();
    if (visible && this.stale) this.renew(true);
  }

  async fetch() {
    this.loading?.abort();
    const loading = new AbortController();
    this.loading = loading;
    this.stale = false;
    this.loaded = Date.now();
    try {
      const progress = (data) => this.receive(data, loading.signal);
      progress(await this.load(this.settings, loading.signal, MOST, progress));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.stale = true;
      say(this.message, error.message);
    }
  }

  receive(data, signal) {
    if (signal.aborted) return;
    this.data = data;
    this.draw();
  }

  /** The lines that have points and are not hidden. */
  drawn() {
    return this.lines.filter(({ key }) => !this.hidden.has(key) && this.data.get(key)?.x.length)
      .map((line) => ({ ...line, ...this.data.get(line.key) }));
  }

  draw() {
    const lines = this.drawn();
    const positive = hasPositive(lines);
    const wantsLog = this.settings.log && !this.exact;
    const settings = { ...this.settings, log: wantsLog && positive, smoothing: this.exact ? 0 : this.settings.smoothing, y: this.settings.ranges.get(this.title) };
    const { log, smoothing, by, from, to, y } = settings;
    const shape = JSON.stringify([lines.map(({ key }) => key), log, smoothing > 0, by, from, to, y]);
    say(this.message, this.data.size && !lines.length ? "nothing to draw yet" : wantsLog && lines.length && !positive ? "no positive values for a logarithmic scale" : "");
    const data = table(lines, settings);
    this.lastValues();
    if (this.chart && shape === this.shape) {
      this.chart.setData(data);
    } else {
      this.shape = shape;
      this.chart?.destroy();
      this.chart = lines.length ? this.made(lines, settings, data) : null;
    }
    this.mount.dataset.points = String(lines.reduce((sum, { x }) => sum + x.length, 0));
  }

  made(lines, settings, data) {
    const on = { ...this.on, hover: (x, values) => this.hover(lines, x, values) };
    const labels = { x: settings.by, y: this.unit || this.title };
    return new uPlot(options(lines, settings, { ...this.size(), place: this.mount, key: this.group, on, labels }), data, this.mount);
  }

  hover(lines, x, values) {
    if (x === null) {
      this.lastValues();
      return;
    }
    say(this.readout, this.settings.by === "time" ? duration(x) : `${this.settings.by} ${number(x)}`);
    lines.forEach(({ key }, place) => {
      say(this.values[this.lines.findIndex((line) => line.key === key)], number(values[place]));
    });
  }

  /** Without a hovered position the legend shows each line's last value. */
  lastValues() {
    say(this.readout, "");
    const texts = this.lines.map(({ key, label }, place) => {
      const last = number(this.data.get(key)?.y.findLast((value) => value !== null));
      say(this.values[place], last);
      return `${label} ${last}`;
    });
    this.sortLegend();
    this.mount.setAttribute("aria-label", `${this.title}, newest: ${texts.join(", ")}`);
  }

  /** Puts the legend in order of the last values, if that is wanted. */
  sortLegend() {
    const sign = { highest: -1, lowest: 1 }[this.settings.order];
    const last = (place) => this.data.get(this.lines[place].key)?.y.findLast((value) => value !== null) ?? sign * Infinity;
    if (!this.entries) return;
    const places = this.entries.map((_, place) => place);
    if (sign) places.sort((a, b) => sign * (last(a) - last(b)) || a - b);
    places.forEach((place, rank) => { this.entries[place].style.order = String(rank); });
  }

  /** Draws again with the current theme's colors. */
  repaint() {
    this.describe({ note: this.note.textContent, lines: this.lines, load: this.load });
    this.draw();
  }

  size() {
    const height = this.element.classList.contains("big") ? this.mount.clientHeight : HEIGHT;
    return { width: Math.max(120, this.mount.clientWidth), height: Math.max(HEIGHT, height) };
  }

  fit() {
    const { width, height } = this.size();
    if (this.chart && (this.chart.width !== width || this.chart.height !== height)) this.chart.setSize({ width, height });
  }

  destroy() {
    clearTimeout(this.timer);
    this.loading?.abort();
    seen.unobserve(this.element);
    sized.unobserve(this.mount);
    this.chart?.destroy();
    this.chart = null;
  }
}
