"""The runs of a folder for many requests at once: found on disk, opened on demand, closed when no longer used."""

import os
import stat
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from stoker._text import escape_surrogates
from stoker.errors import InvalidArgument, MissingFile, did_you_mean
from stoker.record import Follower
from stoker.view.ui._json import Row, RunReport, make_report, make_row, make_unread_row

Stamp = tuple[int, ...]  # of a run's files: inode, size and modification time of each

_EVENTS = "events.jsonl"
_ANNOTATIONS = "annotations.json"
_DIRECTORIES = ("checkpoints", "media")
_FILES = (_EVENTS, _ANNOTATIONS, "run.json", "config.json", "log.txt", "control.json", *_DIRECTORIES)  # of a run
_INTERVAL = 0.4  # seconds between two reads of the same thing, however many requests there are
_SCAN_REST = 10.0  # times the duration of a scan of the folder, before the next: a slow disk is asked less often
_SLICE, _FIRST_SLICE = 0.3, 0.01  # seconds of reading: a large run is shown before all of it is read
_IDLE = 120.0  # seconds after which a run that nobody reads is closed
_MAX_OPEN = 400 << 20  # bytes of events in open runs; in memory they take about as much
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
    result = FoundRuns({}, [])
    for directory, subdirectories, files in os.walk(folder):
        subdirectories[:] = sorted(name for name in subdirectories if name != ".trash")
        if _EVENTS in files:
            subdirectories.clear()  # a run contains checkpoints, not runs
            path = Path(directory)
            name = escape_surrogates(path.relative_to(folder).as_posix() if path != folder else folder.name)
            if bad := _find_foreign_file(path, folder):
                result.problems.append(f"{name} is not shown: its {bad} is not a regular file inside the folder")
            else:
                result.runs[name] = path
    return result


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
        if not (stat.S_ISDIR(mode) if name in _DIRECTORIES else stat.S_ISREG(mode)):
            return name
    return ""


def _stamp_of(path: Path) -> Stamp | None:
    """Changes whenever a run's events or annotations do; `None` if there are no events."""
    stamp: Stamp = ()
    for name in (_EVENTS, _ANNOTATIONS):
        try:
            status = os.stat(path / name)
        except OSError:
            if name == _EVENTS:
                return None
        else:
            stamp += (status.st_ino, status.st_size, status.st_mtime_ns)
    return stamp


class OpenRun:
    """A run that is being read; its lock must be held."""

    _versions = count(1)

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.run = Follower(path, inside=folder)
        self.lock = threading.Lock()
        self.stamp: Stamp | None = None  # of the file, before it was read the last time
        self.is_requested = False  # by a page; otherwise only the list has read it
        self.read_at = time.monotonic() - _INTERVAL
        self._version = next(OpenRun._versions)  # another one after every change, never that of another run
        self._report: RunReport | None = None

    def refresh(self, seconds: float) -> None:
        """Reads new events for about `seconds`; with 0, only a sample of a large file."""
        before = self.stamp
        self.stamp = _stamp_of(self.path)
        if self.run.refresh(seconds=seconds) or self.stamp != before:
            self._version = next(OpenRun._versions)
        self.read_at = time.monotonic()

    def report(self, run_id: str) -> RunReport:
        """What is sent to the pages that show the run; made once for all of them."""
        if self._report is None or self._report.version != self._version:
            self._report = make_report(run_id, self.run, self._version)
        return self._report

    @property
    def is_new(self) -> bool:
        """Whether nothing was read yet."""
        return self.stamp is None

    @property
    def weight(self) -> int:
        """About how many bytes of events are in memory."""
        size = self.stamp[1] if self.stamp is not None else 0
        return min(size, _SAMPLE) if self.run.has_unread else size


class _ListedRun(NamedTuple):
    row: Row
    stamp: Stamp | None  # of the file that it was read from
    complete: bool  # the file was read to its end, or its index was


