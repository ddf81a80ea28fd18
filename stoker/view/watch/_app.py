"""The screen: panes in their places, keys, and what becomes of a scene."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import App, ComposeResult, RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widget import Widget
from textual.widgets import ContentSwitcher, Footer, Static

from stoker.record import Follower
from stoker.view.console import visible
from stoker.view.watch import _panes as panes
from stoker.view.watch import _picture as pictures
from stoker.view.watch import _table as table
from stoker.view.watch._dialogs import Help, Question
from stoker.view.watch._reader import Reader
from stoker.view.watch._scene import Scene
from stoker.view.watch._themes import DARK, LIGHT, starts_light
from stoker.view.watch._view import Kind, View

Draw = Callable[[Scene, int, int], Text]
# From how many columns and lines on the style sheet gives more room to what there is.
_WIDTHS: list[tuple[int, str]] | None = [(0, "-narrow"), (110, "-wide")]
_HEIGHTS: list[tuple[int, str]] | None = [(0, "-short"), (30, "-tall"), (48, "-huge")]


class Pane(Widget):
    """A part of the screen that draws the scene into the room that it has."""

    def __init__(self, draw: Draw, name: str) -> None:
        super().__init__(id=name)
        self.draw = draw

    @property
    def link_style(self) -> Style:
        """What can be clicked keeps the colour that it was drawn in, until the mouse is over it."""
        return Style.null()

    def render(self) -> RenderResult:
        """The scene's text; blank before there is one."""
        scene = self.app.scene if isinstance(self.app, Dashboard) else None
        return self.draw(scene, *self.content_size) if scene is not None else ""


