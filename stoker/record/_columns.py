"""The numbers of a run in columns, which a record and the viewers answer questions from.

A million events take about a hundred MB, and the curve of any number is found without a pass over the events.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker.record._event import Event, Line, kept_count, to_event

Direction = Literal["min", "max"]
Source = Literal["epochs", "all", "running"]

# The kinds of rows. Messages (notes, warnings, checkpoints) have no place in the training.
OTHER, MESSAGE, PROGRESS, TRAIN, VALID, LOG, EPOCH = range(7)
_KINDS = {"progress": PROGRESS, "train": TRAIN, "valid": VALID, "log": LOG, "epoch": EPOCH}
_KINDS |= dict.fromkeys(("checkpoint", "note", "warning"), MESSAGE)


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
        return self if len(self) <= limit else self.select(_visible_points(self.value, limit))


def _visible_points(value: np.ndarray, limit: int) -> np.ndarray:
    """Positions of the first and last value, of each bucket's extremes, and of its first NaN (a gap in the line)."""
    count = len(value)
    if count <= max(limit, 2):
        return np.arange(count)
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
        self.rows, self.values = array("i"), array("d")

    def truncate(self, row: int) -> None:
        first = bisect_left(self.rows, row)
        del self.rows[first:], self.values[first:]


class Columns:
    """The valid events so far, one row each; of events with numbers only the numbers are kept.

    Every event has an index, its count from the first one. A damaged line keeps its index, so that a later "resume"
    voids the right events. In a sample of a file the indices are unknown, so nothing is voided there.
    """

    def __init__(self, *, sample: bool = False) -> None:
        self.sample = sample
        self.count = 0  # the index of the next event
        self.damaged = 0
        self.indices, self.kinds = array("q"), array("b")
        self.times, self.epochs, self.updates = array("d"), array("q"), array("q")
        self.final: dict[str, _Series] = {}
        self.running: dict[str, _Series] = {}
        self.names: dict[str, int] = {}  # every number, and the row where it first appeared
        self.epoch_names: dict[str, int] = {}  # those that epochs have
        self.events: list[tuple[int, Event]] = []  # (row, event) of all kinds without numbers, which are few
        self.begins: list[tuple[int, Event]] = []
        self.losses: list[tuple[int, Sequence[str]]] = []  # the row from which on these names are losses
        self.progress: Line | None = None  # the latest of the current epoch

    def __len__(self) -> int:
        return len(self.times)

    def add(self, line: Line | None) -> None:
        """Adds an event at the end; `None` stands for a damaged line."""
        if line is None:
            self.damaged += 1
            self.count += 1
        elif (kind := _KINDS.get(line.kind, OTHER)) >= PROGRESS:
            self._add_numbers(line, kind)
        else:
            self._add_event(line, kind)

    def _add_row(self, line: Line, kind: int) -> int:
        row = len(self.times)
        self.indices.append(self.count)
        self.count += 1
        self.kinds.append(kind)
        self.times.append(line.time)
        self.epochs.append(line.epoch)
        self.updates.append(line.update)
        return row

    def _add_numbers(self, line: Line, kind: int) -> None:
        row, group = self._add_row(line, kind), self.running if kind == PROGRESS else self.final
        for name, value in line.values.items():
            series = group.get(name)
            if series is None:
                series = group[name] = _Series()
                self.names.setdefault(name, row)
            series.rows.append(row)
            series.values.append(value)
        if kind == PROGRESS:
            self.progress = line
            return
        if line.epoch > 0:
            for name in line.values:
                self.epoch_names.setdefault(name, row)
        if kind == EPOCH:
            self.progress = None
        elif kind == TRAIN:
            losses = to_event(line).extra.get("losses") or []
            if losses != (self.losses[-1][1] if self.losses else []):
                self.losses.append((row, losses))

    def _add_event(self, line: Line, kind: int) -> None:
        try:
            event = to_event(line)
        except ValueError:
            self.add(None)
            return
        if event.kind == "resume":
            if not self.sample:
                self._truncate(kept_count(event))
            self.progress = event if event.batch else None  # the position inside the epoch
        row = self._add_row(line, kind)
        self.events.append((row, event))
        if event.kind == "begin":
            self.begins.append((row, event))

    def _truncate(self, count: int) -> None:
        """Removes all events but the first `count`."""
        row = bisect_left(self.indices, count)
        for group in (self.final, self.running):
            for series in group.values():
                series.truncate(row)
            for name in [name for name, series in group.items() if not series.rows]:
                del group[name]
        for names in (self.names, self.epoch_names):
            while names and names[last := next(reversed(names))] >= row:
                del names[last]
        for pairs in (self.events, self.begins, self.losses):
            del pairs[bisect_left(pairs, row, key=lambda pair: pair[0]) :]
        for column in (self.indices, self.kinds, self.times, self.epochs, self.updates):
            del column[row:]
        self.count = min(self.count, count)

    @property
    def begin(self) -> Event | None:
        """The latest "begin" event, which declares the plan and the metrics."""
        return self.begins[-1][1] if self.begins else None

    @property
    def plan(self) -> Mapping[str, Any]:
        """The `extra` of the latest "begin" event."""
        return self.begins[-1][1].extra if self.begins else {}

    def last(self, name: str) -> float | None:
        """The latest final value of a number."""
        series = self.final.get(name)
        return series.values[-1] if series is not None else None

    def latest(self) -> dict[str, float]:
        """The newest value of every number, final or running."""
        found: dict[str, float] = {}
        for name in self.names:
            both = [group[name] for group in (self.final, self.running) if name in group]
            found[name] = max(both, key=lambda series: series.rows[-1]).values[-1]
        return found

    def best(self, name: str, direction: Direction | None = None) -> Best | None:
        """The best final value, the first of equal ones, never NaN; `None` if the direction is unknown."""
        direction, series = direction or self.direction(name), self.final.get(name)
        if direction is None or series is None:
            return None
        values = np.array(series.values)
        valid = np.flatnonzero(~np.isnan(values))
        if not len(valid):
            return None
        place = valid[values[valid].argmin() if direction == "min" else values[valid].argmax()]
        row = series.rows[place]
        return Best(self.epochs[row], self.updates[row], series.values[place], name)

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
        found = next((metrics[each] for each in names if each in metrics), {})
        return found if isinstance(found, Mapping) else {}

    def points(self, name: str, source: Source) -> Points:
        """The values of a number from one source; see `Follower.points`."""
        if source == "running":
            return self._points(self.running, name)
        final = self.final_points(name)
        if source == "epochs":
            final = final.select(final.epoch > 0)
            _, last = np.unique(final.epoch[::-1], return_index=True)
            return final.select(np.sort(len(final) - 1 - last))
        running = self._points(self.running, name)
        running = running.select(~np.isin(running.update, final.update))
        both = Points(
            *(np.concatenate([getattr(each, field) for each in (final, running)]) for field in Points.__slots__)
        )
        return both.select(np.argsort(both.update, kind="stable"))

    def final_points(self, name: str) -> Points:
        """All final values in order of the events, without those that an "epoch" event only repeats."""
        points = self._points(self.final, name)
        series = self.final.get(name)
        if series is None:
            return points
        # Sorted by epoch, a repeated value follows its original.
        order = np.argsort(points.epoch, kind="stable")
        epoch, value = points.epoch[order], points.value[order]
        same = (value[1:] == value[:-1]) | (np.isnan(value[1:]) & np.isnan(value[:-1]))
        repeated = np.zeros(len(points), dtype=bool)
        repeated[order[1:]] = same & (epoch[1:] == epoch[:-1]) & (epoch[1:] > 0)
        return points.select(~(repeated & (np.array(self.kinds)[np.array(series.rows)] == EPOCH)))

    def _points(self, group: Mapping[str, _Series], name: str) -> Points:
        series = group.get(name) or _Series()
        rows = np.array(series.rows, dtype=np.int64)
        # Copies: an array that is shared with numpy could not grow.
        update, epoch, time = (
            np.asarray(column)[rows].astype(np.float64) for column in (self.updates, self.epochs, self.times)
        )
        return Points(update, epoch, time, np.array(series.values, dtype=np.float64))
