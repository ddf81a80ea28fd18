"""The numbers of a run in columns, which a record and the viewers answer questions from.

A million events take about a hundred MB, and the curve of any number is found without a pass over the events.
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker.record._event import Event, drop_unexpected, kept_count
from stoker.record._matrix import Matrix, label_matrix, read_matrices
from stoker.record._media import is_media

Direction = Literal["min", "max"]
Source = Literal["epochs", "all", "running"]

# The kinds of rows. Messages have no place in the training.
DAMAGED, OTHER, MESSAGE, SYSTEM, PROGRESS, TRAIN, VALID, LOG, EPOCH = range(9)
_KINDS = {"system": SYSTEM, "progress": PROGRESS, "train": TRAIN, "valid": VALID, "log": LOG, "epoch": EPOCH}
_KINDS |= dict.fromkeys(("checkpoint", "note", "warning", "media"), MESSAGE)
_MESSAGES = {"note", "warning", "stop", "error", "resume", "checkpoint"}
# The units of the numbers in "system" events.
_SYSTEM_UNITS = {"cpu": "%", "process_cpu": "%", "memory": "GB", "memory_used": "%", "gpu": "%", "gpu_memory": "GB"}


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
    """One number: its final values with the rows of their events, and its running values with their points."""

    __slots__ = ("point_numbers", "rows", "running", "values")

    def __init__(self) -> None:
        self.rows = array("i")
        self.values = array("d")
        self.point_numbers = array("i")  # places in `Columns.point_rows`, `point_times` and `point_updates`
        self.running = array("d")


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
        # Points of running values: the row of the event that holds each one, and its own time and update.
        self.point_rows = array("i")
        self.point_times = array("d")
        self.point_updates = array("q")
        self.series: dict[str, _Series] = {}  # by name, in order of first appearance
        self.windowed: set[str] = set()  # the numbers whose running values are means over windows of updates
        self.matrices: dict[str, list[tuple[int, Matrix]]] = {}  # by name: the row of the event, and the matrix
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
        elif (kind := _KINDS.get(event.kind, OTHER)) >= SYSTEM:
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
        if kind <= PROGRESS:
            self._add_points(event, row)
            if kind == PROGRESS:
                self.progress = self.last_progress = event
            return
        if "points" in event.extra:
            self._add_points(event, row)
        for name, value in event.values.items():
            series = self._series(name)
            series.rows.append(row)
            series.values.append(value)
        if "matrices" in event.extra:
            for name, matrix in read_matrices(event.extra, event.epoch, event.update).items():
                self.matrices.setdefault(name, []).append((row, matrix))
        if event.epoch > 0:
            for name in event.values:
                self.epoch_names.setdefault(name, row)
        if kind == EPOCH:
            self.progress = None
        elif kind == TRAIN:
            losses = drop_unexpected(event).extra.get("losses") or []
            if losses != (self.losses[-1][1] if self.losses else []):
                self.losses.append((row, losses))

    def order_series(self, names: Iterable[str]) -> None:
        """Puts these numbers first, in this order. Those without values share an empty series: add nothing later."""
        empty = _Series()
        self.series = {**{name: self.series.get(name, empty) for name in names}, **self.series}

    def _series(self, name: str) -> _Series:
        series = self.series.get(name)
        if series is None:
            series = self.series[name] = _Series()
        return series

    def _add_points(self, event: Event, row: int) -> None:
        """Adds running values: the columns of points that an event holds, else its own values as one point."""
        first = len(self.point_rows)
        if "points" not in event.extra:
            if event.values:
                self.point_rows.append(row)
                self.point_times.append(event.time)
                self.point_updates.append(event.update)
            for name, value in event.values.items():
                series = self._series(name)
                series.point_numbers.append(first)
                series.running.append(value)
            return
        points = read_points(event.extra["points"])
        if points is None:
            return
        updates, times, columns = points
        count = len(updates)
        self.point_rows.extend([row] * count)
        self.point_times.frombytes(times.tobytes())
        self.point_updates.frombytes(updates.tobytes())
        self.windowed |= columns.keys()
        for name, values in columns.items():
            series = self._series(name)
            known = np.flatnonzero(~np.isnan(values)) if np.isnan(values).any() else None
            places = np.arange(first, first + count, dtype=np.int32)
            series.point_numbers.frombytes((places if known is None else places[known]).tobytes())
            series.running.frombytes((values if known is None else values[known]).tobytes())

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
        row = self._add_row(kind, event.time, event.epoch, event.update)
        if event.kind == "end" and "points" in event.extra:
            self._add_points(event, row)
        self.events.append((row, event))

    def _truncate(self, row: int) -> None:
        """Removes all rows from this one on."""
        first_point = bisect_left(self.point_rows, row)
        for name, series in list(self.series.items()):
            first = bisect_left(series.rows, row)
            del series.rows[first:], series.values[first:]
            first = bisect_left(series.point_numbers, first_point)
            del series.point_numbers[first:], series.running[first:]
            if not series.rows and not series.point_numbers:
                del self.series[name]
        for column in (self.point_rows, self.point_times, self.point_updates):
            del column[first_point:]
        for name, matrices in list(self.matrices.items()):
            del matrices[bisect_left(matrices, row, key=lambda pair: pair[0]) :]
            if not matrices:
                del self.matrices[name]
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
        series = self.series.get(name)
        return series.values[-1] if series is not None and series.values else None

    def last_row(self, *, without: int = 0) -> dict[str, float]:
        """The numbers of the last epoch; of those that it lacks, the last values before it.

        `without` is an epoch that was cut short, which counts only if it is the first.
        """
        ends = [row for row in range(len(self.kinds) - 1, -1, -1) if self.kinds[row] == EPOCH]
        end = next((row for row in ends if self.epochs[row] != without), ends[0] if ends else len(self.kinds))
        found: dict[str, float] = {}
        for name in self.epoch_names:
            series = self.series[name]
            place = bisect_left(series.rows, end + 1) - 1
            if place >= 0:
                found[name] = series.values[place]
        return found

    def latest(self) -> dict[str, float]:
        """The newest value of every number of the training, final or running."""
        found: dict[str, float] = {}
        for name, series in self.series.items():
            running_row = self.point_rows[series.point_numbers[-1]] if series.point_numbers else -1
            row = series.rows[-1] if series.rows else -1
            # A number of an index has neither if only its curve is kept.
            if row >= 0 or (running_row >= 0 and self.kinds[running_row] != SYSTEM):
                found[name] = series.running[-1] if running_row > row else series.values[-1]
        return found

    def values_since(self, row: int) -> dict[str, float]:
        """The newest value of every number that has one at this row or later; final values win over running ones."""
        found: dict[str, float] = {}
        first_point = bisect_left(self.point_rows, row)
        for name, series in self.series.items():
            if series.rows and series.rows[-1] >= row:
                found[name] = series.values[-1]
            elif series.point_numbers and series.point_numbers[-1] >= first_point and not name.startswith("system/"):
                found[name] = series.running[-1]
        return found

    def best(self, name: str, direction: Direction | None = None) -> Best | None:
        """The best final value, the first of equal ones, never NaN; `None` if the direction is unknown."""
        direction = direction or self.direction(name)
        series = self.series.get(name)
        if direction is None or series is None:
            return None
        values = np.array(series.values)
        known = np.flatnonzero(~np.isnan(values))
        if not known.size:
            return None
        place = known[values[known].argmin() if direction == "min" else values[known].argmax()]
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
        folder, _, system = name.partition("/")
        if folder == "system" and system.partition("/")[0] in _SYSTEM_UNITS:
            return _SYSTEM_UNITS[system.partition("/")[0]]
        return str(self._declaration(name).get("unit") or "")

    def _declaration(self, name: str) -> Mapping[str, Any]:
        """What "begin" declared about the metric of a number: "valid/recall/3" belongs to "recall"."""
        metrics = self.plan.get("metrics") or {}
        key = name if name in metrics else name.partition("/")[2]
        while key not in metrics and "/" in key:
            key = key.rpartition("/")[0]
        declaration = metrics.get(key, {})
        return declaration if isinstance(declaration, Mapping) else {}

    def points(self, name: str, source: Source) -> Points:
        """The values of a number from one source; see `Numbers.points`."""
        running = self._running(name)
        if source == "running":
            return running
        final = self.final_points(name)
        if source == "epochs":
            final = final.select(final.epoch > 0)
            _, last = np.unique(final.epoch[::-1], return_index=True)
            return final.select(np.sort(len(final) - 1 - last))
        if name in self.windowed and len(running):  # means over whole epochs are not on the same curve
            final = self.final_points(name, kinds=(VALID, LOG))
        running = running.select(~np.isin(running.update, final.update))
        fields = [(getattr(final, field), getattr(running, field)) for field in Points.__slots__]
        both = Points(*map(np.concatenate, fields))
        return both.select(np.argsort(both.update, kind="stable"))

    def final_points(self, name: str, kinds: Collection[int] = (TRAIN, VALID, LOG, EPOCH)) -> Points:
        """The final values of some kinds in order of the events, without those that an "epoch" event only repeats."""
        points, found = self._final(name)
        wanted = np.isin(found, list(kinds))
        points, found = points.select(wanted), found[wanted]
        # Sorted by epoch, a repeated value follows its original.
        order = np.argsort(points.epoch, kind="stable")
        epoch, value = points.epoch[order], points.value[order]
        same = (value[1:] == value[:-1]) | (np.isnan(value[1:]) & np.isnan(value[:-1]))
        repeated = np.zeros(len(points), dtype=bool)
        repeated[order[1:]] = same & (epoch[1:] == epoch[:-1]) & (epoch[1:] > 0)
        return points.select(~(repeated & (found == EPOCH)))

    def _final(self, name: str) -> tuple[Points, np.ndarray]:
        """The final values of a number, and the kind of the event of each."""
        series = self.series.get(name) or _Series()
        rows = np.array(series.rows, dtype=np.int64)
        # Indexing copies: an array that is shared with numpy could not grow.
        update, epoch, time = (
            np.asarray(column)[rows].astype(np.float64) for column in (self.updates, self.epochs, self.times)
        )
        return Points(update, epoch, time, np.array(series.values)), np.asarray(self.kinds)[rows]

    def _running(self, name: str) -> Points:
        """The running values of a number."""
        series = self.series.get(name) or _Series()
        places = np.array(series.point_numbers, dtype=np.int64)
        update, time = (
            np.asarray(column)[places].astype(np.float64) for column in (self.point_updates, self.point_times)
        )
        epoch = np.asarray(self.epochs)[np.asarray(self.point_rows)[places]].astype(np.float64)
        return Points(update, epoch, time, np.array(series.running))

    def matrix(self, name: str, epoch: int | None, monitor: str | None) -> Matrix | None:
        """The matrix of an epoch; see `Numbers.matrix`."""
        matrices = [matrix for _, matrix in self.matrices.get(name, ())]
        if epoch is None:
            best = self.best(monitor) if monitor is not None else None
            chosen = [matrix for matrix in matrices if best is not None and matrix.update == best.update]
            matrices = chosen or matrices
        else:
            matrices = [matrix for matrix in matrices if matrix.epoch == epoch]
        if not matrices or matrices[-1].labels:
            return matrices[-1] if matrices else None
        return label_matrix(matrices[-1], self._declaration(name).get("labels"))

    def find_monitor(self) -> str | None:
        """The number that epochs are compared by: the declared one, else a loss, else one with a known direction."""
        candidates = (str(self.plan.get("monitor")), "valid/loss", "train/loss", *self.epoch_names)
        known = (name for name in candidates if name in self.epoch_names)
        return next((name for name in known if self.direction(name) is not None), None)


def read_points(columns: Any) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]] | None:
    """The updates, times and values of the points that an event holds; `None` if it has none or they are damaged."""
    try:
        updates = np.array(columns["update"], dtype=np.int64)
        times = np.array(columns["time"], dtype=np.float64)
        values = {str(name): np.array(each, dtype=np.float64) for name, each in columns["values"].items()}
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError):
        return None
    shapes = {updates.shape, times.shape, *(each.shape for each in values.values())}
    is_valid = shapes == {(len(updates),)} and np.isfinite(times).all() if updates.ndim == 1 else False
    return (updates, times, values) if is_valid and len(updates) else None


class Numbers:
    """What a `Record` and a `Follower` can be asked about the numbers of a run."""

    def _read_columns(self) -> Columns:
        """The events so far."""
        raise NotImplementedError

    @property
    def names(self) -> list[str]:
        """The names of all numbers, in order of first appearance; matrices are in `matrices`."""
        return list(self._read_columns().series)

    @property
    def matrices(self) -> list[str]:
        """The names of all matrices (confusion matrices, say), in order of first appearance."""
        return list(self._read_columns().matrices)

    def matrix(self, name: str, epoch: int | None = None) -> Matrix | None:
        """A matrix as it was in an epoch; by default in the one with the best monitored number, else the latest.

        `None` for an unknown name, or an epoch without one.
        """
        return self._read_columns().matrix(name, epoch, self._read_columns().find_monitor())

    def matrix_epochs(self, name: str) -> list[int]:
        """The epochs that have this matrix."""
        return list(dict.fromkeys(matrix.epoch for _, matrix in self._read_columns().matrices.get(name, ())))

    @property
    def media(self) -> list[Event]:
        """The "media" events, in order; of several with the same file, the last. `media_path` finds the file."""
        media = (event for _, event in self._read_columns().events if event.kind == "media" and is_media(event))
        return sorted({event.extra["file"]: event for event in media}.values(), key=lambda event: event.time)

    @property
    def begin(self) -> Event | None:
        """The latest "begin" event: the plan, and what is known about the metrics."""
        return self._read_columns().begin

    @property
    def messages(self) -> list[Event]:
        """Notes, warnings, stops, errors, resumes and checkpoints, in order."""
        return [event for _, event in self._read_columns().events if event.kind in _MESSAGES]

    def points(self, name: str, *, source: Source = "all") -> Points:
        """The values of a number over the run, in order of update; empty for an unknown name.

        "epochs" gives the latest value of each epoch. "running" gives the values inside of epochs, each of which is a
        mean over the updates since the one before. "all" gives a curve: the running values of a number that has them,
        else those of the epochs, and every validation.
        """
        return self._read_columns().points(name, source)

    def count(self, name: str) -> int:
        """How many values of a number there are, running ones included."""
        series = self._read_columns().series.get(name)
        return len(series.rows) + len(series.point_numbers) if series is not None else 0

    def direction(self, name: str) -> Direction | None:
        """Whether less ("min") or more ("max") is better, as the metric declared it; for a loss less is."""
        return self._read_columns().direction(name)

    def unit(self, name: str) -> str:
        """The unit of a number, as its metric declared it."""
        return self._read_columns().unit(name)