class RunFolder:
    """The runs of one folder, by id. All methods are thread-safe."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        if not self.path.is_dir():
            raise InvalidArgument(
                f"there is no folder {str(path)!r}; give the folder of your runs, or create a run with `stoker demo`"
            )
        self._lock = threading.Lock()  # for the next three fields
        self._found = FoundRuns({}, [])
        self._next_scan = 0.0
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._list_lock = threading.Lock()  # for the next three fields: one thread reads the list
        self._listed: dict[str, _ListedRun] = {}
        self._rows: dict[str, Row] | None = None
        self._next_list = 0.0

    def find(self) -> FoundRuns:
        """The runs that exist now."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next_scan:
                self._found = find_runs(self.path)
                self._next_scan = now + max(_INTERVAL, _SCAN_REST * (time.monotonic() - now))
                for name, opened in list(self._open.items()):
                    if name not in self._found.runs or now - opened.read_at >= _IDLE:
                        del self._open[name]
            return self._found

    def forget_scan(self) -> None:
        """Makes the next request look at the folder again: something has changed."""
        with self._lock:
            self._next_scan = 0.0
        self._next_list = 0.0

    def path_of(self, run_id: str) -> Path:
        """The directory of a run that was found."""
        runs = self.find().runs
        if run_id not in runs:
            hint = did_you_mean(run_id[:_MAX_NAME], runs)
            raise MissingFile(f"there is no run {run_id!r} in {str(self.path)!r}{hint}")
        return runs[run_id]

    @contextmanager
    def open(self, run_id: str, *, thinned: bool = False) -> Iterator[OpenRun]:
        """A run for one request; a large one is read further, for a moment.

        With `thinned`, the curves of about 500 points in a run's index are enough, if it has one.
        """
        with self._borrow(run_id) as opened:
            if thinned and (opened.is_new or opened.run.is_indexed):
                opened.refresh(0)
            if not (thinned and opened.run.is_indexed):
                self._refresh(opened, _SLICE)
            yield opened

    def report(self, run_id: str, *, seconds: float) -> RunReport | None:
        """What is sent to a page that shows the run, after reading for `seconds`; `None` while another thread reads."""
        opened = self._opened(run_id)
        if not opened.lock.acquire(blocking=False):
            return None
        with self._release(opened):
            self._refresh(opened, seconds)
            return opened.report(run_id)

    def rows(self, *, seconds: float, first: Collection[str] = ()) -> dict[str, Row]:
        """A row per run, after reading for about `seconds`; the remaining runs follow with the next call.

        Changed runs are read before new ones, those in `first` before others, and a sample of every run before all of
        one: while a run has no row yet, large ones are not read further. However many pages ask, one thread reads,
        and the others get the rows that it had before.
        """
        known = self._rows
        if not self._list_lock.acquire(blocking=known is None or bool(first)):
            return known or {}
        try:
            if self._rows is None or first or time.monotonic() >= self._next_list:
                self._rows = self._read_rows(time.monotonic() + seconds, first)
            return self._rows
        finally:
            self._list_lock.release()

    def _read_rows(self, end: float, first: Collection[str]) -> dict[str, Row]:
        runs = self.find().runs
        self._listed = {name: listed for name, listed in self._listed.items() if name in runs}
        has_new = len(self._listed) < len(runs)
        for name in sorted(runs, key=lambda name: (name not in self._listed, name not in first)):
            if self._is_stale(name, runs[name]) and time.monotonic() < end:
                self._list(name, runs[name])
        for name in sorted(self._listed, key=lambda name: name not in first):
            if has_new and name not in first:
                break
            while not self._listed[name].complete and (left := end - time.monotonic()) > 0:
                self._list(name, runs[name], seconds=left)
        is_complete = len(self._listed) == len(runs) and all(listed.complete for listed in self._listed.values())
        self._next_list = time.monotonic() + _INTERVAL if is_complete else 0.0
        return {name: self._listed[name].row if name in self._listed else make_unread_row(name) for name in runs}

    def _is_stale(self, name: str, path: Path) -> bool:
        listed = self._listed.get(name)
        if listed is None or listed.row["state"] in ("running", "gone"):  # these can change without a new event
            return True
        return listed.stamp != _stamp_of(path)

    def _list(self, name: str, path: Path, *, seconds: float = 0.0) -> None:
        """Reads a run for the list: a large one for `seconds`; an ended one is closed afterwards."""
        try:
            with self._borrow(name) as opened:
                opened.refresh(seconds)
                row = make_row(name, opened.run)
                if not opened.is_requested and row["state"] != "running" and not seconds:
                    self._close(opened)  # it is read again in no time
                self._listed[name] = _ListedRun(row, opened.stamp, opened.run.is_indexed or not opened.run.has_unread)
        except MissingFile:  # deleted meanwhile
            self._listed[name] = _ListedRun(make_unread_row(name), None, True)
        except Exception as error:  # one run that can't be read must not hide the others
            self._listed[name] = _ListedRun(make_failed_row(name, error), _stamp_of(path), True)

    def _refresh(self, opened: OpenRun, seconds: float) -> None:
        if opened.run.has_unread or time.monotonic() - opened.read_at >= _INTERVAL:
            opened.refresh(seconds if opened.is_requested else _FIRST_SLICE)
        opened.is_requested = True

    def _opened(self, run_id: str) -> OpenRun:
        path = self.path_of(run_id)
        with self._lock:
            if run_id not in self._open:
                self._open[run_id] = OpenRun(path, self.path)
            self._open.move_to_end(run_id)
            return self._open[run_id]

    def _borrow(self, run_id: str) -> AbstractContextManager[OpenRun]:
        """The open run with its lock held."""
        opened = self._opened(run_id)
        opened.lock.acquire()
        return self._release(opened)

    @contextmanager
    def _release(self, opened: OpenRun) -> Iterator[OpenRun]:
        """Releases the lock of a run in the end."""
        try:
            yield opened
        except Exception:  # its state is unknown: the next request reads it from the start
            self._close(opened)
            raise
        finally:
            opened.lock.release()
            self._trim()

    def _trim(self) -> None:
        """Closes the least recently used runs if too much is in memory, but never the newest."""
        with self._lock:
            weight = sum(opened.weight for opened in self._open.values())
            while weight > _MAX_OPEN and len(self._open) > 1:
                weight -= self._open.popitem(last=False)[1].weight

    def _close(self, opened: OpenRun) -> None:
        with self._lock:
            for name in [name for name, other in self._open.items() if other is opened]:
                del self._open[name]


_printed: set[tuple[str, str, int | None]] = set()


def print_once(error: Exception) -> None:
    """Prints an unexpected error in the server's terminal, once per place in the code: pages ask twice a second."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    key = (type(error).__name__, frame.filename, frame.lineno)
    if key not in _printed:
        _printed.add(key)
        traceback.print_exception(error, file=sys.stderr)


def describe_failure(error: Exception) -> str:
    """What the page shows for an unexpected error."""
    return f"stoker ui failed with {type(error).__name__}; its terminal shows the traceback"


def make_failed_row(run_id: str, error: Exception) -> Row:
    """Prints an unexpected error and returns the row that the list shows for the run."""
    print_once(error)
    return make_unread_row(run_id, state="died", reason=describe_failure(error))
