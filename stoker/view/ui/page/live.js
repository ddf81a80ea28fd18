// Server-sent events for what is on the screen.

const FIRST_WAIT = 1000; // milliseconds; doubled after each failure, up to LONGEST_WAIT
const LONGEST_WAIT = 15000;

export class Live {
  /** `receive(kind, data)` receives events, `state(lost)` whether the connection is lost; `again()` is called after reconnecting. */
  constructor({ receive, state, again }) {
    Object.assign(this, { receive, state, again, ids: [], source: null, wait: FIRST_WAIT, timer: 0, missed: false });
    // A hidden page closes its connection: browsers allow only six per server.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  /** The runs to receive events about; events about the list always come. */
  watch(ids) {
    if (this.source && ids.join("\n") === this.ids.join("\n")) return;
    this.ids = ids;
    this.close();
    this.missed = false;
    this.open();
  }

  open() {
    if (this.source || document.hidden) return;
    const source = new EventSource(`/api/events?${new URLSearchParams(this.ids.map((id) => ["id", id]))}`);
    this.source = source;
    source.onopen = () => {
      this.wait = FIRST_WAIT;
      this.state(false);
      if (this.missed) this.again();
      this.missed = true; // from now on, an opening is a second one
    };
    source.onerror = () => {
      this.state(true);
      if (source.readyState === EventSource.CLOSED) this.retry(); // else the browser reconnects
    };
    for (const kind of ["runs", "run"]) {
      source.addEventListener(kind, (event) => this.receive(kind, JSON.parse(event.data)));
    }
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  retry() {
    this.close();
    this.timer = setTimeout(() => this.open(), this.wait);
    this.wait = Math.min(2 * this.wait, LONGEST_WAIT);
  }
}
