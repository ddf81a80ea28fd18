"""The live block: a listener that draws a fit on a terminal, a few times a second."""

import atexit
from typing import TYPE_CHECKING, TextIO

from stoker.record import Event, Record
from stoker.view.console._block import Block
from stoker.view.console._pace import Pace
from stoker.view.console._story import aside
from stoker.view.console._view import last_view, view
from stoker.view.console._watch import Watch

if TYPE_CHECKING:
    from rich.text import Text


class Live:
    """A listener that keeps one block up to date, and leaves a short table when the fit is over."""

    def __init__(self, record: Record, stream: TextIO, *, pace: Pace | None = None) -> None:
        from rich.console import Console

        self.watch = Watch(record)
        self.block = Block(stream)
        self.pace = pace or Pace()
        self.paint = Console(file=stream, force_terminal=True, legacy_windows=False, highlight=False)
        self.closed = False

    def __call__(self, event: Event) -> None:
        """Takes an event in, and draws where it is time to."""
        if self.closed:
            return
        self.watch.see(event)
        if event.kind == "begin":
            self.block.open()
            atexit.register(self.close)  # for the program that ends without closing it
        elif line := aside(event):
            self.block.above(line)
        elif event.kind == "end":
            self.close()
            return
        if self.watch.begin and self.pace.due():
            with self.pace.drawing():
                self.draw()

    def draw(self) -> None:
        """Draws the block as it stands."""
        width, height = self.block.writer.size()
        # A column and a line less than there are: a full last line would scroll, and each drawing leave one behind.
        colours = not self.paint.no_color and self.paint.color_system is not None
        lines = view(self.watch, width - 1, height - 1, ascii_only=not self.block.writer.unicode, colours=colours)
        self.block.draw(self._painted(lines))

    def close(self) -> None:
        """Leaves the short table and gives the terminal back; nothing to do the second time."""
        if self.closed:
            return
        self.closed = True
        atexit.unregister(self.close)
        width, _ = self.block.writer.size()
        self.block.close(self._painted(last_view(self.watch, width - 1)) if self.watch.begin else [])

    def _painted(self, lines: list["Text"]) -> list[str]:
        """The lines with the colours that this terminal has; none of them is folded."""
        with self.paint.capture() as painted:
            for line in lines:
                self.paint.print(line, soft_wrap=True)
        return painted.get().split("\n")[: len(lines)]
