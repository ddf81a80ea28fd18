"""The runs of a folder for many requests at once: found on disk, opened on demand, closed when no longer used."""

import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from stoker.errors import InvalidArgument, MissingFile, did_you_mean
from stoker.record import Follower, Points
from stoker.view.ui._json import CurveQuery, Row, Source, make_row, make_unread_row, to_text

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Stamp = tuple[int, int, int]  # of an events file: inode, size and modification time

_EVENTS = "events.jsonl"
_FILES = (_EVENTS, "run.json", "config.json", "log.txt", "control.json", "checkpoints")  # of a run, read by the server
_INTERVAL = 0.4  # seconds between two reads of the same thing, however many requests there are
_SCAN_REST = 10.0  # times the duration of a scan of the folder, before the next: a slow disk is asked less often
_SLICE, _FIRST_SLICE = 0.3, 0.01  # seconds of reading: a large run is shown before all of it is read
_IDLE = 120.0  # seconds after which an open run that no page asked for is closed
_MAX_OPEN = 160 << 20  # bytes of events in open runs; in memory they take about as much
_MAX_THINNED = 128 << 20  # bytes of thinned curves
_MAX_POINTS = 1000  # of a thinned curve
_SAMPLE = 3 << 20  # bytes of events that are read first of a large run
_MAX_NAME = 200  # characters of a name for which a similar one is suggested


class FoundRuns(NamedTuple):
    """The directories of runs by id, and a line for each run that is not shown."""

    runs: dict[str, Path]
    problems: list[str]


def find_runs(folder: Path) -> FoundRuns:
    """Finds the runs in a folder and below it, without following links to other folders.

    A run's id is its path in the folder; a folder that is itself a run has its own name as the id.
    """
    found = FoundRuns({}, [])
    for place, below, files in os.walk(folder):
        below.sort()
        if _EVENTS in files:
            below.clear()  # a run contains checkpoints, not runs
            path = Path(place)
            name = to_text(path.relative_to(folder).as_posix() if path != folder else folder.name)
            if bad := _find_foreign_file(path, folder):
                found.problems.append(f"{name} is not shown: its {bad} is not a regular file inside the folder")
            else:
                found.runs[name] = path
    return found


def _find_foreign_file(path: Path, folder: Path) -> str:
    """The first file of a run that is a link to outside the folder or not a regular file; "" if there is none."""
    for name in _FILES:
        file = path / name
        try:
            if stat.S_ISLNK(file.lstat().st_mode) and not Path(os.path.realpath(file)).is_relative_to(folder):
                return name
            mode = file.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # a cycle of links
            return name
        if not (stat.S_ISDIR(mode) if name == "checkpoints" else stat.S_ISREG(mode)):
            return name
    return ""


class ThinnedCurves:
    """Every curve of an ended run with few points, so that the curves of hundreds of runs can stay in memory."""

    def __init__(self, run: Follower) -> None:
        self.names = run.names
        self._curves = {name: run.points(name).downsample(_MAX_POINTS) for name in self.names}
        self.bytes = sum(4 * points.value.nbytes for points in self._curves.values())

    def points(self, name: str, *, source: Source = "all") -> Points:
        """The thinned values of a name."""
        return self._curves.get(name, Points(*np.empty((4, 0))))

    @staticmethod
    def can_answer(query: CurveQuery) -> bool:
        """Whether the kept points are enough for a query."""
        whole = query.start == -np.inf and query.end == np.inf
        return query.source == "all" and query.most <= _MAX_POINTS and whole


