"""Trackers: callbacks that send a run's metrics to other programs, from a thread of their own.

A `Sink` is the connection to such a program. `Tracker` is the callback: it subscribes to the record and hands
the events to a `_Delivery`, whose thread calls the sink. Training therefore never waits for a sink, and never fails
with it.
"""

import contextlib
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from stoker._files import read_json
from stoker.callbacks._callback import Callback
from stoker.callbacks._context import Context
from stoker.errors import BadFile, InvalidArgument
from stoker.record import Event

Ending = Literal["finished", "interrupted", "failed"]

_FINAL = ("train", "valid", "log", "epoch")  # kinds of events with final values
_MESSAGES = ("note", "warning", "error")

_PROGRESS_LIMIT = 1_000  # queued calls from which progress values are dropped
_LIMIT = 100_000  # queued calls from which everything is dropped: a sink that hangs must not fill the memory


@dataclass(frozen=True, slots=True)
class Tracked:
    """A run as its trackers see it.

    `id` stays the same when the run is resumed. `folder` is where the tracker may write files, or `None`. `update` is
    where this process starts: values of that update and later ones are sent again.
    """

    id: str
    name: str
    folder: Path | None
    config: Any
    facts: Mapping[str, Any]
    update: int
    time: float  # when the run began, in seconds since 1970


@dataclass(frozen=True, slots=True)
class MediaItem:
    """An image, histogram, text, table or sound, as trackers get it; see `stoker.record.MediaLog`.

    `content` is that of the file (PNG, JSON, text or WAV), `extra` what its event says about it.
    """

    name: str
    type: str
    content: bytes
    caption: str
    update: int
    time: float
    extra: Mapping[str, Any]


class Sink(Protocol):
    """The four methods that `callbacks.Tracker` needs to send a run's metrics somewhere.

    They are called one after the other in a thread of their own; they may block and raise without affecting the
    training. A sink may also have a method `prepare()` for a slow import. It is called in the main thread before the
    fit begins: a data worker that is forked while another thread imports something could wait for that import forever.
    A sink that takes media has a method `media(item)`, which gets a `MediaItem`.
    """

    def open(self, run: Tracked) -> Mapping[tuple[int, str], float] | None:
        """Creates the tracker's run, or continues the one with this `id`.

        It may return the values it already has from `run.update` on, as `{(update, name): value}`; equal ones are not
        sent again.
        """
        ...

    def write(self, values: Mapping[str, float], *, update: int, epoch: int, time: float) -> None:
        """Takes values by name; they may be NaN or infinite. `time` is in seconds since 1970."""
        ...

    def text(self, text: str, *, update: int, time: float) -> None:
        """Takes a note, a warning or an error message of the run."""
        ...

    def close(self, ending: Ending) -> None:
        """Called once; nothing follows from this process."""
        ...


