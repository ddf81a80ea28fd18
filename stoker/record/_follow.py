"""Follower: reads a run's directory from another process, while the run is being written or afterwards."""

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stoker.errors import BadFile, MissingFile
from stoker.record._columns import Best, Columns, Direction, Points, Source
from stoker.record._control import Action, send_request
from stoker.record._event import Event, decode_line, decode_lines
from stoker.record._journal import EVENTS, is_being_written, missing_run, open_regular_file
from stoker.record._run import CONFIG, FACTS, LOG
from stoker.record._summary import DIED, Status, status_of, summarize

_LARGE = 1 << 22  # bytes; a larger file is sampled before it is read
_MESSAGES = {"note", "warning", "stop", "error", "resume", "checkpoint"}
_BLOCK = 1 << 20  # bytes read at once
_LONGEST_LINE = 1 << 24  # bytes; a longer line is skipped
_ANCHOR = 64  # bytes before the reading position that must not change
_SMALL_FILE = 1 << 22  # bytes; larger JSON files are ignored
_LOG_LINES, _LOG_BYTES = 1000, 1 << 18
_HEAD, _END = 1 << 17, 1 << 18  # bytes at the ends of a large file that a sample reads
_STRETCHES, _STRETCH = 60, 1 << 15  # how many stretches it reads between them, and their bytes


