// What a run has logged besides numbers: images, histograms, texts, tables and sounds, with a slider over the updates.
import * as api from "./api.js";
import { el, refill, say, svg } from "./dom.js";
import { bytes, count, number, value } from "./text.js";

const MOST_ROWS = 200; // of a table
const SMALL = 256; // pixels; a narrower image is shown larger, with its pixels
const MOST_LETTERS = 100_000; // of a text
const [WIDTH, HEIGHT, LEFT, BOTTOM] = [480, 220, 46, 22]; // a histogram in SVG units, and the space for its axes

export class Media {
  constructor(id) {
    Object.assign(this, { id, media: [], at: null, cards: new Map(), updates: [] });
    this.slider = el("input", { type: "range", min: "0", step: "1", "aria-label": "Update", oninput: () => this.move(Number(this.slider.value)) });
    this.place = el("output", {});
    this.bar = el("div", { class: "bar" }, el("label", { class: "slider" }, "update", this.slider, this.place));
    this.grid = el("div", { class: "panels" });
    this.empty = el("div", { class: "empty" }, "The run has logged no media. In a callback:", el("code", {}, "ctx.log_image(\"samples\", images)"),
      "There are also log_histogram, log_text, log_table, log_figure and log_audio.");
    this.element = el("section", { class: "media" }, this.bar, this.grid, this.empty);
  }

  /** Shows the newest media, or those of the update that the slider is at. */
  show({ media }) {
    this.media = media;
    this.updates = [...new Set(media.map(({ update }) => update))].sort((a, b) => a - b);
    const chosen = this.at === null ? -1 : this.updates.indexOf(this.at);
    const place = chosen < 0 ? this.updates.length - 1 : chosen;
    this.slider.max = String(Math.max(0, this.updates.length - 1));
    this.slider.value = String(place);
    this.empty.hidden = media.length > 0;
    this.bar.hidden = this.updates.length < 2;
    this.draw(place);
  }

  /** At its end the slider follows new media. */
  move(place) {
    this.at = place === this.updates.length - 1 ? null : this.updates[place];
    this.draw(place);
  }

  draw(place) {
    const now = this.updates[place];
    say(this.place, now === undefined ? "" : count(now));
    this.slider.setAttribute("aria-valuetext", `update ${now}`);
    const names = [...new Set(this.media.map(({ name }) => name))];
    refill(this.grid, names.map((name) => {
      if (!this.cards.has(name)) this.cards.set(name, new Card(this.id, name));
      const card = this.cards.get(name);
      card.show(this.media.findLast((each) => each.name === name && each.update <= now));
      return card.element;
    }));
  }
}

/** One name: what was logged at an update, or last before it. */
class Card {
  constructor(id, name) {
    Object.assign(this, { id, shown: "" });
    this.place = el("span", { class: "readout" });
    this.body = el("div", { class: "content" });
    this.caption = el("p", { class: "message" });
    const enlarge = el("button", { type: "button", class: "quiet", "aria-label": `Enlarge ${name}`, onclick: () => {
      say(enlarge, this.element.classList.toggle("big") ? "×" : "⤢");
    } }, "⤢");
    this.element = el("section", { class: "panel", "aria-label": name },
      el("header", {}, el("h3", {}, name), this.place, el("span", { class: "tools" }, enlarge)), this.body, this.caption);
  }

  async show(entry) {
    const shown = JSON.stringify([entry?.file, entry?.time]);
    if (shown === this.shown) return;
    this.shown = shown;
    say(this.place, entry ? `update ${count(entry.update)}${entry.epoch ? `, epoch ${count(entry.epoch)}` : ""}` : "");
    say(this.caption, typeof entry?.caption === "string" ? entry.caption : "");
    if (!entry) {
      refill(this.body, el("p", { class: "empty" }, "Not logged yet at this update."));
      return;
    }
    try {
      const content = await SHOW[entry.type](api.mediaUrl(this.id, entry.file), entry, () => api.media(this.id, entry.file));
      if (shown === this.shown) refill(this.body, content);
    } catch (error) {
      if (shown === this.shown) refill(this.body, el("p", { class: "problem" }, error instanceof SyntaxError ? "This file is damaged." : error.message));
    }
  }
}

