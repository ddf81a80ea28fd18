"""Who writes a run: a lock on its file of events, given back by the end of its process, however that ends."""

import functools
import io
import json
import os
import platform
import time
import weakref
from contextlib import suppress
from pathlib import Path

from stoker.errors import RunExists
from stoker.record._plain import open_inside

_TRIES = 50  # 10 ms apart: a reader that asks whether a run is alive holds the lock for microseconds
_OURSELVES = "this process"
_taken: "weakref.WeakSet[io.FileIO]" = weakref.WeakSet()


def take(file: io.FileIO) -> None:
    """Keeps second writers out for as long as this process has the file open, and says beside it who has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.01)
        except OSError:  # a file system without locks
            return
    else:
        who = holder(Path(file.name))
        advice = "close that run first" if who == _OURSELVES else "wait until it has ended, or choose another path"
        raise RunExists(f"{str(file.name)!r} is being written by {who}; {advice}")
    _close_in_forks()
    _taken.add(file)
    with suppress(OSError):
        _note(Path(file.name)).write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}), encoding="utf-8")


def give_back(file: io.FileIO) -> None:
    """Closes the file, and with it the lock is gone; before that the note of who has it."""
    if file in _taken:
        _taken.discard(file)
        with suppress(OSError):
            _note(Path(file.name)).unlink(missing_ok=True)
    file.close()


def is_written(path: Path) -> bool:
    """Whether a living process has this file open for its events."""
    try:
        import fcntl

        with open_inside(path, None) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # no locks here: a run that has been silent for a minute counts as dead
        return path.exists() and time.time() - path.stat().st_mtime < 60


def holder(path: Path) -> str:
    """Who writes a file of events, as far as it is known: `process 4242`, `process 17 on 'node7'`."""
    try:
        found = json.loads(_note(path).read_bytes())
        pid, host = int(found["pid"]), str(found["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    if host != platform.node():
        return f"process {pid} on {host!r}"
    return f"process {pid}" if pid != os.getpid() else _OURSELVES


def _note(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


@functools.cache
def _close_in_forks() -> None:
    """A forked worker shares its parent's lock, and would hold it on for a parent that was killed."""

    def close() -> None:
        for file in list(_taken):
            file.close()
        _taken.clear()

    os.register_at_fork(after_in_child=close)