class Tracker(Callback):
    """Sends a run's metrics to a `Sink` while it trains.

    >>> class Printer:
    ...     def open(self, run): print("open", run.name)
    ...     def write(self, values, *, update, epoch, time): print(update, values)
    ...     def text(self, text, *, update, time): print(text)
    ...     def close(self, ending): print(ending)
    >>> Tracker(Printer(), name="digits", progress=None)
    Tracker(name='digits', progress=None, patience=30.0)

    Final values have the names of the record. Every `progress` seconds (`None`: never) the running values of an epoch
    are sent as `running/train/loss`. A sink that fails, hangs or is not installed causes one warning and nothing else;
    at the end of the fit it gets `patience` seconds to finish. A resumed run continues the same run of the tracker: its
    id is that of the run's directory, or, without one, belongs to this object.
    """

    transient = True

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
            raise InvalidArgument(f"progress is a number of seconds of at least 0, or None for never; got {progress!r}")
        if not 0 <= patience < math.inf:
            raise InvalidArgument(f"patience is a finite number of seconds of at least 0; got {patience!r}")
        self.name = name
        self.progress = progress
        self.patience = float(patience)
        self._sink = sink
        self._folder = None if folder is None else Path(folder)
        self._needs_folder = needs_folder
        self._id = ""
        self._delivery: _Delivery | None = None  # of the current fit
        self._sent: dict[str, float] = {}  # final values of this epoch; its "epoch" event repeats them
        self._progress_time = -math.inf  # of the last progress event that was sent
        self._ending: Ending = "finished"
        self._unsubscribe: Callable[[], None] = _do_nothing

    def on_fit_begin(self, ctx: Context) -> None:
        """Subscribes to the record; the sink is opened when the first values come."""
        self._unsubscribe()
        run = self._describe_run(ctx)
        if self._needs_folder and run.folder is None:
            owner = type(self).__name__
            raise InvalidArgument(f"{owner} writes files: give fit run=..., or {owner} folder=...")
        with contextlib.suppress(Exception, SystemExit):  # it fails again in `open`, which is reported
            getattr(self._sink, "prepare", _do_nothing)()
        self._id = run.id
        self._delivery = delivery = _Delivery(self._sink, run, owner=type(self).__name__)
        self._sent = {}
        self._progress_time = -math.inf
        self._ending = "finished"
        for event in ctx.record.events:
            if event.update >= ctx.update and event.kind in _FINAL:
                self._send(delivery, event)

        def receive(event: Event) -> None:
            for problem in delivery.take_problems():
                ctx.warn(problem)
            if (
                event.values and event.epoch
            ):  # data workers are forked by now: they could need a lock that a thread holds
                delivery.start()
            self._send(delivery, event)

        self._unsubscribe = ctx.record.subscribe(receive)

    def on_interrupt(self, ctx: Context) -> None:
        """Remembers that the fit was interrupted."""
        self._ending = "interrupted"

    def on_exception(self, ctx: Context) -> None:
        """Closes the tracker's run as failed."""
        self._close(ctx, "failed")

    def on_fit_end(self, ctx: Context) -> None:
        """Closes the tracker's run."""
        self._close(ctx, self._ending)

    def _describe_run(self, ctx: Context) -> Tracked:
        facts = _read_run_file(ctx, "run.json")
        begins = ctx.record.events_of("begin")
        directory = None if ctx.record.path is None else ctx.record.path.parent
        folder = self._folder
        if folder is None and directory is not None:
            folder = directory / type(self).__name__.lower()
        continued = self._id if ctx.update > 0 else ""
        return Tracked(
            id=str(facts.get("id") or continued or os.urandom(8).hex()),
            name=self.name or (directory.name if directory is not None else "fit"),
            folder=folder,
            config=_read_run_file(ctx, "config.json") or None,
            facts=facts or (begins[-1].extra if begins else {}),
            update=ctx.update,
            time=ctx.record.events[0].time if ctx.record.events else 0.0,
        )

    def _send(self, delivery: "_Delivery", event: Event) -> None:
        position = {"update": event.update, "time": event.time}
        if event.kind in _MESSAGES:
            delivery.text(f"{event.kind}: {event.text}", **position)
        elif event.kind in _FINAL:
            new = {name: value for name, value in event.values.items() if not _equal(self._sent.get(name), value)}
            self._sent = {} if event.kind == "epoch" else {**self._sent, **new}
            if new:
                delivery.write(new, epoch=event.epoch, **position)
        elif event.kind == "media" and "content" in event.extra:
            extra = event.extra
            delivery.media(
                MediaItem(extra["name"], extra["type"], extra["content"], extra["caption"], **position, extra=extra)
            )
        elif event.kind == "progress" and self._is_due(event):
            self._progress_time = event.time
            running = {f"running/{name}": value for name, value in event.values.items()}
            delivery.write(running, epoch=event.epoch, is_progress=True, **position)

    def _is_due(self, event: Event) -> bool:
        if self.progress is None or event.extra.get("phase") != "train" or not event.values:
            return False
        return not 0 <= event.time - self._progress_time < self.progress  # also if the clock was set back

    def _close(self, ctx: Context, ending: Ending) -> None:
        if self._delivery is None:
            return
        self._delivery.close(ending, patience=self.patience)
        self._unsubscribe()
        self._unsubscribe = _do_nothing
        for problem in self._delivery.take_problems():
            ctx.warn(problem)
        self._delivery = None


