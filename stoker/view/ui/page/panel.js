// One chart with its heading and legend; it loads its points when it is visible, and again when there are more.
import { el, say } from "./dom.js";
import { HEIGHT, hasPositive, options, table, uPlot } from "./chart.js";
import { duration, number } from "./text.js";

const PAUSE = 1000; // milliseconds between two loadings of a plot, however fast its points grow

const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) target.panel.setVisible(isIntersecting);
}, { rootMargin: "200px" });

const sized = new ResizeObserver((entries) => {
  for (const { target } of entries) target.panel.fit();
});

export class Panel {
  /**
   * `lines`: [{ key, label, colour(), dash }]; `load(settings, signal)` gives a Map of key to { x, y };
   * `on` has `zoom(from, to)` and `reset()`; plots with the same `group` hover together.
   */
  constructor({ title, note = "", lines, load, settings, group, on }) {
    Object.assign(this, { title, lines, load, settings, group, on, data: new Map(), hidden: new Set() });
    Object.assign(this, { chart: null, shape: "", stale: true, visible: false, loading: null, timer: 0, loaded: 0 });
    this.readout = el("span", { class: "readout" });
    this.values = lines.map(() => el("span", { class: "value" }));
    this.message = el("p", { class: "message" });
    this.mount = el("div", { class: "chart", role: "img", "aria-label": title });
    this.mount.style.minHeight = `${HEIGHT}px`;
    this.mount.panel = this;
    this.element = el("section", { class: "panel", tabindex: "-1", "data-stop": true, "aria-label": title },
      el("header", {}, el("h3", {}, title, note && el("small", {}, note)), this.readout),
      this.mount, this.message, el("ul", { class: "legend" }, lines.map((line, place) => this.entry(line, place))));
    this.element.panel = this;
    seen.observe(this.element);
    sized.observe(this.mount);
  }

  entry(line, place) {
    const swatch = el("i", { class: "swatch" });
    swatch.style.borderTopColor = line.colour();
    swatch.style.borderTopStyle = line.dash.length ? "dashed" : "solid";
    const button = el("button", { type: "button", "aria-pressed": "true", title: "show or hide this line" },
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
    if (visible && this.stale) this.renew(true);
  }

  async fetch() {
    this.loading?.abort();
    const loading = new AbortController();
    this.loading = loading;
    this.stale = false;
    this.loaded = Date.now();
    try {
      this.data = await this.load(this.settings, loading.signal);
      if (loading.signal.aborted) return;
      this.draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.stale = true;
      say(this.message, error.message);
    }
  }

  /** The lines that have points and are not hidden. */
  drawn() {
    return this.lines.filter(({ key }) => !this.hidden.has(key) && this.data.get(key)?.x.length)
      .map((line) => ({ ...line, ...this.data.get(line.key) }));
  }

  draw() {
    const lines = this.drawn();
    const positive = hasPositive(lines);
    const settings = { ...this.settings, log: this.settings.log && positive };
    const { log, smoothing, by, from, to } = settings;
    const shape = JSON.stringify([lines.map(({ key }) => key), log, smoothing > 0, by, from, to]);
    say(this.message, this.data.size && !lines.length ? "nothing to draw yet" : this.settings.log && lines.length && !positive ? "no positive values for a logarithmic scale" : "");
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
    const width = Math.max(120, this.mount.clientWidth);
    return new uPlot(options(lines, settings, { width, place: this.mount, key: this.group, on }), data, this.mount);
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
    this.mount.setAttribute("aria-label", `${this.title}, newest: ${texts.join(", ")}`);
  }

  /** Draws again with the current theme's colors. */
  repaint() {
    this.shape = "";
    this.element.querySelectorAll(".swatch").forEach((swatch, place) => {
      swatch.style.borderTopColor = this.lines[place].colour();
    });
    this.draw();
  }

  fit() {
    const width = Math.max(120, this.mount.clientWidth);
    if (this.chart && this.chart.width !== width) this.chart.setSize({ width, height: HEIGHT });
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
