"""The list of runs: only what changed is read again, a large run in part at first, and nobody waits for all of it."""

import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from stoker.errors import MissingFile
from stoker.view.ui._faults import tell
from stoker.view.ui._shelf import Shelf, Stamp, stamp_of
from stoker.view.ui._views import Row, failed_row, row, unread_row


class _Known(NamedTuple):
    row: Row
    stamp: Stamp | None  # of the file that it was read from
    whole: bool  # whether all of that was read


class Rows:
    """A row for each run of a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._lock = threading.Lock()  # one reads, the others wait for it
        self._known: dict[str, _Known] = {}

    def latest(self, *, seconds: float, first: Collection[str] = ()) -> dict[str, Row]:
        """The rows by id, after reading for about so long; what there was no time for comes the next time.

        Runs that changed are read before new ones, those of `first` before others, and a bit of all before all of one:
        where a run is new, so that somebody may be waiting for a first look at it, large ones are not read further.
        """
        with self._lock:
            end = time.monotonic() + seconds
            runs = self._shelf.found().runs
            self._known = {name: known for name, known in self._known.items() if name in runs}
            new = len(self._known) < len(runs)
            for name in sorted(runs, key=lambda name: (name not in self._known, name not in first)):
                if self._is_stale(name, runs[name]) and time.monotonic() < end:
                    self._read(name, runs[name])
            for name in sorted(self._known, key=lambda name: name not in first):
                if new and name not in first:
                    break
                while not self._known[name].whole and (left := end - time.monotonic()) > 0:
                    self._read(name, runs[name], seconds=left)
            return {name: self._known[name].row if name in self._known else unread_row(name) for name in runs}

    def _is_stale(self, name: str, path: Path) -> bool:
        known = self._known.get(name)
        if known is None or known.row["state"] in ("running", "gone"):  # which can die, or come back, without a word
            return True
        return known.stamp != stamp_of(path)

    def _read(self, name: str, path: Path, *, seconds: float = 0.0) -> None:
        try:
            with self._shelf.glance(name, seconds=seconds) as opened:
                self._known[name] = _Known(row(name, opened.run), opened.stamp, not opened.run.has_unread)
        except MissingFile:  # it was deleted just now
            self._known[name] = _Known(unread_row(name), None, True)
        except Exception as error:  # a fault in reading one run must not hide the others
            tell(error)
            self._known[name] = _Known(failed_row(name, error), stamp_of(path), True)
