// One run: status, curves, matrices, media, epochs, config, system metrics, log and checkpoints.
import { archive, edit, remove } from "./annotate.js";
import * as api from "./api.js";
import { ofNames } from "./colours.js";
import { Control } from "./control.js";
import * as details from "./details.js";
import { copyable, el, refill, say } from "./dom.js";
import { Epochs } from "./epochs.js";
import { MatrixPanel } from "./matrix.js";
import { Media } from "./media.js";
import { rank } from "./overlay.js";
import { Plots } from "./plots.js";
import { badge, Progress } from "./state.js";
import { StatusPane } from "./status.js";
import { shell } from "./text.js";

const TABS = [["curves", "Curves"], ["media", "Media"], ["epochs", "Epochs"], ["config", "Config"], ["system", "System"], ["log", "Log"], ["checkpoints", "Checkpoints"]];
const PAUSE = 1500; // milliseconds between two readings of the details while a run talks
const MOST_LINES = 12; // in one plot; more can't be told apart

export class RunView {
  constructor(app, { id }) {
    Object.assign(this, { app, id, detail: null, early: [], tab: "", timer: 0 });
    this.heading = el("h1", {}, id);
    this.about = el("p", { class: "about", hidden: true });
    this.resume = el("p", { class: "resume", hidden: true });
    this.state = el("span");
    this.reason = el("p", { class: "reason", hidden: true });
    this.problem = el("p", { class: "problem", role: "status", hidden: true });
    this.control = new Control(id);
    this.progress = new Progress("Progress of the run");
    this.status = new StatusPane();
    this.warnings = el("div");
    this.epochs = new Epochs(id);
    this.media = new Media(id);
    this.matrices = new Map();
    this.matrixGrid = el("div", { class: "panels" });
    const again = () => this.readAgain();
    this.archive = el("button", { type: "button", onclick: () => archive([this.detail.row], !this.detail.row.archived, again) });
    this.remove = el("button", { type: "button", onclick: () => remove([this.detail.row], () => app.go(app.list)) }, "Delete");
    this.changes = el("span", { class: "actions", hidden: true }, el("button", { type: "button", onclick: () => edit(this.detail.row, again) }, "Edit"), this.archive, this.remove);
    this.none = el("p", { class: "empty" });
    this.search = el("input", { type: "search", "aria-label": "Search metrics", placeholder: "search metrics", autocomplete: "off",
      spellcheck: "false", oninput: () => app.change({ q: this.search.value }, { replace: true }) });
    this.plots = new Plots((changes, how) => app.change(changes, how), { group: `run ${id}`, more: [this.search] });
    this.charts = el("div", { class: "panels" }, this.plots.grid, this.matrixGrid);
    this.tabs = new Map(TABS.map(([name, title]) => [name, el("button", { type: "button", role: "tab", id: `tab-${name}`,
      "aria-controls": "tab-body", onclick: () => app.change({ tab: name === "curves" ? "" : name }) }, title)]));
    this.body = el("div", { id: "tab-body", role: "tabpanel" });
    this.element = el("div", { class: "run" },
      el("div", { class: "title" }, this.heading, this.state, el("span", { class: "actions" }, this.control.buttons, this.changes)), this.about, this.control.status, this.reason, this.resume, this.problem,
      this.progress.element, this.status.element, this.warnings,
      el("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the run", onkeydown: (event) => this.walkTabs(event) }, [...this.tabs.values()]),
      this.body);
  }

  title = () => this.detail?.row.title || this.id;
  ids = () => [this.id];

  update({ params }) {
    this.query = (params.get("q") ?? "").toLowerCase();
    if (this.search.value.toLowerCase() !== this.query) this.search.value = this.query;
    this.plots.set(params);
    const tab = this.tabs.has(params.get("tab")) ? params.get("tab") : "curves";
    for (const [name, button] of this.tabs) {
      button.setAttribute("aria-selected", String(name === tab));
      button.tabIndex = name === tab ? 0 : -1;
    }
    this.tab = tab;
    this.body.setAttribute("aria-labelledby", `tab-${tab}`);
    this.draw();
  }

  async refresh(signal) {
    this.detail = await api.run(this.id, signal);
    this.plots.panels.forEach((panel) => panel.renew(true));
    this.draw();
    for (const news of this.early.splice(0)) this.receive("run", news);
  }

  receive(kind, news) {
    if (kind !== "run" || news.id !== this.id) return;
    if (!this.detail) {
      this.early.push(news); // they may be newer than the answer that is on its way
      return;
    }
    const { row, status, updated, messages, media, reset, problem } = news;
    Object.assign(this.detail, { row: { ...this.detail.row, ...row }, status: { ...this.detail.status, ...status }, problem });
    const known = new Set(this.detail.names); // matrices are not among them, so they are always read again
    if (reset || messages.length || media !== this.detail.media.length || updated.some((name) => !known.has(name))) this.readAgain();
    const names = new Set(updated);
    for (const panel of this.plots.panels.values()) if (panel.lines.some(({ key }) => names.has(key))) panel.renew();
    if (this.tab === "epochs" && updated.length) this.epochs.renew(this.detail);
    this.drawHead();
  }

  /** Reads what events do not include: the log, the checkpoints, new names. */
  readAgain() {
    if (this.timer) return;
    this.timer = setTimeout(async () => {
      this.timer = 0;
      try {
        this.detail = await api.run(this.id);
        this.draw();
      } catch {
        // the heading shows already that the run is gone, or the top of the page that the server is
      }
    }, PAUSE);
  }

  draw() {
    if (!this.detail) return;
    this.drawHead();
    const plotted = this.tab === "curves" || this.tab === "system";
    this.plots.show(plotted ? this.wanted() : []);
    if (plotted) this.drawPlots();
    else if (this.tab === "media") {
      if (this.media.element.parentNode !== this.body) refill(this.body, this.media.element);
      this.media.show(this.detail);
    } else if (this.tab !== "epochs") refill(this.body, details[this.tab](this.detail));
    else {
      if (this.epochs.element.parentNode !== this.body) refill(this.body, this.epochs.element);
      this.epochs.renew(this.detail);
    }
  }

  drawPlots() {
    if (this.charts.parentNode !== this.body) refill(this.body, this.plots.bar.element, this.charts);
    this.drawMatrices();
    this.none.remove();
    if (this.plots.panels.size || this.matrixGrid.childElementCount) return;
    refill(this.none, this.query ? "No metric has such a name." : this.tab === "system" ? details.meters() : "No metrics yet.");
    this.plots.grid.append(this.none);
  }

  drawMatrices() {
    const found = [...api.mapOf(this.detail.matrices)].filter(([name]) => this.tab === "curves" && name.toLowerCase().includes(this.query))
      .sort(([a], [b]) => rank(a) - rank(b));
    refill(this.matrixGrid, found.map(([name, epochs]) => {
      if (!this.matrices.has(name)) this.matrices.set(name, new MatrixPanel(this.id, name));
      this.matrices.get(name).show(epochs);
      return this.matrices.get(name).element;
    }));
  }

  /** The title, tags and note, and the command that continues a run that did not finish. */
  drawAbout({ row, path }) {
    say(this.heading, row.title || this.id);
    document.title = `${this.title()} · stoker`;
    this.changes.hidden = !this.app.control;
    this.remove.hidden = row.state === "running";
    say(this.archive, row.archived ? "Unarchive" : "Archive");
    const shown = JSON.stringify([row.title, row.tags, row.note, row.archived]);
    if (this.shownAbout !== shown) {
      this.shownAbout = shown;
      refill(this.about, row.title && el("small", {}, this.id), row.archived && el("small", {}, "archived"), row.tags.map((tag) => el("small", { class: "tag" }, tag)), row.note && el("span", { class: "note" }, row.note));
      this.about.hidden = !this.about.childNodes.length;
    }
    const command = ["stopped", "failed", "died"].includes(row.state) ? shell(["stoker", "resume", path]) : "";
    if (this.shownCommand === command) return;
    this.shownCommand = command;
    this.resume.hidden = !command;
    refill(this.resume, command && ["To continue it: ", copyable(command, "the command")]);
  }

  drawHead() {
    const { row, status, problem, messages } = this.detail;
    this.drawAbout(this.detail);
    const shown = `${row.state} ${row.reason}`;
    if (this.shownState !== shown) {
      this.shownState = shown;
      refill(this.state, badge(row.state, row.reason));
      this.reason.hidden = !row.reason;
      say(this.reason, row.reason ?? "");
    }
    const wrong = (problem ?? "").split("; ").filter((each) => each && each !== row.reason).join("; ");
    this.problem.hidden = !wrong;
    say(this.problem, wrong);
    this.control.show(this.detail, this.app.control);
    this.progress.show(status.fraction, "");
    this.progress.element.hidden = !Number.isFinite(status.fraction) || row.state === "finished";
    this.status.show(this.detail);
    const warnings = messages.filter(({ kind }) => kind === "warning");
    if (this.shownWarnings !== warnings.length) {
      this.shownWarnings = warnings.length;
      refill(this.warnings, warnings.length > 0 && details.warnings(warnings));
    }
  }

  /** The charts of the open tab: one per group of metrics, system metrics apart. */
  wanted() {
    const { groups, system, units } = this.detail;
    const machine = new Set(system);
    const found = [];
    for (const [title, all] of api.mapOf(groups)) {
      const names = all.filter((name) => machine.has(name) === (this.tab === "system"));
      if (!names.length || !names.some((name) => `${title} ${name}`.toLowerCase().includes(this.query))) continue;
      const drawn = names.slice(0, MOST_LINES);
      const left = names.length - drawn.length;
      found.push({
        title, note: [Object.hasOwn(units, drawn[0]) && units[drawn[0]], left && `${left} more not drawn`].filter(Boolean).join(", "),
        lines: drawn.map((name) => ({ key: name, label: name, ...ofNames(drawn).get(name) })),
        load: ({ by, from, to }, signal, most) => api.points(this.id, drawn, { by, from, to, most }, signal),
        exact: drawn[0].split("/")[0] === "lr", unit: Object.hasOwn(units, drawn[0]) ? units[drawn[0]] : "",
      });
    }
    return found;
  }

  walkTabs(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    const names = [...this.tabs.keys()];
    const next = names[(names.indexOf(this.tab) + step + names.length) % names.length];
    this.tabs.get(next).click();
    this.tabs.get(next).focus();
  }

  key(key) {
    return (this.tab === "curves" || this.tab === "system") && this.plots.key(key);
  }

  leave() {
    clearTimeout(this.timer);
    this.epochs.leave();
    this.matrices.forEach((panel) => panel.destroy());
    this.plots.destroy();
  }
}
