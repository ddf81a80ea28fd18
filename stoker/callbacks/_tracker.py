"""A run's numbers on their way to a tracker."""

import contextlib
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stoker.callbacks._callback import Callback, read_state
from stoker.callbacks._context import Context
from stoker.callbacks._courier import Courier
from stoker.callbacks._sink import Ending, Sink, Tracked
from stoker.errors import InvalidArgument
from stoker.record import Event

_FINAL = ("train", "valid", "log", "epoch")
_BEGINS = ("progress", "train", "valid", "epoch")  # kinds that come once states are loaded
_SAID = ("note", "warning", "error")


class Tracker(Callback):
    """Gives a run's numbers to a `Sink` as they come, in a thread of its own.

    >>> class Printed:
    ...     def open(self, run): print("open", run.name)
    ...     def write(self, values, *, update, epoch, time): print(update, values)
    ...     def text(self, text, *, update, time): print(text)
    ...     def close(self, ending): print(ending)
    >>> Tracker(Printed(), name="digits", progress=None)
    Tracker(name='digits', progress=None, patience=30.0)

    Final numbers have their names from the record; those on the way, one every `progress` seconds (`None` for none),
    are called `running/train/loss`. A sink that fails, hangs or is not installed costs the run a warning and nothing
    else; at the end it is waited for `patience` seconds at the most. A run that is resumed goes on with the same run
    of the tracker's.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        name: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        progress: float | None = 5.0,
        patience: float = 30.0,
        needs_folder: bool = False,
    ) -> None:
        if progress is not None and not progress >= 0:
            raise InvalidArgument(f"progress is in seconds, from 0 up, or None for none on the way; got {progress!r}")
        if not 0 <= patience < math.inf:
            raise InvalidArgument(f"patience is in seconds, from 0 up, and comes to an end; got {patience!r}")
        self.name = name
        self.progress = progress
        self.patience = float(patience)
        self._sink = sink
        self._given = None if folder is None else Path(folder)
        self._needs_folder = needs_folder
        self._ctx: Context | None = None
        self._id = ""
        self._update = 0  # where this process began
        self._courier: Courier | None = None
        self._early: list[Event] = []  # what came before it was known which run of the tracker's this is
        self._told: dict[str, float] = {}  # final numbers of this epoch: its last event says them again
        self._shown = -math.inf  # when numbers on the way were last given
        self._ending: Ending = "finished"
        self._unsubscribe: Callable[[], None] = _nothing

    def on_fit_begin(self, ctx: Context) -> None:
        """Listens to the record; the tracker is opened when the first number comes."""
        if self._needs_folder and self._folder(ctx) is None:
            who = type(self).__name__
            raise InvalidArgument(
                f"{who} writes files, and nothing says where: give the fit a run=..., or {who} a folder=..."
            )
        _prepare(self._sink)
        self._unsubscribe()
        self._ctx, self._courier, self._update = ctx, None, ctx.update
        self._early, self._told, self._shown, self._ending = [], {}, -math.inf, "finished"
        self._id = str(_read(ctx, "run.json").get("id") or secrets.token_hex(8))
        self._unsubscribe = ctx.record.subscribe(self._hear)

    def on_interrupt(self, ctx: Context) -> None:
        """Remembers how it ended."""
        self._ending = "interrupted"

    def on_exception(self, ctx: Context) -> None:
        """Closes the tracker's run as a failed one."""
        self._close("failed")

    def on_fit_end(self, ctx: Context) -> None:
        """Closes the tracker's run."""
        self._close(self._ending)

    def state_dict(self) -> dict[str, Any]:
        """Which run of the tracker's it is."""
        return {"id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on with the same run of the tracker's."""
        (self._id,) = read_state(state, "id", who=type(self).__name__)

    def _folder(self, ctx: Context) -> Path | None:
        if self._given is not None or ctx.record.path is None:
            return self._given
        return ctx.record.path.parent / type(self).__name__.lower()

    def _hear(self, event: Event) -> None:
        self._warn()
        if self._courier is not None:
            self._give(self._courier, event)
            return
        self._early.append(event)
        if event.kind in _BEGINS:
            self._open()

    def _open(self) -> Courier:
        """Opens the tracker; what stands at the update where this process began is said again, after a restart."""
        assert self._ctx is not None
        ctx, early = self._ctx, self._early
        run = _tracked(ctx, self._id, self.name, self._folder(ctx), self._update)
        self._courier, self._early = Courier(self._sink, run, who=type(self).__name__), []
        stands = [event for event in ctx.record.events if event.update >= self._update and event.kind in _FINAL]
        heard = {id(event) for event in early}
        for event in [*(event for event in stands if id(event) not in heard), *early]:
            self._give(self._courier, event)
        return self._courier

    def _give(self, courier: Courier, event: Event) -> None:
        place = {"update": event.update, "time": event.time}
        if event.kind in _SAID:
            courier.text(f"{event.kind}: {event.text}", **place)
        elif event.kind in _FINAL:
            new = {name: value for name, value in event.values.items() if not self._was_told(name, value)}
            self._told = {} if event.kind == "epoch" else {**self._told, **new}
            if new:
                courier.write(new, epoch=event.epoch, **place)
        elif event.kind == "progress" and self._is_due(event):
            self._shown = event.time
            running = {f"running/{name}": value for name, value in event.values.items()}
            courier.write(running, epoch=event.epoch, on_the_way=True, **place)

    def _was_told(self, name: str, value: float) -> bool:
        told = self._told.get(name)
        return told is not None and (told == value or (math.isnan(told) and math.isnan(value)))

    def _is_due(self, event: Event) -> bool:
        if self.progress is None or event.extra.get("phase") != "train" or not event.values:
            return False
        return not 0 <= event.time - self._shown < self.progress

    def _warn(self) -> None:
        if self._courier is not None and self._ctx is not None:
            for problem in self._courier.problems():
                self._ctx.warn(problem)

    def _close(self, ending: Ending) -> None:
        if self._ctx is None:
            return
        courier = self._courier or self._open()
        courier.close(ending, patience=self.patience)
        self._unsubscribe()
        self._warn()
        self._ctx, self._courier, self._unsubscribe = None, None, _nothing


def _nothing() -> None:
    """What there is to undo, before there is something."""


def _prepare(sink: Sink) -> None:
    """What fails here fails again when the sink is opened, and is told then."""
    with contextlib.suppress(Exception, SystemExit):
        getattr(sink, "prepare", _nothing)()


def _tracked(ctx: Context, identity: str, name: str | None, folder: Path | None, update: int) -> Tracked:
    begins = ctx.record.events_of("begin")
    facts = _read(ctx, "run.json") or (begins[-1].extra if begins else {})
    name = name or (ctx.record.path.parent.name if ctx.record.path is not None else "fit")
    began = begins[0].time if begins else ctx.record.events[0].time if ctx.record.events else 0.0
    return Tracked(identity, name, folder, _read(ctx, "config.json") or None, facts, update, began)


def _read(ctx: Context, name: str) -> dict[str, Any]:
    """A file of the run's directory; empty where there is none, or where it can't be read."""
    if ctx.record.path is None:
        return {}
    try:
        found = json.loads((ctx.record.path.parent / name).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