class Dashboard(App[None]):
    """Runs on a terminal: reads beside the screen, draws what was read, and asks where something could be lost."""

    CSS_PATH = "dashboard.tcss"
    TITLE = "stoker watch"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # the arrows belong to the screen until a page of text is open
    HORIZONTAL_BREAKPOINTS = _WIDTHS
    VERTICAL_BREAKPOINTS = _HEIGHTS
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "leave"),
        Binding("ctrl+c", "quit", "leave", show=False, priority=True),
        Binding("s", "ask_to_stop", "stop"),
        Binding("c", "ask_to_save", "save"),
        Binding("right", "metric(1)", "metric", key_display="←→"),
        Binding("left", "metric(-1)", "metric", show=False),
        Binding("down", "turn(1)", "view", key_display="↑↓"),
        Binding("up", "turn(-1)", "view", show=False),
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
        *(Binding(str(place), f"tab({place - 1})", show=False) for place in range(1, 10)),
    ]

    def __init__(self, followers: Sequence[Follower], *, light: bool | None = None) -> None:
        super().__init__()
        self.scene: Scene | None = None
        self.view = View()
        self.broken: BaseException | None = None
        self.reader = Reader(
            followers,
            show=lambda scene: self._call(self.show, scene),
            told=lambda text, wrong: self._call(self.tell, text, wrong),
            failed=lambda error: self._call(self.fail, error),
        )
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = LIGHT.name if (starts_light() if light is None else light) else DARK.name

    def compose(self) -> ComposeResult:
        """The places."""
        yield Pane(panes.header, "header")
        yield Static(id="banner")
        with ContentSwitcher(initial="run", id="pages"):
            with Horizontal(id="run"):
                with Vertical(id="facts"):
                    yield _titled(Pane(table.metrics, "metrics"))
                    yield _titled(Pane(panes.status, "status"))
                    yield _titled(Pane(panes.plan, "plan"))
                with Vertical(id="plots"):
                    yield Pane(pictures.tabs, "tabs")
                    yield Pane(pictures.controls, "controls")
                    yield Pane(_picture, "picture")
            with VerticalScroll(id="log"):
                yield Static(id="log-text")
            with VerticalScroll(id="settings"):
                yield Static(id="settings-text")
        yield _titled(Pane(panes.log, "lately"))
        yield Pane(panes.progress, "progress")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begins to read, and looks after the reading."""
        self.reader.start()
        self.set_interval(1.0, self.warn)

    def on_unmount(self) -> None:
        """Nothing is waited for."""
        self.reader.close()

    def _call(self, what: Callable[..., object], *given: object) -> None:
        """In the screen's own thread, soon; nothing once the screen is closed."""
        if self.is_running:
            self.call_later(what, *given)

    def show(self, scene: Scene) -> None:
        """Draws a scene, where it is of what is wanted now."""
        if scene.view != self.view:
            return
        self.scene = scene
        if not self.query(Pane):  # the screen has been taken down meanwhile
            return
        self.warn()
        self._fill_the_page()
        for pane in self.query(Pane):
            pane.refresh()

    def warn(self) -> None:
        """Puts what has to be known at once above all else."""
        if self.scene is None:
            return
        text = panes.banner(self.scene, self.reader.hung)
        for banner in self.query("#banner").results(Static):  # none, where the screen has been taken down meanwhile
            banner.display = text is not None
            banner.update(text or "")

    def tell(self, text: str, wrong: bool) -> None:
        """An answer to a wish."""
        self.notify(text, severity="error" if wrong else "information", markup=False)

    def fail(self, error: BaseException) -> None:
        """Ends with an error of the reading thread, to be raised once the terminal is itself again."""
        self.broken = error
        self.exit(return_code=1)

    def _fill_the_page(self) -> None:
        page = self.query_one("#pages", ContentSwitcher).current
        if self.scene is not None and page == "log":
            place = self.query_one("#log", VerticalScroll)
            at_the_end = place.is_vertical_scroll_end
            self.query_one("#log-text", Static).update(Text("\n").join(panes.log_lines(self.scene.run)))
            if at_the_end:
                place.scroll_end(animate=False)
        elif self.scene is not None and page == "settings":
            self.query_one("#settings-text", Static).update(panes.settings(self.scene.run))

    def _look(self, view: View) -> None:
        self.view = view
        self.reader.look(view)

    def action_tab(self, place: int) -> None:
        """Chooses a number by its place."""
        tabs = self.scene.tabs if self.scene is not None else ()
        if place < len(tabs):
            self._look(self.view.on(tabs[place]))

    def action_metric(self, by: int) -> None:
        """The next number, or the one before."""
        self._look(self.view.moved(by, self.scene.tabs if self.scene is not None else ()))

    def action_kind(self, kind: Kind) -> None:
        """Another kind of picture, by name."""
        self._look(replace(self.view, kind=kind))

    def action_turn(self, by: int) -> None:
        """The next kind of picture, or the one before."""
        self._look(self.view.turned(by))

    def action_smooth(self, by: int) -> None:
        """Smoother, or rougher."""
        self._look(self.view.smoother(by))

    def action_log(self) -> None:
        """Heights by ratio, or linear."""
        self._look(replace(self.view, log=not (self.scene is not None and self.scene.log)))

    def action_by(self) -> None:
        """Over the updates, or over the time."""
        self._look(self.view.over_the_other())

    def action_run(self, place: int) -> None:
        """Shows the status, log and progress of a run; after the last comes the first."""
        self._look(replace(self.view, run=place % len(self.reader.followers)))

    def action_next_run(self) -> None:
        """Shows those of the next run."""
        self.action_run(self.view.run + 1)

    def action_page(self, page: str) -> None:
        """Another page, or back to the run from it."""
        pages = self.query_one("#pages", ContentSwitcher)
        pages.current = "run" if pages.current == page else page
        self._fill_the_page()
        self.query_one("#lately").display = pages.current != "log"
        if pages.current == "run":
            self.set_focus(None)
        else:
            self.query_one(f"#{pages.current}").focus()

    def action_theme(self) -> None:
        """Light or dark."""
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    def action_help(self) -> None:
        """What the keys do."""
        self.push_screen(Help())

    def action_ask_to_save(self) -> None:
        """Asks the run to save; that loses nothing, so nobody is asked before."""
        if self._alive("save"):
            self.reader.ask(self.view.run, "save")

    def action_ask_to_stop(self) -> None:
        """Asks the run to stop, after a question."""
        if self._alive("stop"):
            run, name = self.view.run, self.scene.run.name if self.scene is not None else ""
            question = f"Stop {visible(name)} after this update? A checkpoint is kept to go on from."
            self.push_screen(Question(question, "stop it"), lambda yes: self.reader.ask(run, "stop") if yes else None)

    def _alive(self, wish: str) -> bool:
        state = self.scene.run.state if self.scene is not None else "not read yet"
        if state != "running":
            stands = f"has {state}" if state in ("finished", "stopped", "died") else f"is {state}"
            self.notify(f"The run {stands}: there is nobody to ask to {wish}.", severity="warning")
        return state == "running"


def _picture(scene: Scene, width: int, height: int) -> Text:
    ascii_only = os.environ.get("TERM") == "linux"  # the kernel's own console: its fonts have no braille
    return pictures.picture(scene, width, height, ascii_only=ascii_only, colours=not os.environ.get("NO_COLOR"))


def _titled(pane: Pane) -> Pane:
    pane.border_title = pane.id
    return pane
