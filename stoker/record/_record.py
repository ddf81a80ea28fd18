"""The record of a run: events go in at the end, and questions are answered from what is there."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from stoker.errors import InvalidArgument
from stoker.record._declared import direction_of, unit_of
from stoker.record._event import Event, checked_values, to_line
from stoker.record._fold import folded
from stoker.record._journal import Journal, events_file, read_events
from stoker.record._numbers import Best, Direction, Numbers
from stoker.record._summary import summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Listener = Callable[[Event], object]

_PROGRESS_SECONDS = 1.0  # how far apart progress is kept; a day of it is then some 20 MB on disk


class Record:
    """What happened in a run, in order; everything that wants to know about a run asks its record.

    >>> record = Record()
    >>> for epoch, loss in enumerate([0.5, 0.2, 0.3], 1):
    ...     record.append(Event("valid", epoch=epoch, update=10 * epoch, values={"valid/loss": loss}))
    >>> record.series("valid/loss"), record.best("valid/loss")
    ([0.5, 0.2, 0.3], Best(epoch=2, update=20, value=0.2, name='valid/loss'))

    With a path, each event is also a line of that file (`events.jsonl`), and is safe from a kill once `append` is
    back; a file that is there already is read first and then continued. Of progress, one event a second is kept;
    listeners get them all. About what has not happened there is an empty answer: `[]` or `None`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._events: list[Event] = []
        self._by_kind: dict[str, list[Event]] = {}
        self._numbers = Numbers()
        self._listeners: list[Listener] = []
        self._untold: deque[Event] = deque()
        self._warned: set[int] = set()  # ids of the listeners that failed, and 0 for the file
        self._journal = None if path is None else Journal(events_file(path))
        if self._journal is not None:
            self._journal.open()
            try:
                self._keep_all(read_events(self._journal.path))
            except BaseException:
                self._journal.close()
                raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a run's directory, or its `events.jsonl`, also while it is being written; nothing is written to it."""
        record = cls()
        record._keep_all(read_events(events_file(path)))
        return record

    def append(self, event: Event) -> None:
        """Adds an event, writes it where there is a file, and tells the listeners."""
        if any(type(value) is not float for value in event.values.values()):
            event = replace(event, values=checked_values(event))
        if event.kind != "progress" or self._is_due(event):
            if event.kind == "resume":
                self._keep_all([*self._events, event])
            else:
                self._keep(event)
            if self._journal is not None:
                self._write(self._journal, event)
        if self._listeners:
            self._tell(event)

    def rewind(self, kept: int, event: Event) -> None:
        """Appends a "resume" event: of everything before it the first `kept` events stand, and the rest is void.

        >>> record = Record()
        >>> for loss in (0.5, 0.2, 0.3):
        ...     record.append(Event("valid", epoch=1, values={"valid/loss": loss}))
        >>> record.rewind(1, Event("resume", epoch=1, extra={"checkpoint": "00000120"}))
        >>> record.last("valid/loss"), [event.kind for event in record.events]
        (0.5, ['valid', 'resume'])

        The rest never happened: a killed process wrote it after its last checkpoint. Its lines stay in the file, and
        every answer leaves them out. `kept` is what `len(record.events)` was when the checkpoint was taken.
        """
        if event.kind != "resume":
            raise InvalidArgument(f'rewind was given a {event.kind!r} event; expected Event("resume", …)')
        self.append(replace(event, extra={**event.extra, "kept": kept}))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener(event)` for each event from now on, until the function that this returns is called.

        >>> record, heard = Record(), []
        >>> unsubscribe = record.subscribe(heard.append)
        >>> record.append(Event("note", text="hello"))
        >>> unsubscribe()
        >>> [event.text for event in heard]
        ['hello']

        A listener that fails costs the run nothing: the record gets one warning about it. Events that a listener
        appends come after the one it was told.
        """
        self._listeners = [*self._listeners, listener]  # a new list: the old one may be in use below

        def unsubscribe() -> None:
            self._listeners = [each for each in self._listeners if each is not listener]

        return unsubscribe

    @property
    def events(self) -> Sequence[Event]:
        """Everything that happened, in order, without what a `rewind` made void."""
        return tuple(self._events)

    def __len__(self) -> int:
        """How many events there are, without copying them."""
        return len(self._events)

    @property
    def path(self) -> Path | None:
        """The file of events, where there is one."""
        return None if self._journal is None else self._journal.path

    def events_of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return list(self._by_kind.get(kind, ()))

    @property
    def columns(self) -> list[str]:
        """The names of the numbers that epochs have, in the order in which they came."""
        return list(self._numbers.columns)

    @property
    def rows(self) -> Mapping[int, Mapping[str, float]]:
        """The numbers of each epoch, by name, the running epoch's as far as they are known; a view that grows."""
        return MappingProxyType(self._numbers.rows)

    def series(self, name: str) -> list[float]:
        """One number per epoch, NaN for an epoch that has none."""
        return self._numbers.series(name)

    def all(self, name: str) -> list[tuple[int, float]]:
        """Every `(update, value)` of a number, also those of several validations in one epoch."""
        return list(self._numbers.points.get(name, ()))

    def last(self, name: str) -> float | None:
        """The latest value of a number."""
        points = self._numbers.points.get(name)
        return points[-1][1] if points else None

    def best(self, name: str, direction: Direction | None = None) -> Best | None:
        """The best value of a number, by its own direction where none is given; the first of equal ones, never NaN."""
        if direction not in (None, "min", "max"):
            raise InvalidArgument(f'direction={direction!r}: expected "min" or "max"')
        known = direction or self.direction(name)
        if known is None:
            raise InvalidArgument(f'is a low or a high {name!r} better? Say direction="min" or direction="max"')
        return self._numbers.best(name, known)

    def direction(self, name: str) -> Direction | None:
        """What is better of a number, as its metric declared it; of a loss less is."""
        trained = self._by_kind.get("train")
        losses = trained[-1].extra.get("losses", ()) if trained else ()  # an objective has a name of its own
        return direction_of(name, self._beginning(), losses)

    def unit(self, name: str) -> str:
        """The unit of a number, as its metric declared it."""
        return unit_of(name, self._beginning())

    def summary(self) -> dict[str, Any]:
        """The run in a few plain values: how it stands or ended, how far it came, the best and the last numbers."""
        return summarize(self)

    def plot(self, *names: str, ax: "Axes | None" = None) -> "Figure":
        """Draws its numbers over the epochs, as `History.plot` does; needs matplotlib (`stoker[plot]`).

        `report.plot` draws the same, and what is no curve of epochs: learning rates, confusions, a calibration.
        """
        from stoker.record._history import History

        return History(self).plot(*names, ax=ax)

    def sync(self) -> None:
        """Brings everything that was appended onto the disk; an `OSError` where that can't be done."""
        if self._journal is not None:
            self._journal.sync()

    def close(self) -> None:
        """Lets go of the file; the questions can still be asked, and another event would open it again."""
        if self._journal is not None:
            self._journal.close()

    def _beginning(self) -> Mapping[str, Any]:
        begins = self._by_kind.get("begin")
        return begins[-1].extra if begins else {}

    def _is_due(self, event: Event) -> bool:
        kept = self._by_kind.get("progress")
        return not kept or not 0 <= event.time - kept[-1].time < _PROGRESS_SECONDS

    def _keep_all(self, events: Iterable[Event]) -> None:
        """What stands of these events in the place of all that was kept."""
        stand = folded(events)
        self._events, self._by_kind = [], {}
        self._numbers.clear()
        for event in stand:
            self._keep(event)

    def _keep(self, event: Event) -> None:
        self._events.append(event)
        self._by_kind.setdefault(event.kind, []).append(event)
        self._numbers.add(event)

    def _write(self, journal: Journal, event: Event) -> None:
        try:
            journal.write(to_line(event))
        except OSError as error:  # a full disk, say: the training is worth more than its record
            self._warn(0, f"{journal.path} can't be written, and is tried again with each event: {error}")

    def _tell(self, event: Event) -> None:
        self._untold.append(event)
        if len(self._untold) > 1:  # a listener appends: its event's turn comes
            return
        try:
            while self._untold:
                for listener in self._listeners:
                    self._call(listener, self._untold[0])
                self._untold.popleft()
        finally:
            self._untold.clear()

    def _call(self, listener: Listener, event: Event) -> None:
        try:
            listener(event)
        except Exception as error:
            name = getattr(listener, "__qualname__", type(listener).__name__)
            self._warn(id(listener), f"{name} failed at a {event.kind!r} event: {type(error).__name__}: {error}")

    def _warn(self, what: int, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self.append(Event("warning", text=text))