class Follower:
    """A run's directory as it grows, read from outside: it writes nothing and locks nothing.

    >>> from stoker.record import Run
    >>> run = Run.create("runs/letters")
    >>> run.record.append(Event("valid", epoch=1, update=10, values={"valid/loss": 0.5}))
    >>> follower = Follower("runs/letters")
    >>> follower.refresh(), follower.state, follower.points("valid/loss").value.tolist()
    (True, 'running', [0.5])
    >>> run.record.append(Event("valid", epoch=2, update=20, values={"valid/loss": 0.25}))
    >>> run.close()
    >>> follower.refresh(), follower.state, follower.points("valid/loss").value.tolist()
    (True, 'died', [0.5, 0.25])

    Nothing is read before the first `refresh`. Damage to the directory does not raise; `problem` describes it. Use it
    in one thread at a time. With `inside`, a resolved path, no file outside that directory is read.
    """

    def __init__(self, path: str | os.PathLike[str], *, inside: Path | None = None) -> None:
        path = Path(path)
        self.path = path.parent if path.is_file() else path
        if not (self.path / EVENTS).exists():
            raise missing_run(self.path)
        self.name = self.path.absolute().name
        self.summary: Mapping[str, Any]  # what `Run.summary` says, from what has been read so far
        self.status: Status
        self._columns = Columns()
        self._sample: _Sample | None = None
        self._events = _Tail(self.path / EVENTS, inside=inside)
        self._small_files = _SmallFiles(self.path, inside=inside)
        self._alive = True
        self._unreadable = ""
        self._replaced = False
        self._summarize()

    def refresh(self, *, seconds: float | None = None) -> bool:
        """Reads what is new, for at most about so many seconds; returns whether anything has changed.

        A large file then takes several calls, while `has_unread` is true; until all of it is read, the answers come
        from a sample. With `seconds=0`, only the start and the end of a large file are read.
        """
        before = self._alive, self._unreadable
        changed = self._read_events(seconds)
        changed |= not self._unreadable and self._small_files.refresh()
        changed |= before != (self._alive, self._unreadable)
        if changed:
            self._summarize()
        return changed

    @property
    def has_unread(self) -> bool:
        """Whether the file holds more than has been read."""
        return not self._unreadable and self._events.unread > 0

    @property
    def damaged_lines(self) -> int:
        """The number of lines that could not be read."""
        return self._columns.damaged

    @property
    def problem(self) -> str:
        """Problems with reading the run; "" if there are none."""
        lines = f"{self.damaged_lines} damaged lines were" if self.damaged_lines > 1 else "a damaged line was"
        problems = [
            self._unreadable,
            f"{lines} skipped" if self.damaged_lines else "",
            f"{EVENTS} was replaced and read again" if self._replaced else "",
        ]
        return "; ".join(filter(None, problems))

    @property
    def state(self) -> str:
        """One of "running", "finished", "stopped", "died"; or "gone" if the directory can't be read any more."""
        return "gone" if self._unreadable else self.summary["state"]

    @property
    def reason(self) -> str:
        """Why the run stopped or died."""
        return self._unreadable or self.summary["reason"]

    @property
    def begin(self) -> Event | None:
        """The latest "begin" event: the plan, and what is known about the metrics."""
        return self._visible_columns.begin

    @property
    def names(self) -> list[str]:
        """The names of all numbers, in order of first appearance."""
        return list(self._visible_columns.names)

    @property
    def messages(self) -> list[Event]:
        """Notes, warnings, stops, errors, resumes and checkpoints, in order."""
        return [event for _, event in self._visible_columns.events if event.kind in _MESSAGES]

    @property
    def log(self) -> list[str]:
        """The last lines of `log.txt`, at most 1000."""
        return list(self._small_files.log)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The content of `run.json`; empty if it is missing or damaged."""
        return self._small_files.facts

    @property
    def config(self) -> Any:
        """The content of `config.json`; `None` if it is missing or damaged."""
        return self._small_files.config

    def points(self, name: str, *, source: Source = "all") -> Points:
        """The values of a number over the run, in order of update; empty for an unknown name.

        "epochs" gives the latest value of each epoch, "running" the values of progress events, "all" both and every
        validation; a final value then replaces a running one of the same update.
        """
        return self._visible_columns.points(name, source)

    def direction(self, name: str) -> Direction | None:
        """Whether less ("min") or more ("max") is better, as the metric declared it; for a loss less is."""
        return self._visible_columns.direction(name)

    def unit(self, name: str) -> str:
        """The unit of a number, as its metric declared it."""
        return self._visible_columns.unit(name)

    def best(self, name: str) -> Best | None:
        """The best value of a number; `None` if there is none or the direction is unknown."""
        return self._visible_columns.best(name)

    def request(self, action: Action, *, by: str = "") -> None:
        """Asks the run to stop or to save; raises if it has no living process."""
        send_request(self.path, action, by=by)

    @property
    def _visible_columns(self) -> Columns:
        return self._columns if self._sample is None else self._sample.columns

    def _summarize(self) -> None:
        summary = {"name": self.name, "path": str(self.path), **summarize(self._visible_columns)}
        if summary["state"] == "running" and not self._alive:
            summary.update(state="died", reason=DIED)
        self.summary = summary
        self.status = status_of(self._visible_columns, summary)

    def _read_events(self, seconds: float | None) -> bool:
        try:
            changed = self._events.stat()
            alive = is_being_written(self._events.path)  # checked first: a process that has ended has written all
            if changed or (self._events.unread and (seconds != 0 or self._unreadable)):
                self._read_new_events(seconds)
                changed = True
            self._alive, self._unreadable = alive, ""
        except OSError as error:
            cause = error.strerror or str(error)
            missing = "the run's directory does not exist any more"
            self._unreadable = f"{EVENTS} can't be read: {cause}" if self.path.is_dir() else missing
            self._alive = changed = False
        return changed

    def _read_new_events(self, seconds: float | None) -> None:
        """Samples the file first if it is large and time is limited; then reads blocks until the time is used up."""
        if self._sample is not None and not self._sample.read_new():
            self._start_again()
        large = self._events.unread > max(_LARGE, self._events.offset)
        if large and seconds is not None and (self._sample is None or (seconds and self._sample.ends_only)):
            self._sample = _Sample(self._events, ends_only=not seconds)
        if self._sample is None or seconds != 0:
            self._read_blocks(seconds)
        if not self._events.unread:
            self._sample = None

    def _start_again(self) -> None:
        """Forgets what was read: the file was replaced by another."""
        self._columns, self._sample, self._replaced = Columns(), None, True
        self._events.seek(0)

    def _read_blocks(self, seconds: float | None) -> None:
        tail, end = self._events, time.monotonic() + (seconds or float("inf"))
        for block in tail.read_blocks():
            if block is None:
                self._start_again()
            else:
                _add_lines(self._columns, block)
            if time.monotonic() > end:
                return
        if tail.incomplete and (line := decode_line(tail.incomplete)) is not None:  # only its newline is missing
            tail.accept_incomplete()
            self._columns.add(line)


def _add_lines(columns: Columns, block: bytes) -> None:
    for line in decode_lines(block):
        columns.add(line)


class _Tail:
    """Reads the complete lines of a growing file in blocks, each line once; with `inside`, no file outside it."""

    def __init__(self, path: Path, *, inside: Path | None = None) -> None:
        self.path = path
        self.inside = inside
        self.offset = 0  # bytes read
        self.size = 0  # of the file, at the last `stat`
        self.incomplete = b""  # the last line, while its newline is missing
        self._signature: tuple[int, ...] = ()
        self._anchor = b""

    def open(self) -> BinaryIO:
        return open_regular_file(self.path, inside=self.inside)

    def stat(self) -> bool:
        """Whether the file has changed since the last call; raises `OSError` if it can't be read."""
        with self.open() as file:
            found = os.fstat(file.fileno())
        signature = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        changed, self._signature, self.size = signature != self._signature, signature, found.st_size
        return changed

    @property
    def unread(self) -> int:
        """How many bytes there were to read at the last `stat`."""
        return max(0, self.size - self.offset - len(self.incomplete))

    def seek(self, offset: int) -> None:
        self.offset, self._anchor, self.incomplete = offset, b"", b""

    def read_blocks(self) -> Iterator[bytes | None]:
        """Yields what is new up to the last complete line; first `None` if the file was cut, rewritten or replaced.

        A longer copy of the same content (rsync's, say) counts as the same file.
        """
        with self.open() as file:
            file.seek(self.offset - len(self._anchor))
            if file.read(len(self._anchor)) != self._anchor:
                self.seek(0)
                yield None
            size = _BLOCK
            while True:
                file.seek(self.offset)
                block = file.read(size)
                end = block.rfind(b"\n") + 1
                if end or size >= _LONGEST_LINE:
                    self._advance(block[: end or len(block)])
                    yield block[:end]
                    size = _BLOCK
                elif len(block) < size:
                    self.incomplete = block
                    return
                else:
                    size *= 4

    def accept_incomplete(self) -> None:
        """Counts the incomplete line as read."""
        self._advance(self.incomplete)

    def _advance(self, read: bytes) -> None:
        self.offset += len(read)
        self._anchor = (self._anchor + read)[-_ANCHOR:]
        self.incomplete = b""


