"""The Textual app of `stoker watch`: panes, keys, themes, and the help and question dialogs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.theme import Theme
from textual.widget import Widget
from textual.widgets import Button, ContentSwitcher, Footer, Static

from stoker._text import escape_control
from stoker.record import Follower
from stoker.view._chart import QUIET
from stoker.view.watch import _panes as panes
from stoker.view.watch._reader import KINDS, OTHERS, SMOOTHING, TRAIN, VALID, Answer, Kind, Reader, Snapshot, View

DARK = Theme(
    "stoker-dark",
    primary=TRAIN,
    secondary=OTHERS[2],
    success=OTHERS[0],
    warning=VALID,
    error=panes.BAD,
    background="#101216",
    surface="#171a20",
    panel="#20242c",
    foreground="#d8dbe2",
    variables={"footer-key-foreground": OTHERS[2]},
)
LIGHT = replace(
    DARK,
    name="stoker-light",
    dark=False,
    background="#ffffff",
    surface="#f4f5f7",
    panel="#e8eaee",
    foreground="#1c1e22",
    variables={"footer-key-foreground": "#005c91"},
)
# The style sheet gives panes more room from these numbers of columns and lines on.
_WIDTHS: list[tuple[int, str]] | None = [(0, "-narrow"), (110, "-wide")]
_HEIGHTS: list[tuple[int, str]] | None = [(0, "-short"), (30, "-tall"), (48, "-huge")]
_HELP = {
    "← →": "next or previous metric; also 1 to 9, or a click",
    "↑ ↓": "whole history, recent part, bars by epoch",
    "+ -": "smoothing: the mean of 1 to 30 % of the points",
    "y": "linear or logarithmic y axis",
    "x": "x axis: updates or time",
    "r": "next run, if there are several",
    "l": "whole log, and back",
    "i": "plan, config and environment, and back",
    "s": "stop the run after this update (asks first)",
    "c": "save a checkpoint",
    "t": "light or dark",
    "q": "quit the viewer; the run continues",
}


class Pane(Widget):
    """A part of the screen that draws the current snapshot."""

    def __init__(self, draw: Callable[[Snapshot, int, int], Text], name: str, *, title: str | None = None) -> None:
        super().__init__(id=name)
        self._draw = draw
        self.border_title = title

    @property
    def link_style(self) -> Style:
        """Links keep the color that they are drawn in until the mouse is over them."""
        return Style.null()

    def render(self) -> RenderResult:
        """The pane's text; blank before the first snapshot."""
        snapshot = self.app.snapshot if isinstance(self.app, Dashboard) else None
        if snapshot is None:
            return ""
        background = self.app.theme_variables["panel" if self.id == "header" else "background"]
        return panes.with_contrast(self._draw(snapshot, *self.content_size), background)