class _Delivery:
    """Calls a sink in a thread, in order. Its methods never block (`close`: for `patience` seconds) and never raise.

    Each kind of problem is reported once, as a text that `take_problems` returns.
    """

    def __init__(self, sink: Sink, run: Tracked, *, owner: str) -> None:
        self._sink = sink
        self._run = run
        self._owner = owner
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._problems: deque[str] = deque()
        self._reported: set[str] = set()
        self._existing: Mapping[tuple[int, str], float] = {}  # values that the sink already has
        self._closed = False
        # A daemon thread: a sink that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name=f"stoker-{owner}", daemon=True)

    def start(self) -> None:
        """Starts the thread, which opens the sink first."""
        if self._thread.ident is None and not self._closed and not self._try("open", self._thread.start):
            self._closed = True

    def write(
        self, values: Mapping[str, float], *, update: int, epoch: int, time: float, is_progress: bool = False
    ) -> None:
        def send() -> None:
            new = {
                name: value for name, value in values.items() if not _equal(self._existing.get((update, name)), value)
            }
            if new:
                self._sink.write(new, update=update, epoch=epoch, time=time)

        self._put(send, limit=_PROGRESS_LIMIT if is_progress else _LIMIT)

    def text(self, text: str, *, update: int, time: float) -> None:
        self._put(lambda: self._sink.text(text, update=update, time=time), limit=_LIMIT)

    def media(self, item: MediaItem) -> None:
        send = getattr(self._sink, "media", None)
        if send is not None:
            self._put(lambda: send(item), limit=_PROGRESS_LIMIT)

    def close(self, ending: Ending, *, patience: float) -> None:
        self.start()
        self._put(lambda: self._sink.close(ending), limit=math.inf)
        self._closed = True
        self._calls.put(None)
        if self._thread.is_alive():  # a thread that never started cannot be joined
            self._thread.join(patience)
        if self._thread.is_alive():
            rest = self._calls.qsize()
            self._report("late", f"did not finish within {patience:g} seconds; {rest} calls are still queued")

    def take_problems(self) -> list[str]:
        return [self._problems.popleft() for _ in range(len(self._problems))]

    def _put(self, call: Callable[[], object], *, limit: float) -> None:
        if self._closed:
            return
        if self._calls.qsize() < limit:
            self._calls.put(call)
        else:
            self._report(
                "slow", f"is too slow: it misses running values, and everything beyond {_LIMIT:,} queued calls"
            )

    def _work(self) -> None:
        if not self._try("open", self._open):
            self._closed = True
            return
        while (call := self._calls.get()) is not None:
            self._try("write", call)

    def _open(self) -> None:
        self._existing = self._sink.open(self._run) or {}

    def _try(self, action: str, call: Callable[[], object]) -> bool:
        try:
            call()
        except (Exception, SystemExit) as error:  # training must not fail because a tracker does
            lost = "it receives nothing" if action == "open" else "some values are missing there"
            self._report(action, f"failed, and training continues; {lost}: {type(error).__name__}: {error}")
            return False
        return True

    def _report(self, kind: str, text: str) -> None:
        if kind not in self._reported:
            self._reported.add(kind)
            self._problems.append(f"{self._owner} {text}")


def _do_nothing() -> None:
    pass


def _equal(a: float | None, b: float) -> bool:
    return a is not None and (a == b or (math.isnan(a) and math.isnan(b)))


def _read_run_file(ctx: Context, name: str) -> dict[str, Any]:
    """A JSON file of the run directory; empty if there is none or it cannot be read."""
    if ctx.record.path is None:
        return {}
    try:
        content = read_json(ctx.record.path.parent / name, missing_ok=True)
    except (OSError, BadFile):
        return {}
    return content if isinstance(content, dict) else {}
