"""Choosing how to show a fit, and the plain lines for files, pipes and simple terminals."""

import io
import os
import sys
from typing import Protocol, TextIO

from stoker._text import escape_control, format_duration, format_number, format_short
from stoker.errors import WrongType
from stoker.record import Event, Record
from stoker.view.console._live import LiveConsole
from stoker.view.console._notebook import NotebookConsole, in_notebook
from stoker.view.console._progress import (
    describe_end,
    describe_event,
    describe_model,
    describe_plan,
    describe_speed,
    ends_a_row,
    improves,
    plan_of,
    sets_of,
)
from stoker.view.console._terminal import Writer, has_block

_LONG_EPOCH = 30.0  # seconds; a longer epoch or validation prints progress lines
_PARTS = 5  # of a long epoch: one line after each
_MAX_CLASSES = 10  # values of a per-class metric in a line; more are abbreviated


class Listener(Protocol):
    """A function of a record's events that is closed after the last one."""

    def __call__(self, event: Event) -> None:
        """Takes an event into account."""
        ...

    def close(self) -> None:
        """Shows how the fit ended and restores the terminal; the `end` event does the same, a second call nothing."""
        ...


def console(
    record: Record, *, stream: TextIO | None = None, live: bool | None = None, interval: float | None = None
) -> Listener:
    """Returns a listener that shows a fit: a live block on a terminal, one output in a notebook, else plain lines.

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

    `stream` is `sys.stdout` by default. `live` forces or forbids the live block. `interval` is the least time between
    two drawings in seconds (0.25, and 0.5 in a notebook; 0 draws at every event); slow terminals are drawn less often,
    so that drawing takes at most 1 % of the time.
    """
    if live not in (None, True, False):
        raise WrongType(f"console: live is {live!r}; expected True, False, or None to let the stream decide")
    if stream is None and live is not False and in_notebook():
        return NotebookConsole(record, interval=0.5 if interval is None else interval)
    out = stream or sys.stdout or io.StringIO()  # a service may have no stdout
    if live if live is not None else _can_redraw(out):
        return LiveConsole(record, out, interval=0.25 if interval is None else interval)
    return PlainConsole(record, out)


def _can_redraw(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can move its cursor and shows no other fit's block."""
    try:
        if not stream.isatty() or has_block(stream):
            return False
    except (ValueError, AttributeError):  # closed, or not a complete file object
        return False
    if os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    from rich.console import detect_legacy_windows

    return not detect_legacy_windows()


class PlainConsole:
    """A listener that prints lines: one at the beginning, one per epoch, a few more in long ones, one at the end."""

    def __init__(self, record: Record, stream: TextIO) -> None:
        self._record = record
        self._writer = Writer(stream)
        self._phase = ("", 0)  # the phase and epoch that the next three fields describe
        self._phase_start = 0.0
        self._next_line = 0.0  # time of the next progress line
        self._part = -1  # the fifth of the phase that the last line was about
        self._began = self._closed = False
        self._ended = False
        self._has_reason = False  # a run writes "stop" and "error" to its log itself, without this listener

    def __call__(self, event: Event) -> None:
        """Prints the event's line, if it has one."""
        if self._closed:
            return
        line = describe_event(event)
        if event.kind == "progress":
            line = self._progress_line(event)
        elif event.kind == "epoch":
            seconds = event.extra.get("seconds")
            duration = f"  {format_duration(seconds)}" if seconds is not None else ""
            line = f"{self._epoch(event)}  {self._values(event)}{duration}"
        elif ends_a_row(self._record, event):  # a validation inside an epoch
            line = f"{self._epoch(event)}  update {event.update:,}  {self._values(event)}"
        elif event.kind == "begin":
            self._began = True
            monitor = str(plan_of(self._record).get("monitor") or "")
            is_loss = not monitor or monitor.endswith("/loss")
            chosen = "" if is_loss else f"; {escape_control(monitor)} decides which weights are kept"
            line = f"{describe_model(self._record)}: {describe_plan(self._record)} (* = best so far{chosen})"
        if line:
            self._writer.line(line)
        self._has_reason |= event.kind in ("stop", "error")
        if event.kind == "end":
            self._ended = True
            self.close()

    def close(self) -> None:
        """Prints how the fit ended; a second call does nothing."""
        if self._closed or not self._began:
            return
        self._closed = True
        ending = describe_end(self._record)
        lines = [ending.reason, ending.length, *(f"{name}: {text}" for name, text in ending.files.items())]
        for line in filter(None, [ending.length] if self._ended and not self._has_reason else lines):
            self._writer.line(line)

    def _epoch(self, event: Event) -> str:
        planned = plan_of(self._record).get("epochs")
        return f"epoch {event.epoch:>{len(str(planned))}}/{planned}" if planned else f"epoch {event.epoch}"

    def _values(self, event: Event) -> str:
        """All values, set by set; `*` marks the best so far of the monitored set."""
        values = event.values
        sets = sets_of(self._record, self._record.names)
        groups: dict[str, dict[str, list[str]]] = {}
        others: list[str] = []
        for name, value in values.items():
            group, _, metric = name.partition("/")
            if group not in sets.names or not metric:
                others.append(f"{escape_control(name)} {format_short(value)}")
                continue
            is_final = group == sets.monitored and event.kind != "progress"
            improved = is_final and improves(self._record, name, event.epoch)
            text = format_number(value) + ("*" if improved else "")
            metric = "/".join(part for part in metric.split("/") if not part.isdecimal())  # the classes of a metric
            groups.setdefault(group, {}).setdefault(metric, []).append(text)
        parts = [
            " ".join([group, *(f"{metric} {_join_classes(texts)}" for metric, texts in metrics.items())])
            for group, metrics in groups.items()
        ]
        return "  ".join([*map(escape_control, parts), *others])

    def _progress_line(self, event: Event) -> str:
        """A line after 30 seconds, then after every fifth; if the length is unknown, whenever the time has doubled."""
        phase = (str(event.extra.get("phase", "train")), event.epoch)
        if phase != self._phase:
            self._phase, self._part = phase, -1
            self._phase_start, self._next_line = event.time, event.time + _LONG_EPOCH
        if event.time < self._next_line:
            return ""
        status = self._record.status()
        fraction, seconds = status.phase_fraction, event.time - self._phase_start
        if fraction is not None and (fraction == 1 or int(fraction * _PARTS) == self._part):
            return ""  # a complete epoch gets its own line
        self._part = -1 if fraction is None else int(fraction * _PARTS)
        self._next_line = event.time + (max(_LONG_EPOCH, seconds) if fraction is None else _LONG_EPOCH)
        validating = status.phase == "valid"
        of = f"/{status.batches:,}" if status.batches else ""
        texts = [
            f"{self._epoch(event)}  {'validating, ' if validating else ''}batch {event.batch:,}{of}",
            self._values(event),
            describe_speed(status),
        ]
        if fraction:
            left = format_duration(seconds * (1 - fraction) / fraction)
            texts.append(f"{left} left of this {'validation' if validating else 'epoch'}")
        return "  ".join(filter(None, texts))


def _join_classes(texts: list[str]) -> str:
    """The values of a metric; those of several classes in brackets, many of them abbreviated."""
    if len(texts) == 1:
        return texts[0]
    if len(texts) > _MAX_CLASSES:
        half = _MAX_CLASSES // 2
        texts = [*texts[:half], f"… {len(texts) - _MAX_CLASSES} more …", *texts[-half:]]
    return f"[{' '.join(texts)}]"
