"""The events file of a run: one process appends to it under a lock, any number of processes read it."""

import errno
import functools
import io
import json
import os
import platform
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from stoker._files import explain_errors, open_regular_file, open_to_append, sync_descriptor, sync_directory
from stoker.errors import BadFile, MissingFile, RunExists, did_you_mean
from stoker.record._event import Event, from_line

EVENTS, FACTS = "events.jsonl", "run.json"
LONGEST_LINE = 1 << 24  # bytes
_LOCKED_BYTE = 2**31 - 2  # on Windows, where the position has 32 bits
_LOCK_ATTEMPTS = 50  # 10 ms apart: a reader that checks whether a run is alive holds the lock for microseconds


class Journal:
    """Appends lines to the events file, and keeps other writers out.

    Each line goes to the operating system at once, so a kill loses at most the line that is being written. The file
    is opened at the first line, and again after `close`. Lines that a full disk rejects are written with the next one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._pending = b""

    @property
    def is_open(self) -> bool:
        """Whether this process holds the file."""
        return self._file is not None and not self._file.closed

    def open(self) -> None:
        """Locks the file for this process, and removes a line that a killed process left incomplete."""
        if self.is_open:  # a fork closes it
            return
        file = open_to_append(self.path)
        try:
            _lock(file, self.path)
            _repair(file, self.path)
        except BaseException:
            _release(file, self.path)
            raise
        self._file = file

    def write(self, line: bytes) -> None:
        """Appends a line."""
        self._pending += line
        self.open()
        if self._file is not None:
            written = self._file.write(self._pending)  # fewer bytes when the disk is full
            self._pending = self._pending[written:]

    def sync(self) -> None:
        """Writes everything to the disk, so that it survives a power cut; raises `OSError` if that fails."""
        was_open = self._file is not None
        self.write(b"")
        while self._pending:  # until the operating system raises
            self.write(b"")
        if self._file is not None:
            sync_descriptor(self._file.fileno())
        sync_directory(self.path.parent)
        if not was_open:
            self.close()

    def close(self) -> None:
        """Closes and unlocks the file."""
        if self._file is not None:
            _release(self._file, self.path)
        self._file = None

    def __del__(self) -> None:  # nothing is buffered, so a missing close loses nothing
        if self._file is not None:
            self._file.close()


def _repair(file: io.FileIO, path: Path) -> None:
    """Cuts off an incomplete last line, or adds the newline that a complete one lacks."""
    size = file.seek(0, os.SEEK_END)
    start = size
    tail = b""
    while start > 0 and b"\n" not in tail:
        if len(tail) > LONGEST_LINE:
            raise BadFile(f"{path}: expected lines of JSON, but the last one has more than {LONGEST_LINE:,} bytes")
        step = min(start, 65536)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    last = tail.rpartition(b"\n")[2]
    if last and _parse(last) is None:
        file.truncate(size - len(last))
    elif last:
        file.write(b"\n")


def _parse(line: bytes) -> Event | None:
    try:
        return from_line(line)
    except ValueError:
        return None


def read_events(path: Path, *, strict: bool) -> list[Event]:
    """Reads all events of a file; an incomplete last line, as a kill leaves it, is ignored.

    A damaged line raises `BadFile`; if not `strict`, it becomes an event of the kind "damaged".
    """
    events: list[Event] = []
    try:
        with explain_errors(path), open_regular_file(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
                if not line.strip():
                    continue
                try:
                    events.append(from_line(line))
                except ValueError as error:
                    text = f"{path}, line {number}: expected an event in JSON, but: {error}"
                    if len(line) == LONGEST_LINE or (strict and line.endswith(b"\n")):
                        raise BadFile(f"{text}; Record.open(path, strict=False) reads the others") from error
                    if line.endswith(b"\n"):
                        events.append(Event("damaged", events[-1].time if events else 0.0, text=text))
    except MissingFile as error:
        raise missing_run(path.parent if path.name == EVENTS else path) from error
    return events


def find_directory(path: str | os.PathLike[str]) -> Path:
    """The directory of a run, given as such or as its events file; raises `MissingFile` if it holds no run.

    A directory with `run.json` is a run also if its events were removed.
    """
    path = Path(path)
    with explain_errors(path, expected="a run's directory"):
        directory = path.parent if path.is_file() else path
        if not any((directory / name).exists() for name in (EVENTS, FACTS)):
            raise missing_run(directory)
    return directory


def missing_run(directory: Path) -> MissingFile:
    """The error for a path without a run, with a suggestion where a similar name exists."""
    if directory.is_dir():
        return MissingFile(f"{str(directory)!r} is not a run: it has no {EVENTS}")
    siblings = [sibling.name for sibling in directory.parent.iterdir()] if directory.parent.is_dir() else []
    return MissingFile(f"there is no run at {str(directory)!r}{did_you_mean(directory.name, siblings)}")


# --- The lock. The operating system releases it when the process ends, however it ends.

_locked_files: "weakref.WeakSet[io.FileIO]" = weakref.WeakSet()


def _lock(file: io.FileIO, path: Path) -> None:
    """Locks the file while this process has it open, and writes beside it who holds the lock."""
    for _ in range(_LOCK_ATTEMPTS):
        is_locked = _try_lock(file, shared=False)
        if is_locked is None:  # a file system without locks
            return
        if is_locked:
            break
        time.sleep(0.01)
    else:
        writer = writer_of(path)
        advice = (
            "close that run first" if writer == "this process" else "wait until it has ended, or choose another path"
        )
        raise RunExists(f"{str(path)!r} is being written by {writer}; {advice}")
    _close_in_forks()
    _locked_files.add(file)
    with suppress(OSError):
        holder = _holder_path(path)
        holder.unlink(missing_ok=True)
        with holder.open("x", encoding="utf-8") as new:  # "x" does not follow a symbolic link
            json.dump({"pid": os.getpid(), "host": platform.node()}, new)


def _try_lock(file: io.FileIO | BinaryIO, *, shared: bool) -> bool | None:
    """Locks an open file; returns whether that succeeded, or `None` if the file system has no locks."""
    try:
        import fcntl
    except ImportError:
        return _try_lock_on_windows(file)
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _try_lock_on_windows(file: io.FileIO | BinaryIO) -> bool | None:
    """Locks one byte far behind the end: others can't read the bytes that are locked."""
    try:
        import msvcrt
    except ImportError:
        return None
    locking: Any = msvcrt  # its functions are declared for Windows only
    position = file.seek(0, os.SEEK_CUR)
    try:
        file.seek(_LOCKED_BYTE)
        locking.locking(file.fileno(), locking.LK_NBLCK, 1)
    except OSError as error:
        return False if error.errno in (errno.EACCES, errno.EDEADLK) else None
    finally:
        file.seek(position)
    return True


