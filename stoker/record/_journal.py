"""The file of events: appended to by one process, read by any number, and whole up to its last line at any moment."""

import io
import os
from pathlib import Path

from stoker.errors import BadFile, MissingFile, did_you_mean
from stoker.record._event import Event, from_line
from stoker.record._jsonfile import sync_folder
from stoker.record._lock import give_back, take

EVENTS = "events.jsonl"


class Journal:
    """Appends lines to a file that nobody else writes; a kill costs at most the line that was being written.

    It opens itself at the first line, and again after `close`. What a full disk refuses waits for the next line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO | None = None
        self._waiting = b""

    def open(self) -> None:
        """Takes the file for this process, and cuts off what a killed one left of its last line."""
        if self._file is not None and not self._file.closed:  # a fork closes it
            return
        file = io.FileIO(self.path, "a+")
        try:
            take(file)
            _mend(file)
        except BaseException:
            give_back(file)
            raise
        self._file = file

    def write(self, line: bytes) -> None:
        """Hands a line to the operating system, where a kill of this process can't reach it any more."""
        self._waiting += line
        self.open()
        if self._file is not None:
            written = self._file.write(self._waiting)  # less than all of it where the disk is full
            self._waiting = self._waiting[written:]

    def sync(self) -> None:
        """Brings every line onto the disk, where a power cut can't reach it any more."""
        was_open = self._file is not None
        self.write(b"")
        while self._waiting:  # as far as there is room; then the operating system says that there is none
            self.write(b"")
        if self._file is not None:
            os.fsync(self._file.fileno())
        sync_folder(self.path.parent)
        if not was_open:
            self.close()

    def close(self) -> None:
        """Lets go of the file; readers see that nobody writes it any more."""
        if self._file is not None:
            give_back(self._file)
        self._file = None

    def __del__(self) -> None:  # nothing is buffered, so nobody has to close it
        if self._file is not None:
            self._file.close()


def _mend(file: io.FileIO) -> None:
    size = file.seek(0, os.SEEK_END)
    tail, start = b"", size
    while start > 0 and b"\n" not in tail:
        step = min(start, 65536)
        start -= step
        file.seek(start)
        tail = file.read(step) + tail
    torn = tail.rpartition(b"\n")[2]
    if torn and _parsed(torn) is None:
        file.truncate(size - len(torn))
    elif torn:
        file.write(b"\n")


def _parsed(line: bytes) -> Event | None:
    try:
        return from_line(line)
    except ValueError:
        return None


def events_file(path: str | os.PathLike[str]) -> Path:
    """The file of events that a path means: of a run's directory the one in it."""
    path = Path(path)
    return path / EVENTS if path.is_dir() else path


def read_events(path: Path) -> list[Event]:
    """Every event of a file, in order; a torn last line, as a kill leaves it, is passed over."""
    try:
        *lines, torn = path.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise no_run(path) from error
    events = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                events.append(from_line(line))
            except ValueError as error:
                raise BadFile(
                    f"{path}, line {number}: expected an event in JSON, but: {error}; "
                    "without that line the rest can be read"
                ) from error
    last = _parsed(torn) if torn else None
    return events if last is None else [*events, last]


def no_run(path: Path) -> MissingFile:
    folder = path.parent if path.name == EVENTS else path
    if folder.is_dir():
        return MissingFile(f"{str(folder)!r} is no run: there is no {EVENTS} in it")
    near = [each.name for each in folder.parent.iterdir()] if folder.parent.is_dir() else []
    return MissingFile(f"there is no run at {str(folder)!r}{did_you_mean(folder.name, near)}")
