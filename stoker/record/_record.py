"""The record of a run: events go in at the end, and questions are answered from what is there."""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from stoker.errors import InvalidArgument
from stoker.record._event import Event, checked_values, to_line
from stoker.record._journal import Journal, events_file, read_events
from stoker.record._numbers import Best, Direction, Numbers
from stoker.record._summary import summarize

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
            for event in read_events(self._journal.path):
                self._keep(event)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a run's directory, or its `events.jsonl`, also while it is being written; nothing is written to it."""
        record = cls()
        for event in read_events(events_file(path)):
            record._keep(event)
        return record

    def append(self, event: Event) -> None:
        """Adds an event, writes it where there is a file, and tells the listeners."""
        if any(type(value) is not float for value in event.values.values()):
            event = replace(event, values=checked_values(event))
        if event.kind != "progress" or self._is_due(event):
            self._keep(event)
            if self._journal is not None:
                self._write(self._journal, event)
        if self._listeners:
            self._tell(event)

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
        """Everything that happened, in order."""
        return tuple(self._events)

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
        found = self._about(name).get("direction")
        if found in ("min", "max"):
            return found
        trained = self._by_kind.get("train")
        losses = trained[-1].extra.get("losses", ()) if trained else ()  # an objective has a name of its own
        return "min" if name.split("/")[-1] == "loss" or name.partition("/")[2] in losses else None

    def unit(self, name: str) -> str:
        """The unit of a number, as its metric declared it."""
        return self._about(name).get("unit") or ""

    def summary(self) -> dict[str, Any]:
        """The run in a few plain values: how it stands or ended, how far it came, the best and the last numbers."""
        return summarize(self)

    def close(self) -> None:
        """Lets go of the file; the questions can still be asked, and another event would open it again."""
        if self._journal is not None:
            self._journal.close()

    def _about(self, name: str) -> dict[str, Any]:
        """What the run's beginning said of a number: "valid/recall/3" is "recall" of a validation, class 3."""
        begins = self._by_kind.get("begin")
        declared = begins[-1].extra.get("metrics") or {} if begins else {}
        parts = name.split("/")
        names = [name, "/".join(parts[1:]), *("/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1))]
        return next((declared[each] for each in names if each in declared), {})

    def _is_due(self, event: Event) -> bool:
        kept = self._by_kind.get("progress")
        return not kept or not 0 <= event.time - kept[-1].time < _PROGRESS_SECONDS

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
