"""The runs of a folder, for many readers at once: opened when somebody asks, put back when nobody does any more."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.errors import InvalidArgument, MissingFile, did_you_mean
from stoker.record import Follower
from stoker.view.ui._digest import Digest
from stoker.view.ui._folder import EVENTS, Found, find
from stoker.view.ui._kept import Kept

Stamp = tuple[int, int, int]  # of a file of events: which file it is, its bytes, when it was changed

_PAUSE = 0.4  # seconds between two looks at the same thing, however many ask
_REST = 10.0  # times as long as a look through the folder took; a slow disk is asked less often
_SLICE, _FIRST = 0.3, 0.01  # seconds of reading at a time: a large run is shown before all of it is read
_IDLE = 120.0  # seconds after which a run that nobody asked for is put back
_OPEN = 160 << 20  # bytes of events in the runs that are open; as columns they take about as much
_DIGESTS = 128 << 20  # bytes
_LONGEST = 200  # letters of a name for which one like it is looked for
_SAMPLE = 3 << 20  # bytes of events that are read of a large run at first


class Opened:
    """A run that is being read, by whoever has its lock."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.run = Follower(path, inside=folder)
        self.lock = threading.Lock()
        self.stamp: Stamp | None = None  # of its file, before that was read the last time
        self.version = 0  # grows with every change
        self.asked: float | None = None  # when a page asked for it; never, if only the list has looked at it
        self.read = -_PAUSE

    def refresh(self, seconds: float) -> None:
        """Reads what is new, for about so long at most; with 0 only a sample of what is large."""
        self.stamp = stamp_of(self.path)
        self.version += self.run.refresh(seconds=seconds)
        self.read = time.monotonic()

    @property
    def weight(self) -> int:
        """The bytes of events that it holds, about."""
        size = self.stamp[1] if self.stamp is not None else 0
        return min(size, _SAMPLE) if self.run.has_unread else size


class Shelf:
    """The runs of one folder, by id; every method may be called from any thread."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.realpath(folder))
        if not self.folder.is_dir():
            raise InvalidArgument(
                f"there is no folder {str(folder)!r}; name the folder of your runs, or make a first one with "
                "`stoker demo`"
            )
        self._lock = threading.Lock()  # for what is below
        self._found = Found({}, [])
        self._next_look = 0.0
        self._open = Kept[str, Opened](most=_OPEN, weigh=lambda opened: opened.weight)
        self._digests = Kept[tuple[str, Stamp], Digest](most=_DIGESTS, weigh=lambda digest: digest.bytes)

    def found(self) -> Found:
        """The runs that are there now."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next_look:
                self._found = find(self.folder)
                self._next_look = now + max(_PAUSE, _REST * (time.monotonic() - now))
                self._open.drop(lambda name, each: name in self._found.runs and now - (each.asked or now) < _IDLE)
            return self._found

    def path(self, name: str) -> Path:
        """The directory of a run; only those that were found have one."""
        runs = self.found().runs
        if name not in runs:
            raise MissingFile(f"there is no run {name!r} in {str(self.folder)!r}{did_you_mean(name[:_LONGEST], runs)}")
        return runs[name]

    def digest(self, name: str) -> Digest | None:
        """The curves of a run as it is now, without opening it; None where nobody has read it whole."""
        stamp = stamp_of(self.path(name))
        with self._lock:
            return self._digests.get((name, stamp)) if stamp is not None else None

    @contextmanager
    def follow(self, name: str) -> Iterator[Opened]:
        """A run for a page, read up to now (a large one: as far as there was time), held for nobody else."""
        with self._held(name) as opened:
            now = time.monotonic()
            if opened.run.has_unread or now - opened.read >= _PAUSE:
                opened.refresh(_SLICE if opened.asked is not None else _FIRST)
                self._keep_digest(name, opened)
            opened.asked = now
            yield opened

    @contextmanager
    def glance(self, name: str, *, seconds: float = 0.0) -> Iterator[Opened]:
        """A run for the list: what is large is read for so many seconds, and what is over is put back at once."""
        with self._held(name) as opened:
            opened.refresh(seconds)
            if seconds:
                self._keep_digest(name, opened)
            yield opened
            unfinished = opened.run.state == "running" or (seconds and opened.run.has_unread)
            if opened.asked is None and not unfinished:
                with self._lock:
                    self._open.drop(lambda _, each: each is not opened)

    def _keep_digest(self, name: str, opened: Opened) -> None:
        """What is over won't change, and reading it again is dear."""
        if opened.run.has_unread or opened.stamp is None or opened.run.state == "running":
            return
        key = (name, opened.stamp)
        with self._lock:
            known = self._digests.get(key)
        if known is None:
            known = Digest(opened.run)
            with self._lock:
                self._digests.put(key, known)

    @contextmanager
    def _held(self, name: str) -> Iterator[Opened]:
        path = self.path(name)
        with self._lock:
            opened = self._open.get(name)
            if opened is None:
                opened = Opened(path, self.folder)
                self._open.put(name, opened)
        with opened.lock:
            try:
                yield opened
            except Exception:  # nobody knows how far it came: the next one reads it anew
                with self._lock:
                    self._open.drop(lambda _, each: each is not opened)
                raise
        with self._lock:
            self._open.trim()


def stamp_of(path: Path) -> Stamp | None:
    """What tells that a run's events have changed; None where there are none."""
    try:
        found = (path / EVENTS).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