def _release(file: io.FileIO, path: Path) -> None:
    if file in _locked_files:
        _locked_files.discard(file)
        with suppress(OSError):
            _holder_path(path).unlink(missing_ok=True)
    file.close()


@functools.cache
def _close_in_forks() -> None:
    """Closes locked files in forked workers, which would otherwise hold the lock after the parent was killed."""

    def close_all() -> None:
        for file in list(_locked_files):
            file.close()
        _locked_files.clear()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close_all)


def is_being_written(path: Path) -> bool:
    """Whether a living process has locked this events file."""
    with suppress(OSError), open_regular_file(path) as file:
        is_locked = _try_lock(file, shared=True)  # until the file is closed
        if is_locked is not None:
            return not is_locked
    # Without locks, a file that has not grown for a minute counts as dead.
    return path.exists() and time.time() - path.stat().st_mtime < 60


def writer_of(path: Path) -> str:
    """The process that writes an events file, as text: `process 4242`, `process 17 on 'node7'`, `this process`."""
    try:
        with open_regular_file(_holder_path(path), follow=False) as file:
            holder = json.loads(file.read(4096))
        pid = int(holder["pid"])
        host = str(holder["host"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
    if host != platform.node():
        return f"process {pid} on {host!r}"
    return f"process {pid}" if pid != os.getpid() else "this process"


def _holder_path(path: Path) -> Path:
    """The file that names the process which holds the lock."""
    return path.with_name(f".{path.name}.lock")
