"""The numbers of a run in columns, which a record and the viewers answer questions from.

A million events take about a hundred MB, and the curve of any number is found without a pass over the events.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker.record._event import Event, drop_unexpected, kept_count

Direction = Literal["min", "max"]
Source = Literal["epochs", "all", "running"]

# The kinds of rows. Messages have no place in the training.
DAMAGED, OTHER, MESSAGE, PROGRESS, TRAIN, VALID, LOG, EPOCH = range(8)
_KINDS = {"progress": PROGRESS, "train": TRAIN, "valid": VALID, "log": LOG, "epoch": EPOCH}
_KINDS |= dict.fromkeys(("checkpoint", "note", "warning"), MESSAGE)
_MESSAGES = {"note", "warning", "stop", "error", "resume", "checkpoint"}


class Best(NamedTuple):
    """The best value of a number, and where it was reached."""

    epoch: int
    update: int
    value: float
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """The values of one number over a run: four float64 arrays of the same length.

    >>> points = Points(*np.array([[10.0, 20.0], [1.0, 2.0], [1.5, 2.5], [0.5, 0.25]]))
    >>> len(points), points.value.tolist()
    (2, [0.5, 0.25])

    `time` is in seconds since 1970. A `value` may be NaN or infinite.
    """

    update: np.ndarray
    epoch: np.ndarray
    time: np.ndarray
    value: np.ndarray

    def __len__(self) -> int:
        return len(self.value)

    def select(self, index: np.ndarray) -> "Points":
        """The points at these positions, or where a boolean mask is true."""
        return Points(self.update[index], self.epoch[index], self.time[index], self.value[index])

    def downsample(self, limit: int) -> "Points":
        """About `limit` points that look the same: the ends, and the lowest and highest value of each stretch."""
        return self if len(self) <= max(limit, 2) else self.select(_visible_points(self.value, limit))


def _visible_points(value: np.ndarray, limit: int) -> np.ndarray:
    """Positions of the first and last value, of each bucket's extremes, and of its first NaN (a gap in the line)."""
    count = len(value)
    missing = np.isnan(value)
    buckets = max(1, (limit - 2) // (3 if missing.any() else 2))
    width = -(-count // buckets)
    rows = -(-count // width)

    def lowest_per_bucket(key: np.ndarray) -> np.ndarray:
        padded = np.full(rows * width, np.inf)
        padded[:count] = key
        return padded.reshape(rows, width).argmin(axis=1) + np.arange(rows) * width

    lowest = lowest_per_bucket(np.where(missing, np.inf, value))
    highest = lowest_per_bucket(np.where(missing, np.inf, -value))
    gaps = lowest_per_bucket(np.where(missing, 0.0, 1.0))
    return np.unique(np.concatenate([[0, count - 1], lowest, highest, gaps[missing[gaps]]]))


class _Series:
    """One number: the rows of its events, and its values."""

    __slots__ = ("rows", "values")

    def __init__(self) -> None:
        self.rows = array("i")
        self.values = array("d")


class Columns:
    """The valid events so far, one row each; of events with numbers only the numbers are kept.

    A damaged line has a row too, so that a later "resume" voids the right events. In a sample of a file (`sample` is
    "ends" or "stretches") the rows are not those of the file, so nothing is voided there.
    """

    def __init__(self, *, sample: Literal["", "ends", "stretches"] = "") -> None:
        self.sample = sample
        self.damaged = 0
        self.kinds = array("b")
        self.times = array("d")
        self.epochs = array("q")
        self.updates = array("q")
        self.series: dict[str, _Series] = {}  # by name, in order of first appearance
        self.epoch_names: dict[str, int] = {}  # the numbers that epochs have, and the row where each first appeared
        self.events: list[tuple[int, Event]] = []  # (row, event) of all kinds without numbers, which are few
        self.losses: list[tuple[int, Sequence[str]]] = []  # the row from which on these names are losses
        self.begin: Event | None = None  # the latest one, which declares the plan and the metrics
        self.progress: Event | None = None  # the latest of the current epoch
        self.last_progress: Event | None = None  # the latest of any epoch

    def __len__(self) -> int:
        return len(self.times)

    def extend(self, events: Iterable[Event | None]) -> None:
        """Adds events at the end."""
        for event in events:
            self.add(event)

    def add(self, event: Event | None) -> None:
        """Adds an event at the end; `None` stands for a damaged line."""
        if event is None:
            self.damaged += 1
            self._add_row(DAMAGED, self.times[-1] if self.times else math.nan, 0, 0)
        elif (kind := _KINDS.get(event.kind, OTHER)) >= PROGRESS:
            self._add_numbers(event, kind)
        else:
            self._add_event(event, kind)

    def _add_row(self, kind: int, time: float, epoch: int, update: int) -> int:
        row = len(self.times)
        if row and kind != DAMAGED and self.kinds[-1] == DAMAGED and math.isnan(self.times[-1]):
            # The first event: damaged lines before it get its time.
            self.times = array("d", [time] * row)
        self.kinds.append(kind)
        self.times.append(time)
        self.epochs.append(epoch)
        self.updates.append(update)
        return row

    def _add_numbers(self, event: Event, kind: int) -> None:
        row = self._add_row(kind, event.time, event.epoch, event.update)
        for name, value in event.values.items():
            series = self.series.get(name)
            if series is None:
                series = self.series[name] = _Series()
            series.rows.append(row)
            series.values.append(value)
        if kind == PROGRESS:
            self.progress = self.last_progress = event
            return
        if event.epoch > 0:
            for name in event.values:
                self.epoch_names.setdefault(name, row)
        if kind == EPOCH:
            self.progress = None
        elif kind == TRAIN:
            losses = drop_unexpected(event).extra.get("losses") or []
            if losses != (self.losses[-1][1] if self.losses else []):
                self.losses.append((row, losses))

    def _add_event(self, event: Event, kind: int) -> None:
        event = drop_unexpected(event)
        if event.kind == "resume":
            try:
                kept = kept_count(event)
            except ValueError:
                self.add(None)
                return
            if not self.sample:
                self._truncate(kept)
            self.progress = event if event.batch else None  # the position inside the epoch
        elif event.kind == "begin":
            self.begin = event
        self.events.append((self._add_row(kind, event.time, event.epoch, event.update), event))

    def _truncate(self, row: int) -> None:
        """Removes all rows from this one on."""
        for name, series in list(self.series.items()):
            first = bisect_left(series.rows, row)
            if first == 0:
                del self.series[name]
            del series.rows[first:], series.values[first:]
        self.epoch_names = {name: first for name, first in self.epoch_names.items() if first < row}
        for pairs in (self.events, self.losses):
            del pairs[bisect_left(pairs, row, key=lambda pair: pair[0]) :]
        for column in (self.kinds, self.times, self.epochs, self.updates):
            del column[row:]
        self.begin = next((event for _, event in reversed(self.events) if event.kind == "begin"), None)

    @property
    def plan(self) -> Mapping[str, Any]:
        """The `extra` of the latest "begin" event."""
        return self.begin.extra if self.begin is not None else {}

    def last(self, name: str) -> float | None:
        """The latest final value of a number."""
        series = self.series.get(name) or _Series()
        newest_first = zip(reversed(series.rows), reversed(series.values), strict=True)
        return next((value for row, value in newest_first if self.kinds[row] != PROGRESS), None)

    def latest(self) -> dict[str, float]:
        """The newest value of every number, final or running."""
        return {name: series.values[-1] for name, series in self.series.items()}

    def best(self, name: str, direction: Direction | None = None) -> Best | None:
        """The best final value, the first of equal ones, never NaN; `None` if the direction is unknown."""
        direction = direction or self.direction(name)
        points, kinds = self._values(name)
        points = points.select((kinds != PROGRESS) & ~np.isnan(points.value))
        if direction is None or not len(points):
            return None
        index = points.value.argmin() if direction == "min" else points.value.argmax()
        return Best(int(points.epoch[index]), int(points.update[index]), float(points.value[index]), name)

    def direction(self, name: str) -> Direction | None:
        """Whether less or more is better, as the metric declared it; less is better for a loss."""
        declared = self._declaration(name).get("direction")
        if declared in ("min", "max"):
            return declared
        losses = self.losses[-1][1] if self.losses else ()
        return "min" if name.split("/")[-1] == "loss" or name.partition("/")[2] in losses else None

    def unit(self, name: str) -> str:
        """The unit of a number, as its metric declared it."""
        return str(self._declaration(name).get("unit") or "")

    def _declaration(self, name: str) -> Mapping[str, Any]:
        """What "begin" declared about the metric of a number: "valid/recall/3" belongs to "recall"."""
        metrics = self.plan.get("metrics") or {}
        parts = name.split("/")
        names = [name, "/".join(parts[1:]), *("/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1))]
        declaration = next((metrics[key] for key in names if key in metrics), {})
        return declaration if isinstance(declaration, Mapping) else {}

    def points(self, name: str, source: Source) -> Points:
        """The values of a number from one source; see `Numbers.points`."""
        points, kinds = self._values(name)
        running = points.select(kinds == PROGRESS)
        if source == "running":
            return running
        final = self.final_points(name)
        if source == "epochs":
            final = final.select(final.epoch > 0)
            _, last = np.unique(final.epoch[::-1], return_index=True)
            return final.select(np.sort(len(final) - 1 - last))
        running = running.select(~np.isin(running.update, final.update))
        fields = [(getattr(final, field), getattr(running, field)) for field in Points.__slots__]
        both = Points(*map(np.concatenate, fields))
        return both.select(np.argsort(both.update, kind="stable"))

    def final_points(self, name: str) -> Points:
        """All final values in order of the events, without those that an "epoch" event only repeats."""
        points, kinds = self._values(name)
        final = kinds != PROGRESS
        points, kinds = points.select(final), kinds[final]
        # Sorted by epoch, a repeated value follows its original.
        order = np.argsort(points.epoch, kind="stable")
        epoch, value = points.epoch[order], points.value[order]
        same = (value[1:] == value[:-1]) | (np.isnan(value[1:]) & np.isnan(value[:-1]))
        repeated = np.zeros(len(points), dtype=bool)
        repeated[order[1:]] = same & (epoch[1:] == epoch[:-1]) & (epoch[1:] > 0)
        return points.select(~(repeated & (kinds == EPOCH)))

    def _values(self, name: str) -> tuple[Points, np.ndarray]:
        """All values of a number, final and running, and the kind of each."""
        series = self.series.get(name) or _Series()
        rows = np.array(series.rows, dtype=np.int64)
        # Indexing copies: an array that is shared with numpy could not grow.
        update, epoch, time = (
            np.asarray(column)[rows].astype(np.float64) for column in (self.updates, self.epochs, self.times)
        )
        return Points(update, epoch, time, np.array(series.values)), np.asarray(self.kinds)[rows]


class Numbers:
    """What a `Record` and a `Follower` can be asked about the numbers of a run."""

    _columns: Columns

    @property
    def names(self) -> list[str]:
        """The names of all numbers, in order of first appearance."""
        return list(self._columns.series)

    @property
    def begin(self) -> Event | None:
        """The latest "begin" event: the plan, and what is known about the metrics."""
        return self._columns.begin

    @property
    def messages(self) -> list[Event]:
        """Notes, warnings, stops, errors, resumes and checkpoints, in order."""
        return [event for _, event in self._columns.events if event.kind in _MESSAGES]

    def points(self, name: str, *, source: Source = "all") -> Points:
        """The values of a number over the run, in order of update; empty for an unknown name.

        "epochs" gives the latest value of each epoch, "running" the values of progress events, "all" both and every
        validation; a final value then replaces a running one of the same update.
        """
        return self._columns.points(name, source)

    def count(self, name: str) -> int:
        """How many values of a number there are, running ones included."""
        return len(self._columns.series[name].rows) if name in self._columns.series else 0

    def direction(self, name: str) -> Direction | None:
        """Whether less ("min") or more ("max") is better, as the metric declared it; for a loss less is."""
        return self._columns.direction(name)

    def unit(self, name: str) -> str:
        """The unit of a number, as its metric declared it."""
        return self._columns.unit(name)
