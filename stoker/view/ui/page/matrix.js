// A matrix of a run (a confusion matrix) as colors with a scale, and a slider over the epochs.
import * as api from "./api.js";
import { isDark } from "./colours.js";
import { el, say } from "./dom.js";
import { save } from "./export.js";
import { count, number } from "./text.js";

const [GAP, SCALE, TICKS, TITLE, LARGEST] = [6, 14, 44, 20, 46]; // CSS pixels: between parts, the color scale, its numbers, a title, a cell
const SMALLEST_TEXT = 24; // CSS pixels of a cell that shows its number

export class MatrixPanel {
  constructor(id, name) {
    Object.assign(this, { id, name, epochs: [], at: null, matrix: null, cell: 0, left: 0, top: 0, loaded: "" });
    this.readout = el("span", { class: "readout" });
    this.message = el("p", { class: "message" });
    this.canvas = el("canvas", { role: "img", "aria-label": name });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => say(this.readout, ""));
    this.mount = el("div", { class: "chart" }, this.canvas);
    this.share = el("select", { "aria-label": `Values of ${name}`, onchange: () => this.draw() },
      [["true", "share of the true label"], ["count", "counts"]].map(([value, text]) => el("option", { value }, text)));
    this.slider = el("input", { type: "range", min: "0", step: "1", "aria-label": `Epoch of ${name}`, oninput: () => this.move() });
    this.place = el("output", {});
    this.element = el("section", { class: "panel matrix", "aria-label": name },
      el("header", {}, el("h3", {}, name), this.readout, el("span", { class: "tools" },
        el("button", { type: "button", class: "quiet", "aria-label": `Save ${name} as PNG`, onclick: () => this.canvas.toBlob((blob) => save(blob, `${name}.png`)) }, "PNG"))),
      this.mount, this.message, el("div", { class: "bar" }, this.share, el("label", { class: "slider" }, "epoch", this.slider, this.place)));
    this.sized = new ResizeObserver(() => this.draw());
    this.sized.observe(this.mount);
    this.repaint = () => this.draw();
    window.addEventListener("themechange", this.repaint);
  }

  /** Shows the epoch that was chosen, else the best one; loads it if it is not there yet. */
  async show(epochs) {
    this.epochs = epochs;
    this.slider.max = String(epochs.length - 1);
    this.slider.disabled = epochs.length < 2;
    const wanted = JSON.stringify([this.at, this.at === null && epochs.length]); // a new epoch may be the best one
    if (wanted === this.loaded) return;
    this.loaded = wanted;
    try {
      const found = await api.matrix(this.id, this.name, this.at);
      if (wanted !== this.loaded) return;
      this.matrix = found;
      this.slider.value = String(epochs.indexOf(found.epoch));
      say(this.place, `${count(found.epoch)}${this.at === null ? " (best)" : ""}`);
      say(this.message, "");
      this.draw();
    } catch (error) {
      this.loaded = "";
      say(this.message, error.message);
    }
  }

  move() {
    this.at = this.epochs[Number(this.slider.value)];
    this.show(this.epochs);
  }

  /** The rows as they are drawn: counts, or shares of each row. */
  values() {
    const { values } = this.matrix;
    if (this.share.value === "count") return values;
    return values.map((row) => {
      const sum = row.reduce((a, b) => a + b, 0);
      return row.map((each) => (sum > 0 ? each / sum : 0));
    });
  }

  labels() {
    const { labels, values } = this.matrix;
    return values.map((_, place) => labels[place] ?? String(place));
  }

  draw() {
    const width = this.mount.clientWidth;
    if (!this.matrix || !width) return;
    const [values, labels] = [this.values(), this.labels()];
    const size = values.length;
    const style = getComputedStyle(this.mount);
    const pen = this.canvas.getContext("2d");
    const font = (pixels) => `${pixels}px ${style.fontFamily}`;
    pen.font = font(11);
    const longest = Math.min(90, Math.max(...labels.map((label) => pen.measureText(label).width)));
    this.left = TITLE + longest + GAP;
    this.cell = Math.max(1, Math.min(LARGEST, (width - this.left - GAP - SCALE - TICKS) / size));
    this.top = 2;
    const side = this.cell * size;
    const wide = this.cell > longest + 4; // labels below fit side by side, else they are turned
    const height = this.top + side + GAP + (wide ? 12 : longest) + TITLE + 4;
    const pixels = window.devicePixelRatio || 1;
    Object.assign(this.canvas, { width: Math.round(width * pixels), height: Math.round(height * pixels) });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    pen.scale(pixels, pixels);
    const highest = this.share.value === "count" ? Math.max(1, ...values.flat()) : 1;
    values.forEach((row, y) => row.forEach((each, x) => {
      pen.fillStyle = colour(each / highest);
      pen.fillRect(this.left + x * this.cell, this.top + y * this.cell, this.cell - (this.cell > 6 ? 1 : 0), this.cell - (this.cell > 6 ? 1 : 0));
    }));
    pen.textBaseline = "middle";
    if (this.cell >= SMALLEST_TEXT) this.numbers(pen, values, highest, font(Math.min(12, this.cell / 3)));
    pen.fillStyle = style.color;
    pen.font = font(11);
    const every = Math.max(1, Math.ceil(13 / this.cell)); // labels that do not touch each other
    labels.forEach((label, place) => {
      if (place % every) return;
      const middle = (place + 0.5) * this.cell;
      pen.textAlign = "right";
      pen.fillText(shortened(label), this.left - GAP, this.top + middle, longest);
      pen.save();
      pen.translate(this.left + middle, this.top + side + GAP);
      if (!wide) pen.rotate(-Math.PI / 2);
      pen.textAlign = wide ? "center" : "right";
      pen.fillText(shortened(label), 0, wide ? 6 : 0, wide ? this.cell : longest);
      pen.restore();
    });
    pen.textAlign = "center";
    pen.fillText("predicted label", this.left + side / 2, height - 8);
    pen.save();
    pen.translate(8, this.top + side / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText("true label", 0, 0);
    pen.restore();
    this.drawScale(pen, this.left + side + 2 * GAP, side, highest);
    this.canvas.setAttribute("aria-label", this.describe(values));
  }

  numbers(pen, values, highest, font) {
    pen.font = font;
    pen.textAlign = "center";
    values.forEach((row, y) => row.forEach((each, x) => {
      pen.fillStyle = isDark() !== each / highest > 0.55 ? "#ffffff" : "#1c1e21";
      const text = this.share.value === "count" ? number(each) : each ? each.toFixed(2) : "0";
      pen.fillText(text, this.left + (x + 0.5) * this.cell, this.top + (y + 0.5) * this.cell, this.cell - 4);
    }));
  }

  drawScale(pen, x, side, highest) {
    for (let y = 0; y < side; y++) {
      pen.fillStyle = colour(1 - y / side);
      pen.fillRect(x, this.top + y, SCALE, 1.5);
    }
    pen.fillStyle = getComputedStyle(this.mount).color;
    pen.textAlign = "left";
    for (const [share, down] of [[1, 5], [0.5, 0], [0, -5]]) pen.fillText(number(share * highest), x + SCALE + 4, this.top + (1 - share) * side + down);
  }

  describe(values) {
    const sum = (row) => row.reduce((a, b) => a + b, 0);
    const right = sum(this.matrix.values.map((row, place) => row[place])) / (sum(this.matrix.values.map(sum)) || 1);
    return `${this.name}, epoch ${this.matrix.epoch}: ${values.length} × ${values.length} labels, ${number(100 * right)} % on the diagonal`;
  }

  hover(event) {
    if (!this.matrix) return;
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [(event.clientX - left - this.left) / this.cell, (event.clientY - top - this.top) / this.cell].map(Math.floor);
    const given = this.matrix.values[y]?.[x];
    const labels = this.labels();
    say(this.readout, given === undefined ? "" : `true ${shortened(labels[y])}, predicted ${shortened(labels[x])}: ${number(given)}`);
  }

  destroy() {
    this.sized.disconnect();
    window.removeEventListener("themechange", this.repaint);
  }
}

const shortened = (label) => (label.length > 16 ? `${label.slice(0, 15)}…` : label);

/** From the page's background to the blue of training curves (a lighter one on dark). */
function colour(share) {
  const [from, to] = isDark() ? [[32, 38, 45], [108, 189, 240]] : [[241, 245, 248], [0, 82, 138]];
  return `rgb(${from.map((part, place) => Math.round(part + (to[place] - part) * Math.min(1, Math.max(0, share)))).join(" ")})`;
}
