"""The events of a run in columns: a million of them in some hundred MB, and any number's curve without a walk."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np

from stoker.record._decode import Line, whole
from stoker.record._event import Event, kept_by
from stoker.record._points import Points

TOLD, BESIDE, PROGRESS, TRAIN, VALID, LOG, EPOCH = range(7)  # what kind of event a row is
_KINDS = {"progress": PROGRESS, "train": TRAIN, "valid": VALID, "log": LOG, "epoch": EPOCH}
_KINDS |= dict.fromkeys(("checkpoint", "note", "warning"), BESIDE)  # they don't move the training on
_SPOKEN = 2000  # of those the first and the last so many are kept


class Series:
    """One number: the rows of its events, and its values."""

    __slots__ = ("rows", "values")

    def __init__(self) -> None:
        self.rows, self.values = array("i"), array("d")

    def cut(self, row: int) -> None:
        """Forgets what stands in that row or after it."""
        first = bisect_left(self.rows, row)
        del self.rows[first:], self.values[first:]


class Columns:
    """What stands of the events so far, a row each; of those with many numbers only the numbers are kept.

    Every event has a place, its count from the first one; a damaged line keeps the place of the event that it was, so
    that a later "resume" voids what it means. Where only a sample was read, places are unknown, and nothing is voided.
    """

    def __init__(self, *, sample: bool = False) -> None:
        self.sample = sample
        self.count = 0  # the place of the next event
        self.damaged = 0
        self.places, self.kinds = array("q"), array("b")
        self.times, self.epochs, self.updates = array("d"), array("q"), array("q")
        self.final: dict[str, Series] = {}
        self.running: dict[str, Series] = {}
        self.names: dict[str, int] = {}  # every number, and the row in which it came up
        self.named: dict[str, int] = {}  # those that epochs have
        self.told: list[tuple[int, Event]] = []  # the row of each event of the other kinds, which are few
        self.losses: list[tuple[int, list[str]]] = []  # the row from which on these names are losses
        self.progress: Line | None = None  # of the running epoch
        self._beside = 0  # how many of `told` are BESIDE, or were before a resume

    def __len__(self) -> int:
        return len(self.times)

    def take(self, lines: Iterable[Line | None]) -> None:
        """Adds events at the end; `None` is a damaged one."""
        for line in lines:
            if line is None:
                self._lose()
            elif (kind := _KINDS.get(line.kind, TOLD)) >= PROGRESS:
                self._add(line, kind)
            else:
                self._tell(line, kind)

    def _lose(self) -> None:
        self.damaged += 1
        self.count += 1

    def _row(self, line: Line, kind: int) -> int:
        row = len(self.times)
        self.places.append(self.count)
        self.count += 1
        self.kinds.append(kind)
        self.times.append(line.time)
        self.epochs.append(line.epoch)
        self.updates.append(line.update)
        return row

    def _add(self, line: Line, kind: int) -> None:
        row, group = self._row(line, kind), self.running if kind == PROGRESS else self.final
        for name, value in line.values.items():
            series = group.get(name)
            if series is None:
                series = group[name] = Series()
                self.names.setdefault(name, row)
            series.rows.append(row)
            series.values.append(value)
        if kind == PROGRESS:
            self.progress = line
            return
        if line.epoch > 0:
            for name in line.values:
                self.named.setdefault(name, row)
        if kind == EPOCH:
            self.progress = None
        elif kind == TRAIN:
            losses = whole(line).extra.get("losses") or []
            if losses != (self.losses[-1][1] if self.losses else []):
                self.losses.append((row, losses))

    def _tell(self, line: Line, kind: int) -> None:
        try:
            event = whole(line)
        except ValueError:
            self._lose()
            return
        if event.kind == "resume":
            if not self.sample:
                self._rewind(kept_by(event))
            self.progress = event if event.batch else None  # so far this epoch has come
        self.told.append((self._row(line, kind), event))
        self._beside += kind == BESIDE
        if self._beside >= 3 * _SPOKEN:
            self._shorten()

    def _shorten(self) -> None:
        """Forgets what was said in the middle, where somebody said very much."""
        spoken = [row for row, _ in self.told if self.kinds[row] == BESIDE]
        middle = set(spoken[_SPOKEN:-_SPOKEN])
        self.told = [pair for pair in self.told if pair[0] not in middle]
        self._beside = len(spoken) - len(middle)

    @property
    def unspoken(self) -> int:
        """How many notes, warnings and checkpoints stand but are not in `told`."""
        return self.kinds.tobytes().count(BESIDE) - sum(self.kinds[row] == BESIDE for row, _ in self.told)

    def _rewind(self, kept: int) -> None:
        """Forgets all events but the first `kept`."""
        row = bisect_left(self.places, kept)
        for group in (self.final, self.running):
            for series in group.values():
                series.cut(row)
            for name in [name for name, series in group.items() if not series.rows]:
                del group[name]
        for names in (self.names, self.named):
            while names and names[last := next(reversed(names))] >= row:
                del names[last]
        for pairs in (self.told, self.losses):
            del pairs[bisect_left(pairs, row, key=lambda pair: pair[0]) :]
        for column in (self.places, self.kinds, self.times, self.epochs, self.updates):
            del column[row:]
        self.count = min(self.count, kept)

    def last(self, name: str) -> float | None:
        """The latest final value of a number."""
        series = self.final.get(name)
        return series.values[-1] if series is not None else None

    def latest(self) -> dict[str, float]:
        """Every number's newest value, final or on the way."""
        found: dict[str, float] = {}
        for name in self.names:
            both = [group[name] for group in (self.final, self.running) if name in group]
            found[name] = max(both, key=lambda series: series.rows[-1]).values[-1]
        return found

    def finals(self, name: str) -> Points:
        """Every final value, in order of the events; what an epoch's event only says again is left out."""
        rows, values = self._series(self.final, name)
        return self._points(rows, values).at(~self._repeated(rows, values))

    def epochwise(self, name: str) -> Points:
        """The latest value of each epoch."""
        points = self.finals(name)
        points = points.at(points.epoch > 0)
        _, places = np.unique(points.epoch[::-1], return_index=True)
        return points.at(np.sort(len(points) - 1 - places))

    def on_the_way(self, name: str) -> Points:
        """Every value of a progress event."""
        return self._points(*self._series(self.running, name))

    def all(self, name: str) -> Points:
        """Final values and those on the way, by update; one on the way gives way to a final one of its update."""
        final, way = self.finals(name), self.on_the_way(name)
        way = way.at(~np.isin(way.update, final.update))
        both = final.then(way)
        return both.at(np.argsort(both.update, kind="stable"))

    def _series(self, group: dict[str, Series], name: str) -> tuple[np.ndarray, np.ndarray]:
        series = group.get(name) or Series()
        return np.array(series.rows, dtype=np.int64), np.array(series.values, dtype=np.float64)

    def _points(self, rows: np.ndarray, values: np.ndarray) -> Points:
        update, epoch, time = (_taken(column, rows) for column in (self.updates, self.epochs, self.times))
        return Points(update, epoch, time, values)

    def _repeated(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Where an epoch's event says again what a train or valid event of that epoch has said."""
        epochs = _taken(self.epochs, rows)
        order = np.argsort(epochs, kind="stable")
        epochs, sorted_values = epochs[order], values[order]
        same = sorted_values[1:] == sorted_values[:-1]
        same |= np.isnan(sorted_values[1:]) & np.isnan(sorted_values[:-1])
        again = np.zeros(len(rows), dtype=bool)
        again[order[1:]] = same & (epochs[1:] == epochs[:-1]) & (epochs[1:] > 0)
        return again & (_taken(self.kinds, rows) == EPOCH)


def _taken(column: Sequence[float], rows: np.ndarray) -> np.ndarray:
    """Some rows of a column as floats: a copy, for the column could not grow while somebody looks into its memory."""
    return np.asarray(column)[rows].astype(np.float64)