/** How each type is shown. Texts and cells become text nodes; the browser draws nothing for a file that is not an image. */
const SHOW = {
  image: (url, { caption, name, width }) => {
    const picture = el("img", { src: url, alt: caption || name, class: width < SMALL ? "small" : null });
    picture.addEventListener("error", () => picture.replaceWith(el("p", { class: "problem" }, "This image can't be shown.")));
    return picture;
  },
  audio: (url, { seconds }) => [el("audio", { controls: true, preload: "metadata", src: url }), Number.isFinite(seconds) && el("small", {}, `${number(seconds)} s`)],
  text: async (_, entry, read) => {
    const text = await read();
    const rest = text.length - MOST_LETTERS;
    return [el("pre", { tabindex: "0", "aria-label": entry.name }, text.slice(0, MOST_LETTERS)), rest > 0 && el("small", {}, `${bytes(rest)} more`)];
  },
  table: async (_, entry, read) => drawTable(JSON.parse(await read())),
  histogram: async (_, entry, read) => drawHistogram(JSON.parse(await read()), entry),
};

function drawTable({ columns, rows }) {
  if (!Array.isArray(columns) || !Array.isArray(rows)) throw new SyntaxError();
  const cells = (row) => (Array.isArray(row) ? row : [row]).map((cell) => el("td", { class: typeof cell === "number" ? "number" : "text" }, typeof cell === "number" ? number(cell) : value(cell)));
  const rest = rows.length - MOST_ROWS;
  return [el("div", { class: "scroll" }, el("table", { class: "logged" }, el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, value(name))))),
    el("tbody", {}, rows.slice(0, MOST_ROWS).map((row) => el("tr", {}, cells(row)))))), rest > 0 && el("small", {}, `${count(rest)} more rows`)];
}

function drawHistogram({ edges, counts }, { mean, name }) {
  const sound = Array.isArray(edges) && Array.isArray(counts) && edges.length === counts.length + 1 && counts.length > 0 && [...edges, ...counts].every(Number.isFinite);
  if (!sound) throw new SyntaxError();
  const [low, high, most] = [edges[0], edges.at(-1), Math.max(1, ...counts)];
  const x = (edge) => LEFT + ((edge - low) / (high - low || 1)) * (WIDTH - LEFT - 8);
  const y = (each) => HEIGHT - BOTTOM - (each / most) * (HEIGHT - BOTTOM - 12);
  const bars = counts.map((each, place) => {
    const width = Math.max(0.5, x(edges[place + 1]) - x(edges[place]) - 0.5);
    return svg("rect", { x: x(edges[place]), width, y: y(each), height: Math.max(0, HEIGHT - BOTTOM - y(each)) },
      svg("title", {}, `${number(edges[place])} to ${number(edges[place + 1])}: ${count(each)}`));
  });
  const middle = (low + high) / 2;
  const ticks = [[low, "start"], [middle, "middle"], [high, "end"]].map(([edge, anchor]) => svg("text", { x: x(edge), y: HEIGHT - 6, "text-anchor": anchor }, number(edge)));
  const total = counts.reduce((a, b) => a + b, 0);
  return [svg("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name}: ${count(total)} values from ${number(low)} to ${number(high)}` },
    svg("line", { x1: LEFT, x2: WIDTH - 8, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }), bars, ticks,
    svg("text", { x: LEFT - 6, y: y(most) + 4, "text-anchor": "end" }, count(most)), svg("text", { x: LEFT - 6, y: HEIGHT - BOTTOM, "text-anchor": "end" }, "0")),
  el("small", {}, [`${count(total)} values`, Number.isFinite(mean) && `mean ${number(mean)}`].filter(Boolean).join(", "))];
}