class _Sample:
    """Events from the start, the end and some stretches between of a large file, and all that are appended later.

    With `ends_only` the stretches are skipped, which is enough for the state of the run.
    """

    def __init__(self, tail: _Tail, *, ends_only: bool) -> None:
        self.ends_only = ends_only
        self.columns = Columns(sample=True)
        size = tail.size
        with tail.open() as file:
            head = max(min(_HEAD, size // 8), _next_line(file, 0))  # with the first event, however long
            last = max(head, size - min(_END, size // 4))
            every = (last - head) // _STRETCHES
            starts = [] if ends_only else [head + every * part for part in range(_STRETCHES)]
            for start, end in [(0, head), *((start, start + min(_STRETCH, every // 2)) for start in starts)]:
                file.seek(start)
                block = file.read(end - start)
                first = block.find(b"\n") + 1 if start else 0
                _add_lines(self.columns, block[first : block.rfind(b"\n") + 1])
            offset = _next_line(file, last)
        self._tail = _Tail(tail.path, inside=tail.inside)
        self._tail.seek(offset)
        self.read_new()

    def read_new(self) -> bool:
        """Adds what is new; returns whether the file is still the same."""
        if self._tail.stat():
            for block in self._tail.read_blocks():
                if block is None:
                    return False
                _add_lines(self.columns, block)
        return True


def _next_line(file: BinaryIO, start: int) -> int:
    """Where the first line after a position begins."""
    file.seek(start)
    file.readline(_LONGEST_LINE)
    return file.tell()


class _SmallFiles:
    """`run.json`, `config.json` and the end of `log.txt`, read again when they change; damaged ones count as empty."""

    def __init__(self, path: Path, *, inside: Path | None) -> None:
        self.facts: Mapping[str, Any] = {}
        self.config: Any = None
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self._path, self._inside = path, inside
        self._tail = _Tail(path / LOG, inside=inside)
        self._signatures: dict[str, tuple[int, ...]] = {}

    def refresh(self) -> bool:
        """Reads what is new; returns whether anything has changed."""
        before = self.facts, self.config
        facts = self._read(FACTS, self.facts)
        self.facts = facts if isinstance(facts, Mapping) else {}
        self.config = self._read(CONFIG, self.config)
        return self._read_log() or before != (self.facts, self.config)

    def _read(self, name: str, known: Any) -> Any:
        try:
            with open_regular_file(self._path / name, inside=self._inside) as file:
                found = os.fstat(file.fileno())
                signature = (found.st_ino, found.st_size, found.st_mtime_ns)
                if signature == self._signatures.get(name):
                    return known
                self._signatures[name] = signature
                return json.loads(file.read()) if found.st_size <= _SMALL_FILE else None
        except (OSError, ValueError, RecursionError):
            return None

    def _read_log(self) -> bool:
        try:
            if not self._tail.stat():
                return False
            if self._tail.unread > _LOG_BYTES:
                self._tail.seek(self._tail.size - _LOG_BYTES)
                self.log.clear()
            for block in self._tail.read_blocks():
                if block is None:
                    self.log.clear()
                else:
                    self.log.extend(block.decode("utf-8", "replace").splitlines())
        except OSError:
            return False
        return True


def find_runs(folder: str | os.PathLike[str] = "runs", *, read: bool = True) -> list[Follower]:
    """All runs in a directory and its subdirectories, oldest first.

    >>> from stoker.record import Run
    >>> Run.create("experiments/letters").close()
    >>> [(run.name, run.state) for run in find_runs("experiments")]
    [('letters', 'died')]

    With `read=False`, only the start and the end of a large record are read, which is enough for its state.
    """
    found: list[Follower] = []
    for directory, subdirectories, files in os.walk(folder):
        if EVENTS in files:
            subdirectories.clear()  # a run holds checkpoints, not runs
            try:
                found.append(Follower(directory))
            except MissingFile:  # deleted meanwhile, or a broken link
                continue
            found[-1].refresh(seconds=None if read else 0)

    def start_time(run: Follower) -> float:
        time = run.facts.get("started")
        return float(time) if isinstance(time, int | float) else run.summary["started"] or 0.0

    return sorted(found, key=lambda run: (start_time(run), str(run.path)))


class CheckpointInfo(NamedTuple):
    """What the manifest of a checkpoint says; `values` are the numbers at that time."""

    name: str
    update: int
    epoch: int
    reason: str
    bytes: int
    time: float  # in seconds since 1970
    values: Mapping[str, float]


def list_checkpoints(path: Path, facts: Mapping[str, Any]) -> list[CheckpointInfo]:
    """The checkpoints in a run's directory, oldest first, from their manifests alone, so that torch isn't needed.

    >>> list_checkpoints(Path("runs/nowhere"), {})
    []

    `facts` is the content of `run.json`. Damaged checkpoints and those of another run are left out; raises `BadFile`
    if the directory can't be read.
    """
    directory = path / "checkpoints"
    try:
        with os.scandir(directory) as entries:
            names = [each.path for each in entries if each.is_dir(follow_symlinks=False) and each.name[0] != "."]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadFile(f"{directory} can't be read: {error.strerror or error}") from error
    found = [_read_manifest(Path(name) / "manifest.json", facts.get("id", "")) for name in names]
    return sorted(filter(None, found), key=lambda info: (info.update, info.time))


def _read_manifest(path: Path, run_id: str) -> CheckpointInfo | None:
    types = {"name": str, "update": int, "epoch": int, "reason": str, "bytes": int, "time": float}
    try:
        with open_regular_file(path, follow=False) as file:
            text = file.read((1 << 20) + 1)  # manifests have at most 1 MiB
        manifest = json.loads(text) if len(text) <= 1 << 20 else {}
        if manifest["run"] != run_id or not all(isinstance(manifest[name], kind) for name, kind in types.items()):
            return None
        values = {str(name): float(value) for name, value in manifest["values"].items()}  # NaN is the string "nan"
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return CheckpointInfo(**{name: manifest[name] for name in types}, values=values)
