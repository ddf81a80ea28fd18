"""The record of a run: events are appended to it, and questions are answered from it."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from stoker._files import explain_errors
from stoker.errors import BadFile, InvalidArgument
from stoker.record._columns import Best, Columns, Direction, Numbers
from stoker.record._event import Event, float_values, kept_count, to_line
from stoker.record._index import write_index
from stoker.record._journal import EVENTS, Journal, read_events
from stoker.record._matrix import split_matrices
from stoker.record._media import MEDIA, Encoded, MediaLimits, file_name, is_media, write_media
from stoker.record._summary import Status, status_of, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Listener = Callable[[Event], object]

_FINAL = frozenset({"train", "valid", "log", "epoch"})  # kinds whose numbers are final; those of "progress" are not
_PROGRESS_SECONDS = 1.0  # the distance of progress events that are kept; a day of them is about 20 MB on disk


class Record(Numbers):
    """What happened in a run, in order; histories, early stopping, summaries and viewers read it.

    >>> record = Record()
    >>> for epoch, loss in enumerate([0.5, 0.2, 0.3], 1):
    ...     record.append(Event("valid", epoch=epoch, update=10 * epoch, values={"valid/loss": loss}))
    >>> record.series("valid/loss"), record.best("valid/loss")
    ([0.5, 0.2, 0.3], Best(epoch=2, update=20, value=0.2, name='valid/loss'))

    With a path, each event is also written to that file (`events.jsonl`) before `append` returns; an existing file is
    read first, as by `open(path, strict=False)`, and then continued. One progress event per second is kept, and every
    one that holds points; listeners get all of them. Questions about something that has not happened return `[]` or
    `None`. `media_limits` says how large media may be, and how many.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._events: list[Event] = []
        self._rows: dict[int, dict[str, float]] = {}  # the final numbers of each epoch
        self._columns = Columns()  # of the events that are not new
        self._new: deque[Event] = deque()  # events that nobody has asked for yet
        self._progress_time = -math.inf  # of the last progress event that was kept
        self._listeners: list[Listener] = []
        self._undelivered: deque[Event] = deque()
        self._warned: set[int | str] = set()  # ids of listeners that failed, and names of other problems
        self._media: set[str] = set()  # the media files
        self.media_limits = MediaLimits()
        self._journal = None if path is None else Journal(_events_path(path))
        if self._journal is not None:
            self._journal.open()
            try:
                self._load(read_events(self._journal.path, strict=False))
            except BaseException:
                self._journal.close()
                raise

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, strict: bool = True) -> Self:
        """Reads a run's directory or its `events.jsonl`, even while it is being written; never writes to it.

        A damaged line is an error. With `strict=False` it becomes an event of the kind "damaged", which keeps its
        place: a later "resume" counts the events before it.
        """
        record = cls()
        record._load(read_events(_events_path(path), strict=strict))
        return record

    def append(self, event: Event) -> None:
        """Adds an event, writes it to the file if there is one, and calls the listeners."""
        if any(type(value) is not float for value in event.values.values()):
            event = replace(event, values=float_values(event))
        event = fold_matrices(event)
        is_soon = 0 <= event.time - self._progress_time < _PROGRESS_SECONDS
        if event.kind != "progress" or not is_soon or "window" in event.extra:
            self._store(event)
        else:
            columns = self._read_columns()
            columns.progress = columns.last_progress = event  # for `status`; it gets no row
        if self._listeners:
            self._deliver(event)

    def append_media(self, event: Event, encode: Callable[[], Encoded]) -> None:
        """Writes a media file and adds its event; listeners get the event with the file's `content` in `extra`.

        Without a file for events, only listeners get it. A full disk and media beyond the limits cause one warning.
        """
        directory = None if self._journal is None else self._journal.path.parent
        if directory is None:
            self._note_once("no media", f"media are not saved without a run directory (here {event.extra['name']!r})")
            if not self._listeners:
                return
        file = file_name(event)
        limits = self.media_limits
        if file not in self._media and len(self._media) >= limits.items:
            self._warn("media items", f"the run has {limits.items:,} media items; further ones are left out")
            return
        content, facts = encode()
        if len(content) > limits.item_bytes:
            size = f"{len(content):,} bytes; at most {limits.item_bytes:,} are kept, and larger ones are left out"
            self._warn("media bytes", f"the {event.extra['type']} {event.extra['name']!r} has {size}")
            return
        event = replace(event, extra={**event.extra, "file": file, "bytes": len(content), **facts})
        if directory is not None:
            try:
                write_media(directory, file, content)
            except OSError as error:
                self._warn("media file", f"media can't be written to {directory / MEDIA}: {error}")
                return
            self._store(event)
        if self._listeners:
            self._deliver(replace(event, extra={**event.extra, "content": content}))

    def rewind(self, kept: int, event: Event) -> None:
        """Appends a "resume" event: the first `kept` events stay valid, the later ones are void.

        >>> record = Record()
        >>> for loss in (0.5, 0.2, 0.3):
        ...     record.append(Event("valid", epoch=1, values={"valid/loss": loss}))
        >>> record.rewind(1, Event("resume", epoch=1, extra={"checkpoint": "00000120"}))
        >>> record.last("valid/loss"), [event.kind for event in record.events]
        (0.5, ['valid', 'resume'])

        The void events were written after the checkpoint from which the run resumes. Their lines stay in the file, but
        no answer includes them. `kept` is what `len(record)` was when the checkpoint was taken.
        """
        if event.kind != "resume":
            raise InvalidArgument(f'rewind was given a {event.kind!r} event; expected Event("resume", …)')
        self.append(replace(event, extra={**event.extra, "kept": kept}))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(event)` for each event from now on; returns a function that ends the subscription.

        >>> record, received = Record(), []
        >>> unsubscribe = record.subscribe(received.append)
        >>> record.append(Event("note", text="hello"))
        >>> unsubscribe()
        >>> [event.text for event in received]
        ['hello']

        If a listener raises, the record gets one warning about it and the run continues. Events that a listener
        appends are delivered after the current one.
        """
        self._listeners = [*self._listeners, listener]  # a new list: the old one may be iterated right now

        def unsubscribe() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return unsubscribe

    @property
    def events(self) -> Sequence[Event]:
        """All valid events, in order."""
        return tuple(self._events)

    @property
    def last_event(self) -> Event | None:
        """The newest event."""
        return self._events[-1] if self._events else None

    def __len__(self) -> int:
        """The number of valid events."""
        return len(self._events)

    @property
    def path(self) -> Path | None:
        """The events file, if there is one."""
        return None if self._journal is None else self._journal.path

    def events_of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self._events if event.kind == kind]

    @property
    def columns(self) -> list[str]:
        """The names of the numbers that epochs have, in order of first appearance."""
        return list(self._read_columns().epoch_names)

    @property
    def rows(self) -> Mapping[int, Mapping[str, float]]:
        """The numbers of each epoch by name, the current epoch's as far as they are known; a live view."""
        return MappingProxyType(self._rows)

    def series(self, name: str) -> list[float]:
        """One value per epoch, NaN for an epoch without one."""
        return [row.get(name, float("nan")) for row in self._rows.values()] if name in self.columns else []

    def all(self, name: str) -> list[tuple[int, float]]:
        """Every final `(update, value)` of a number, also several validations in one epoch."""
        points = self._read_columns().final_points(name)
        return list(zip(points.update.astype(int).tolist(), points.value.tolist(), strict=True))

    def last(self, name: str) -> float | None:
        """The latest value of a number."""
        return self._read_columns().last(name)

    def best(self, name: str, direction: Direction | None = None) -> Best | None:
        """The best value of a number, the first of equal ones, never NaN; `direction` defaults to the metric's own."""
        if direction not in (None, "min", "max"):
            raise InvalidArgument(f'direction={direction!r}: expected "min" or "max"')
        if direction is None and self.direction(name) is None:
            raise InvalidArgument(f'is a low or a high {name!r} better? Say direction="min" or direction="max"')
        return self._read_columns().best(name, direction)

    @property
    def monitor(self) -> str | None:
        """The number that epochs are compared by: the one the run declared, else a loss."""
        return self._read_columns().find_monitor()

    def summary(self, *, alive: bool = True) -> dict[str, Any]:
        """The run in a few plain values: its state, how far it came, its best and its last numbers.

        The state is "running", "finished" (as planned, or ended by a callback such as early stopping), "stopped" (by a
        signal, a deadline or a person), "failed" (by an exception) or "died". `epochs` counts complete ones; `part` is
        `[batches done, batches]` of one that was cut short. `last` has the numbers of the last complete epoch. `alive`
        says whether its process is; a run that has no end and is not alive has "died".
        """
        return summarize(self._read_columns(), alive=alive)

    def status(self) -> Status:
        """The progress of the run, for a display."""
        columns = self._read_columns()
        return status_of(columns, summarize(columns))

    def plot(self, *names: str, ax: "Axes | None" = None) -> "Figure":
        """Draws the numbers over the epochs, as `History.plot` does; needs matplotlib (`stoker[plot]`).

        `stoker.view.report.plot` also draws learning rates, confusion matrices and calibrations.
        """
        from stoker.record._history import History

        return History(self).plot(*names, ax=ax)

    def sync(self) -> None:
        """Writes all events to the disk, so that they survive a power cut; raises `OSError` if that fails."""
        if self._journal is not None:
            self._journal.sync()

    def close(self) -> None:
        """Closes the file; the record can still be read, and another event would open the file again.

        A large file gets an index first, which viewers read instead.
        """
        if self._journal is None:
            return
        if self._journal.is_open:
            with suppress(OSError):  # a full disk: viewers read the record itself
                write_index(self._journal.path, self._events, self._read_columns())
        self._journal.close()

    def _load(self, events: Iterable[Event]) -> None:
        valid: list[Event] = []
        for event in events:  # void events are dropped first, so that the others are added only once
            if event.kind == "resume":
                del valid[kept_count(event) :]
            valid.append(event)
        for event in valid:
            self._add(event)

    def _store(self, event: Event) -> None:
        """Adds an event, and writes it to the file if there is one."""
        self._add(event)
        if self._journal is not None:
            try:
                self._journal.write(to_line(event))
            except (OSError, BadFile) as error:  # a full disk must not end the training
                self._warn("file", f"{self._journal.path} can't be written ({error}); the next event tries again")

    def _add(self, event: Event) -> None:
        if event.kind == "resume" and (kept := kept_count(event)) < len(self._events):
            del self._events[kept:]
            self._rows.clear()
            for valid in self._events:
                self._add_to_row(valid)
            self._media = {event.extra["file"] for event in self._events if event.kind == "media" and is_media(event)}
        elif event.kind == "progress":
            self._progress_time = event.time
        elif event.kind == "media" and is_media(event):
            self._media.add(event.extra["file"])
        self._events.append(event)
        self._add_to_row(event)
        self._new.append(event)

    def _read_columns(self) -> Columns:
        """The events as columns; a fit that nobody watches does not wait for them."""
        while self._new:
            self._columns.add(self._new.popleft())
        return self._columns

    def _add_to_row(self, event: Event) -> None:
        if event.kind in _FINAL and event.epoch > 0 and event.values:
            self._rows.setdefault(event.epoch, {}).update(event.values)

    def _deliver(self, event: Event) -> None:
        self._undelivered.append(event)
        if len(self._undelivered) > 1:  # a listener appended it: the loop below delivers it
            return
        try:
            while self._undelivered:
                for listener in self._listeners:
                    self._call(listener, self._undelivered[0])
                self._undelivered.popleft()
        finally:
            self._undelivered.clear()

    def _call(self, listener: Listener, event: Event) -> None:
        try:
            listener(event)
        except Exception as error:
            name = getattr(listener, "__qualname__", type(listener).__name__)
            self._warn(id(listener), f"{name} failed at a {event.kind!r} event: {type(error).__name__}: {error}")

    def _warn(self, source: int | str, text: str) -> None:
        self._note_once(source, text, kind="warning")

    def _note_once(self, source: int | str, text: str, kind: str = "note") -> None:
        if source not in self._warned:
            self._warned.add(source)
            self.append(Event(kind, text=text))


def fold_matrices(event: Event) -> Event:
    """The event with the cells of matrices in its values as one entry of `extra["matrices"]` each."""
    if event.kind not in _FINAL:
        return event
    numbers, matrices = split_matrices(event.values)
    if not matrices:
        return event
    known = event.extra.get("matrices")
    extra = {**event.extra, "matrices": {**(known if isinstance(known, Mapping) else {}), **matrices}}
    return replace(event, values=numbers, extra=extra)


def _events_path(path: str | os.PathLike[str]) -> Path:
    path = Path(path)
    with explain_errors(path, expected="a run's directory"):
        return path / EVENTS if path.is_dir() else path
