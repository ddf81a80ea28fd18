"""Choosing how to show a fit: a live block, a notebook's display, or plain lines."""

import io
import os
import sys
from typing import Protocol, TextIO

from stoker.errors import WrongType
from stoker.record import Event, Record
from stoker.view.console._block import holds_a_block
from stoker.view.console._live import Live
from stoker.view.console._notebook import Notebook, in_notebook
from stoker.view.console._plain import Plain


class Listener(Protocol):
    """What watches a record: called with each event, closed when there are no more."""

    def __call__(self, event: Event) -> None:
        """Takes an event in."""
        ...

    def close(self) -> None:
        """Says how it ended and gives the terminal back; the `end` event does it too, and twice does no harm."""
        ...


def console(record: Record, *, stream: TextIO | None = None, live: bool | None = None) -> Listener:
    """A listener that shows a fit while it runs: a live block on a terminal, a notebook's display, else plain lines.

    >>> from stoker.record import Event, Record
    >>> record = Record()
    >>> listener = console(record, live=False)
    >>> unsubscribe = record.subscribe(listener)
    >>> record.append(Event("begin", 0.0, extra={"model": "Net", "epochs": 1}))
    Net: 1 epoch (* = best so far)
    >>> record.append(Event("epoch", 9.5, epoch=1, batch=6, update=6, values={"train/loss": 0.25}))
    epoch 1/1  train loss 0.2500
    >>> record.append(Event("end", 9.5, extra={"epochs": 1, "updates": 6, "seconds": 9.5}))
    1 epoch, 6 updates in 9.50 s

    It writes to `sys.stdout` where no `stream` is given; `live` says yes or no where the choice should not be made by
    what the stream can do. Drawing takes at most 1 % of the time, by its own clock.
    """
    if live not in (None, True, False):
        raise WrongType(f"console: live is {live!r}; expected True, False, or None to let the stream decide")
    if stream is None and live is not False and in_notebook():
        return Notebook(record)
    # Without any stdout (a service, pythonw) the lines go nowhere.
    out = stream or sys.stdout or io.StringIO()
    if live is None:
        live = _can_draw(out)
    return Live(record, out) if live else Plain(record, out)


def _can_draw(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor, and no other block stands on it."""
    try:
        if not stream.isatty() or holds_a_block(stream):
            return False
    except (ValueError, AttributeError):  # closed, or no whole file
        return False
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    from rich.console import detect_legacy_windows

    return not detect_legacy_windows()
