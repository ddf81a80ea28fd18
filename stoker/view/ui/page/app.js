// The page: the current view, the events it receives, and the keys.
import { link, parse, withChanges } from "./address.js";
import { CompareView } from "./compare.js";
import { byId, el, say } from "./dom.js";
import { listen } from "./keys.js";
import { Live } from "./live.js";
import { RunView } from "./run.js";
import { RunsView } from "./runs.js";

const VIEWS = { runs: RunsView, run: RunView, compare: CompareView };
const THEMES = { auto: ["◐", "system"], light: ["☀", "light"], dark: ["☾", "dark"] };

class App {
  constructor() {
    Object.assign(this, { view: null, shown: "", folder: "the folder", control: false, loading: null, list: "#/runs" });
    this.live = new Live({
      receive: (kind, data) => this.view?.receive(kind, data),
      state: (lost) => this.lost(lost),
      again: () => this.load(),
    });
    window.addEventListener("hashchange", () => this.route());
    listen(this);
    this.themeButton();
    this.route();
  }

  /** Shows the view of the URL; the current view stays if only its settings differ. */
  route() {
    if (location.hash === "#main") return; // the link that skips the head of the page
    const address = parse(location.hash);
    const view = Object.hasOwn(VIEWS, address.view) ? address.view : "runs";
    const shown = JSON.stringify([view, address.id, view === "compare" && address.params.getAll("id")]);
    if (view === "runs") this.list = location.hash || "#/runs";
    byId("to-runs").href = this.list;
    if (shown !== this.shown) this.open(new VIEWS[view](this, address), shown);
    this.address = { ...address, view };
    this.view.update(this.address);
    document.title = `${this.view.title()} · stoker`;
    if (this.opened) this.load();
    this.opened = false;
  }

  open(view, shown) {
    const first = this.view === null;
    this.view?.leave();
    Object.assign(this, { view, shown, opened: true });
    byId("main").replaceChildren(view.element);
    window.scrollTo(0, 0);
    if (!first) byId("main").focus({ preventScroll: true });
    byId("to-runs").toggleAttribute("aria-current", view instanceof RunsView);
    this.live.watch(view.ids());
  }

  async load() {
    this.loading?.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    const view = this.view;
    try {
      if (!(view instanceof RunsView) && !this.known) this.setFolder(await (await fetch("/api/runs", { signal })).json());
      await view.refresh(signal);
    } catch (error) {
      if (error.name !== "AbortError" && view === this.view) this.fail(error);
    }
  }

  /** Shows an error in place of a view that could not be loaded; otherwise the view stays and the line at the top shows it. */
  fail(error) {
    if (error.status === 0) this.lost(true);
    else byId("main").replaceChildren(el("div", { class: "empty" }, el("h1", {}, "This page can't be shown"), el("p", {}, error.message), el("p", {}, el("a", { href: this.list }, "All runs"))));
  }

  setFolder({ folder, control }) {
    Object.assign(this, { folder, control, known: true });
    say(byId("folder"), folder);
  }

  lost(lost) {
    byId("lost").hidden = !lost;
    say(byId("lost"), lost ? "Connection lost: the page is not up to date. Reconnecting …" : "");
  }

  go(hash) {
    location.hash = hash;
  }

  /** Changes settings of the view; with `replace`, without a new entry in the history. */
  change(changes, { replace = false } = {}) {
    const { view, id, params } = this.address;
    const next = link(view, id, withChanges(params, changes));
    if (next === location.hash) return;
    if (!replace) return this.go(next);
    history.replaceState(null, "", next);
    this.route();
  }

  themeButton() {
    const button = byId("theme");
    const show = () => {
      const [sign, words] = THEMES[window.stokerTheme.now()];
      say(button, sign);
      button.setAttribute("aria-label", `Theme: ${words}`);
      button.title = `Theme: ${words}`;
    };
    button.addEventListener("click", () => {
      const names = Object.keys(THEMES);
      window.stokerTheme.set(names[(names.indexOf(window.stokerTheme.now()) + 1) % names.length]);
      show();
    });
    show();
  }
}

new App();