class Dashboard(App[None]):
    """The screen: draws snapshots from the reader's thread, and asks before it stops a run."""

    CSS_PATH = "dashboard.tcss"
    TITLE = "stoker watch"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # the arrow keys belong to the screen until a page of text is open
    HORIZONTAL_BREAKPOINTS = _WIDTHS
    VERTICAL_BREAKPOINTS = _HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("s", "stop_run", "stop"),
        Binding("c", "save_run", "save"),
        Binding("right", "metric(1)", "metric", key_display="←→"),
        Binding("left", "metric(-1)", "metric", show=False),
        Binding("down", "move_kind(1)", "view", key_display="↑↓"),
        Binding("up", "move_kind(-1)", "view", show=False),
        Binding("plus,equals_sign", "smooth(1)", "smooth", key_display="+-"),
        Binding("minus", "smooth(-1)", "rough", show=False),
        Binding("y", "log", "log scale", show=False),
        Binding("x", "by", "updates or time", show=False),
        Binding("r", "next_run", "next run", show=False),
        Binding("l", "page('log')", "log"),
        Binding("i", "page('settings')", "info"),
        Binding("escape", "page('run')", "back", show=False),
        Binding("t", "theme", "light or dark", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        *(Binding(str(number), f"tab({number - 1})", show=False) for number in range(1, 10)),
    ]

    def __init__(self, followers: Sequence[Follower], *, light: bool | None = None) -> None:
        super().__init__()
        self.snapshot: Snapshot | None = None
        self.failure: BaseException | None = None
        self.view = View()
        self._reader = Reader(followers, self._receive)
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = LIGHT.name if (_terminal_is_light() if light is None else light) else DARK.name

    def compose(self) -> ComposeResult:
        """The panes; `dashboard.tcss` places them."""
        yield Pane(panes.header, "header")
        yield Static(id="banner")
        with ContentSwitcher(initial="run", id="pages"):
            with Horizontal(id="run"):
                with Vertical(id="facts"):
                    yield Pane(panes.metrics, "metrics", title="metrics")
                    yield Pane(panes.status, "status", title="status")
                    yield Pane(panes.plan, "plan", title="plan")
                with Vertical(id="plots"):
                    yield Pane(panes.tabs, "tabs")
                    yield Pane(panes.controls, "controls")
                    yield Pane(_draw_chart, "chart")
            with VerticalScroll(id="log"):
                yield Static(id="log-text")
            with VerticalScroll(id="settings"):
                yield Static(id="settings-text")
        yield Pane(panes.log, "last-log", title="log")
        yield Pane(panes.progress, "progress")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Starts reading."""
        self._reader.start()
        self.set_interval(1.0, self._update_banner)

    def on_unmount(self) -> None:
        """Stops reading without waiting for the disk."""
        self._reader.close()

    def _receive(self, message: Snapshot | Answer | BaseException) -> None:
        """Takes a message of the reader's thread to the screen's; does nothing once the screen is closed."""
        if self.is_running:
            self.call_later(self._handle, message)

    def _handle(self, message: Snapshot | Answer | BaseException) -> None:
        if isinstance(message, Snapshot):
            self._show(message)
        elif isinstance(message, Answer):
            self.notify(
                escape_control(message.text), severity="error" if message.is_error else "information", markup=False
            )
        else:  # `watch` raises it after the terminal is restored
            self.failure = message
            self.exit(return_code=1)

    def _show(self, snapshot: Snapshot) -> None:
        if snapshot.view != self.view:  # the user has changed the view since; the next snapshot is on its way
            return
        self.snapshot = snapshot
        if not self.query(Pane):  # the screen is being closed
            return
        self._update_banner()
        self._update_page()
        for pane in self.query(Pane):
            pane.refresh()

    def _update_banner(self) -> None:
        if self.snapshot is None:
            return
        text = panes.banner(self.snapshot, self._reader.seconds_stalled)
        for banner in self.query("#banner").results(Static):
            banner.display = text is not None
            banner.update(text or "")

    def _update_page(self) -> None:
        """Fills the page of text (log or settings) if one is open."""
        page = self.query_one("#pages", ContentSwitcher).current
        if self.snapshot is not None and page == "log":
            scroll = self.query_one("#log", VerticalScroll)
            at_end = scroll.is_vertical_scroll_end
            self.query_one("#log-text", Static).update(Text("\n").join(panes.log_lines(self.snapshot.run)))
            if at_end:
                scroll.scroll_end(animate=False)
        elif self.snapshot is not None and page == "settings":
            self.query_one("#settings-text", Static).update(panes.settings(self.snapshot.run))

    def _change_view(self, **changes: Any) -> None:
        self.view = replace(self.view, **changes)
        self._reader.set_view(self.view)

    def action_tab(self, number: int) -> None:
        """Selects a metric by its number."""
        if self.snapshot is not None and number < len(self.snapshot.tabs):
            self._change_view(tab=self.snapshot.tabs[number], log=None)

    def action_metric(self, by: int) -> None:
        """Selects the next or previous metric."""
        tabs = self.snapshot.tabs if self.snapshot is not None else ()
        if tabs:
            self.action_tab(((tabs.index(self.view.tab) if self.view.tab in tabs else 0) + by) % len(tabs))

    def action_kind(self, kind: Kind) -> None:
        """Selects history, recent or epochs."""
        self._change_view(kind=kind)

    def action_move_kind(self, by: int) -> None:
        """Selects the next or previous of history, recent and epochs."""
        self._change_view(kind=KINDS[(KINDS.index(self.view.kind) + by) % len(KINDS)])

    def action_smooth(self, by: int) -> None:
        """Smooths more or less."""
        self._change_view(smoothing=min(max(0, self.view.smoothing + by), len(SMOOTHING) - 1))

    def action_log(self) -> None:
        """Switches between a linear and a logarithmic y axis."""
        self._change_view(log=not (self.snapshot is not None and self.snapshot.log))

    def action_by(self) -> None:
        """Switches the x axis between updates and time."""
        self._change_view(by="time" if self.view.by == "update" else "update")

    def action_run(self, number: int) -> None:
        """Shows the status, log and progress of another run."""
        self._change_view(run=number % len(self._reader.followers))

    def action_next_run(self) -> None:
        """Shows the next run."""
        self.action_run(self.view.run + 1)

    def action_page(self, page: str) -> None:
        """Opens a page of text, or returns from it to the run."""
        pages = self.query_one("#pages", ContentSwitcher)
        pages.current = "run" if pages.current == page else page
        self._update_page()
        self.query_one("#last-log").display = pages.current != "log"
        if pages.current == "run":
            self.set_focus(None)
        else:
            self.query_one(f"#{pages.current}").focus()

    def action_theme(self) -> None:
        """Switches between light and dark."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_help(self) -> None:
        """Shows the keys."""
        self.push_screen(Help())

    def action_save_run(self) -> None:
        """Asks the run to save a checkpoint."""
        if self._check_running("save"):
            self._reader.request(self.view.run, "save")

    def action_stop_run(self) -> None:
        """Asks the run to stop, after a question to the user."""
        if self.snapshot is not None and self._check_running("stop"):
            run = self.view.run
            question = f"Stop {escape_control(self.snapshot.run.name)} after this update? It saves a checkpoint first."
            self.push_screen(
                Question(question, "stop it"), lambda yes: self._reader.request(run, "stop") if yes else None
            )

    def _check_running(self, action: str) -> bool:
        state = self.snapshot.run.state if self.snapshot is not None else "unread"
        if state != "running":
            self.notify(f"can't {action}: the run is not running (state: {state})", severity="warning")
        return state == "running"