class OpenRun:
    """A run that is being read; its lock must be held."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.run = Follower(path, inside=folder)
        self.lock = threading.Lock()
        self.stamp: Stamp | None = None  # of the file, before it was read the last time
        self.version = 0  # grows with every change
        self.requested: float | None = None  # when a page asked for it; `None` if only the list has read it
        self.read = -_INTERVAL

    def refresh(self, seconds: float) -> None:
        """Reads new events for about `seconds`; with 0, only a sample of a large file."""
        self.stamp = stamp_of(self.path)
        self.version += self.run.refresh(seconds=seconds)
        self.read = time.monotonic()

    @property
    def weight(self) -> int:
        """About how many bytes of events are in memory."""
        size = self.stamp[1] if self.stamp is not None else 0
        return min(size, _SAMPLE) if self.run.has_unread else size


class RunFolder:
    """The runs of one folder, by id. All methods are thread-safe."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        if not self.path.is_dir():
            raise InvalidArgument(
                f"there is no folder {str(path)!r}; give the folder of your runs, or create a run with `stoker demo`"
            )
        self._lock = threading.Lock()  # for the fields below
        self._found = FoundRuns({}, [])
        self._next_scan = 0.0
        self._open = BoundedCache[str, OpenRun](_MAX_OPEN, lambda opened: opened.weight)
        self._thinned = BoundedCache[tuple[str, Stamp], ThinnedCurves](_MAX_THINNED, lambda curves: curves.bytes)

    def find(self) -> FoundRuns:
        """The runs that exist now."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next_scan:
                self._found = find_runs(self.path)
                self._next_scan = now + max(_INTERVAL, _SCAN_REST * (time.monotonic() - now))
                self._open.keep_if(
                    lambda name, each: name in self._found.runs and now - (each.requested or now) < _IDLE
                )
            return self._found

    def path_of(self, run_id: str) -> Path:
        """The directory of a run that was found."""
        runs = self.find().runs
        if run_id not in runs:
            hint = did_you_mean(run_id[:_MAX_NAME], runs)
            raise MissingFile(f"there is no run {run_id!r} in {str(self.path)!r}{hint}")
        return runs[run_id]

    def thinned_curves(self, run_id: str) -> ThinnedCurves | None:
        """The kept curves of a run in its present state; `None` if it was not read to its end."""
        stamp = stamp_of(self.path_of(run_id))
        with self._lock:
            return self._thinned.get((run_id, stamp)) if stamp is not None else None

    @contextmanager
    def open(self, run_id: str) -> Iterator[OpenRun]:
        """A run for a page, read up to now; a large one as far as there was time."""
        with self._borrow(run_id) as opened:
            now = time.monotonic()
            if opened.run.has_unread or now - opened.read >= _INTERVAL:
                opened.refresh(_SLICE if opened.requested is not None else _FIRST_SLICE)
                self._keep_curves(run_id, opened)
            opened.requested = now
            yield opened

    @contextmanager
    def open_briefly(self, run_id: str, *, seconds: float = 0.0) -> Iterator[OpenRun]:
        """A run for the list: a large one is read for `seconds`, and an ended one is closed afterwards."""
        with self._borrow(run_id) as opened:
            opened.refresh(seconds)
            if seconds:
                self._keep_curves(run_id, opened)
            yield opened
            unfinished = opened.run.state == "running" or (seconds and opened.run.has_unread)
            if opened.requested is None and not unfinished:
                self._close(opened)

    def _keep_curves(self, run_id: str, opened: OpenRun) -> None:
        """An ended run will not change, and reading it again is expensive."""
        if opened.run.has_unread or opened.stamp is None or opened.run.state == "running":
            return
        key = (run_id, opened.stamp)
        with self._lock:
            known = self._thinned.get(key) is not None
        if not known:
            curves = ThinnedCurves(opened.run)
            with self._lock:
                self._thinned.put(key, curves)

    @contextmanager
    def _borrow(self, run_id: str) -> Iterator[OpenRun]:
        """The open run with its lock held."""
        path = self.path_of(run_id)
        with self._lock:
            opened = self._open.get(run_id)
            if opened is None:
                opened = OpenRun(path, self.path)
                self._open.put(run_id, opened)
        with opened.lock:
            try:
                yield opened
            except Exception:  # its state is unknown: the next request reads it from the start
                self._close(opened)
                raise
        with self._lock:
            self._open.trim()

    def _close(self, opened: OpenRun) -> None:
        with self._lock:
            self._open.keep_if(lambda _, each: each is not opened)


def stamp_of(path: Path) -> Stamp | None:
    """Changes whenever a run's events do; `None` if there are none."""
    try:
        found = (path / _EVENTS).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class BoundedCache(Generic[K, V]):
    """Values up to a total weight; the least recently used are dropped first, the newest never.

    Weights are computed again at every change, since the values may grow.
    """

    def __init__(self, most: int, weigh: Callable[[V], int]) -> None:
        self._most = most
        self._weigh = weigh
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        self.trim()

    def trim(self) -> None:
        """Drops values until the rest fits."""
        weight = sum(map(self._weigh, self._values.values()))
        while weight > self._most and len(self._values) > 1:
            _, dropped = self._values.popitem(last=False)
            weight -= self._weigh(dropped)

    def keep_if(self, wanted: Callable[[K, V], bool]) -> None:
        """Drops all other values."""
        for key in [key for key, value in self._values.items() if not wanted(key, value)]:
            del self._values[key]


class _KnownRow(NamedTuple):
    row: Row
    stamp: Stamp | None  # of the file that it was read from
    complete: bool  # the file was read to its end


class RunList:
    """A row for each run of a folder; only runs that changed are read again."""

    def __init__(self, folder: RunFolder, on_failure: Callable[[str, Exception], Row]) -> None:
        self._folder = folder
        self._on_failure = on_failure  # the row of a run that can't be read because of an unexpected error
        self._lock = threading.Lock()  # one thread reads, the others wait for it
        self._known: dict[str, _KnownRow] = {}

    def refresh(self, *, seconds: float, first: Collection[str] = ()) -> dict[str, Row]:
        """The rows by id, after reading for about `seconds`; the remaining runs follow with the next call.

        Changed runs are read before new ones, those in `first` before others, and a sample of every run before all of
        one: while a run has no row yet, large ones are not read further.
        """
        with self._lock:
            end = time.monotonic() + seconds
            runs = self._folder.find().runs
            self._known = {name: known for name, known in self._known.items() if name in runs}
            has_new = len(self._known) < len(runs)
            for name in sorted(runs, key=lambda name: (name not in self._known, name not in first)):
                if self._is_stale(name, runs[name]) and time.monotonic() < end:
                    self._read(name, runs[name])
            for name in sorted(self._known, key=lambda name: name not in first):
                if has_new and name not in first:
                    break
                while not self._known[name].complete and (left := end - time.monotonic()) > 0:
                    self._read(name, runs[name], seconds=left)
            return {name: self._known[name].row if name in self._known else make_unread_row(name) for name in runs}

    def _is_stale(self, name: str, path: Path) -> bool:
        known = self._known.get(name)
        if known is None or known.row["state"] in ("running", "gone"):  # these can change without a new event
            return True
        return known.stamp != stamp_of(path)

    def _read(self, name: str, path: Path, *, seconds: float = 0.0) -> None:
        try:
            with self._folder.open_briefly(name, seconds=seconds) as opened:
                self._known[name] = _KnownRow(make_row(name, opened.run), opened.stamp, not opened.run.has_unread)
        except MissingFile:  # deleted meanwhile
            self._known[name] = _KnownRow(make_unread_row(name), None, True)
        except Exception as error:  # one run that can't be read must not hide the others
            self._known[name] = _KnownRow(self._on_failure(name, error), stamp_of(path), True)