class Question(ModalScreen[bool]):
    """A yes-or-no dialog; Escape means no."""

    BINDINGS: ClassVar[list[BindingType]] = [("y", "answer(True)", "yes"), ("n,escape,q", "answer(False)", "no")]

    def __init__(self, text: str, yes: str) -> None:
        super().__init__()
        self._text = text
        self._yes = yes

    def compose(self) -> ComposeResult:
        """The question and two buttons."""
        with Vertical(classes="window"):
            yield Static(Text(self._text))
            with Horizontal():
                yield Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True)
                yield Button("no (n)", id="no", compact=True)

    def on_mount(self) -> None:
        """Focuses "no", so that pressing Enter too early does nothing."""
        self.query_one("#no", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answers by mouse."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        """Answers by key."""
        self.dismiss(answer)


class Help(ModalScreen[None]):
    """The list of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [("question_mark,escape,q,enter,space", "close", "back")]

    def compose(self) -> ComposeResult:
        """One line per key."""
        with VerticalScroll(classes="window"):
            yield Static(
                Text("\n").join(Text.assemble((f"{key:>4}  ", "bold"), text) for key, text in _HELP.items())
                + Text("\n\n      highlighted text can be clicked; Escape closes this window", style=QUIET)
            )

    def action_close(self) -> None:
        """Returns to the run."""
        self.dismiss()


def _draw_chart(snapshot: Snapshot, width: int, height: int) -> Text:
    ascii_only = os.environ.get("TERM") == "linux"  # the kernel's console fonts have no braille
    colors = not os.environ.get("NO_COLOR")
    return panes.draw_chart(snapshot, width, height, ascii_only=ascii_only, colors=colors)


def _terminal_is_light() -> bool:
    """Whether the terminal says that it is light; the few that say it set COLORFGBG, as in `0;15`."""
    return os.environ.get("COLORFGBG", "").rpartition(";")[2] in ("7", "15")
