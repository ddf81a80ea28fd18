"""Follower: reads a run's directory from another process, while the run is being written or afterwards."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stoker._files import open_regular_file
from stoker.errors import BadFile, InvalidArgument, MissingFile
from stoker.record._annotations import TRASH
from stoker.record._columns import Best, Columns, Numbers, Points, Source
from stoker.record._control import Action, send_request
from stoker.record._event import decode_line, decode_lines
from stoker.record._index import SMALLEST, Index, read_index
from stoker.record._journal import EVENTS, FACTS, LONGEST_LINE, find_directory, is_being_written
from stoker.record._run import CONFIG, LOG
from stoker.record._summary import Status, status_of, summarize

_LARGE = 1 << 22  # bytes; if more is unread, a sample is read first
_LARGE_IN_LIST = 1 << 20  # the same if only a summary is needed
_BLOCK = 1 << 20  # bytes read at once
_ANCHOR = 64  # bytes before the reading position that must not change
_SMALL_FILE = 1 << 22  # bytes; larger JSON files are ignored
_LOG_LINES, _LOG_BYTES = 1000, 1 << 18
_HEAD, _END = 1 << 17, 1 << 18  # bytes at the ends of a large file that a sample reads
_STRETCHES, _STRETCH = 60, 1 << 15  # how many stretches it reads between them, and their bytes


class Follower(Numbers):
    """A run's directory as it grows, read from outside: it writes nothing and locks nothing.

    >>> from stoker.record import Event, Run
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
        self.path = find_directory(path)
        self.name = self.path.absolute().name
        self.summary: Mapping[str, Any]  # what `Run.summary` says, from what has been read so far
        self.status: Status
        self.facts: Mapping[str, Any] = {}  # the content of run.json; empty if it is missing or damaged
        self.config: Any = None  # the content of config.json; None if it is missing or damaged
        self.log: list[str] = []  # the last lines of log.txt, at most 1000
        self._inside = inside
        self._all = Columns()
        self._columns = self._all  # or those of the index or of a sample, until all is read
        self._index: Index | None = None  # of the file as it is now, if one was read
        self._events = _Tail(self.path / EVENTS, inside=inside)
        self._signatures: dict[str, tuple[int, ...]] = {}  # of the small files
        self._alive = True
        self._unreadable = ""
        self._replaced = False
        self._summarize()

    def refresh(self, *, seconds: float | None = None) -> bool:
        """Reads what is new, for at most about so many seconds; returns whether anything has changed.

        A large file then takes several calls, while `has_unread` is true; until all of it is read, the answers come
        from a sample. With `seconds=0`, only the index of a large file is read (curves are thinned to about 500
        points then), or the start and the end of one that has none.
        """
        before = self._alive, self._unreadable
        changed = self._read_events(seconds)
        if not self._unreadable:
            changed |= self._read_small_files()
        changed |= before != (self._alive, self._unreadable)
        if changed:
            self._summarize()
        return changed

    def points(self, name: str, *, source: Source = "all") -> Points:
        """The values of a number over the run; see `Numbers.points`. Thinned while only the index has been read."""
        if self._index is not None and self.is_indexed:
            return self._index.points(name, source)
        return super().points(name, source=source)

    @property
    def has_unread(self) -> bool:
        """Whether the file holds more than has been read."""
        return not self._unreadable and self._events.unread > 0

    @property
    def is_indexed(self) -> bool:
        """Whether answers come from the run's index: those about the whole run are exact, and curves are thinned."""
        return self._index is not None and self._columns is self._index.columns

    @property
    def damaged_lines(self) -> int:
        """The number of lines that could not be read."""
        return self._all.damaged

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
        """The state (see `Record.summary`); or "gone" if the directory can't be read any more."""
        return "gone" if self._unreadable else self.summary["state"]

    @property
    def reason(self) -> str:
        """Why the run stopped or died."""
        return self._unreadable or self.summary["reason"]

    def best(self, name: str) -> Best | None:
        """The best value of a number; `None` if there is none or the direction is unknown."""
        return self._columns.best(name)

    def request(self, action: Action, *, by: str = "") -> None:
        """Asks the run to stop or to save; raises if it has no living process."""
        send_request(self.path, action, by=by)

    def _read_columns(self) -> Columns:
        return self._columns

    def _summarize(self) -> None:
        summary = summarize(self._columns, alive=self._alive)
        self.summary = {"name": self.name, "path": str(self.path), **summary}
        self.status = status_of(self._columns, self.summary)

    def _read_events(self, seconds: float | None) -> bool:
        try:
            grown = self._events.stat()
            alive = is_being_written(self._events.path)  # checked first: a process that has ended has written all
            changed = grown or bool(self._events.unread and (seconds != 0 or self._unreadable))
            if changed:
                self._read_new_events(seconds, grown=grown)
            self._alive = alive
            self._unreadable = ""
        except OSError as error:
            cause = error.strerror or str(error)
            missing = "the run's directory does not exist any more"
            self._unreadable = f"{EVENTS} can't be read: {cause}" if self.path.is_dir() else missing
            self._alive = changed = False
        return changed

    def _read_new_events(self, seconds: float | None, *, grown: bool) -> None:
        """Reads the index or a sample first if the file is large and time is limited; then blocks in that time."""
        unread = self._events.unread
        if grown:
            is_worthwhile = seconds is not None and unread > SMALLEST
            self._index = read_index(self._events.path, self._inside) if is_worthwhile else None
        is_large = unread > _LARGE or (seconds == 0 and (self._index is not None or unread > _LARGE_IN_LIST))
        if is_large and seconds is not None:
            sample = "ends" if seconds == 0 and self._columns.sample != "stretches" else "stretches"
            if self._index is not None:
                self._columns = self._index.columns
            elif grown or self._columns.sample != sample:
                self._columns = self._events.sample(Columns(sample=sample))
        if not is_large or seconds != 0:
            self._read_blocks(time.monotonic() + (seconds or math.inf))
        if not self._events.unread:
            self._columns = self._all

    def _read_blocks(self, end_time: float) -> None:
        for block in self._events.read_blocks():
            if block is None:
                self._all = Columns()
                self._columns = self._all
                self._replaced = True
                continue
            self._all.extend(decode_lines(block))
            if time.monotonic() > end_time:
                return
        incomplete = decode_line(self._events.incomplete) if self._events.incomplete else None
        if incomplete is not None:  # only its newline is missing
            self._events.accept_incomplete()
            self._all.add(incomplete)

    def _read_small_files(self) -> bool:
        """Reads `run.json`, `config.json` and the end of `log.txt` if they have changed; returns whether they have."""
        facts = self._read_small_file(FACTS, self.facts, _read_json)
        facts = facts if isinstance(facts, Mapping) else {}
        config = self._read_small_file(CONFIG, self.config, _read_json)
        log = self._read_small_file(LOG, self.log, _read_last_lines) or []
        changed = (facts, config, log) != (self.facts, self.config, self.log)
        self.facts = facts
        self.config = config
        self.log = log
        return changed

    def _read_small_file(self, name: str, known: Any, read: Callable[[BinaryIO, int], Any]) -> Any:
        """What `read` makes of a file and its size, or `known` if it is unchanged; `None` if it can't be read."""
        try:
            with open_regular_file(self.path / name, inside=self._inside) as file:
                signature = _signature(file)
                if signature == self._signatures.get(name):
                    return known
                self._signatures[name] = signature
                return read(file, signature[2])
        except (ValueError, RecursionError):
            return None
        except OSError:
            self._signatures.pop(name, None)
            return None


def _signature(file: BinaryIO) -> tuple[int, int, int, int]:
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def _read_json(file: BinaryIO, size: int) -> Any:
    return json.loads(file.read()) if size <= _SMALL_FILE else None


def _read_last_lines(file: BinaryIO, size: int) -> list[str]:
    file.seek(max(0, size - _LOG_BYTES))
    complete, _, _ = file.read(_LOG_BYTES).rpartition(b"\n")
    return complete.decode("utf-8", "replace").splitlines()[-_LOG_LINES:]


class _Tail:
    """Reads the complete lines of a growing file in blocks, each line once; with `inside`, no file outside it."""

    def __init__(self, path: Path, *, inside: Path | None = None) -> None:
        self.path = path
        self.incomplete = b""  # the last line, while its newline is missing
        self._inside = inside
        self._offset = 0  # bytes read
        self._size = 0  # of the file, at the last `stat`
        self._signature: tuple[int, ...] = ()
        self._anchor = b""

    def stat(self) -> bool:
        """Whether the file has changed since the last call; raises `OSError` if it can't be read."""
        with self._open() as file:
            signature = _signature(file)
        changed = signature != self._signature
        self._signature = signature
        self._size = signature[2]
        return changed

    @property
    def unread(self) -> int:
        """How many bytes there were to read at the last `stat`."""
        return max(0, self._size - self._offset - len(self.incomplete))

    def read_blocks(self) -> Iterator[bytes | None]:
        """Yields what is new up to the last complete line; first `None` if the file was cut, rewritten or replaced.

        A longer copy of the same content (rsync's, say) counts as the same file.
        """
        with self._open() as file:
            file.seek(self._offset - len(self._anchor))
            if file.read(len(self._anchor)) != self._anchor:
                self._offset = 0
                self._anchor = b""
                self.incomplete = b""
                yield None
            size = _BLOCK
            while True:
                file.seek(self._offset)
                block = file.read(size)
                end = block.rfind(b"\n") + 1
                if end:
                    self._advance(block[:end])
                    yield block[:end]
                    size = _BLOCK
                elif len(block) < size:
                    self.incomplete = block
                    return
                elif size < LONGEST_LINE:
                    size *= 4
                else:
                    raise OSError(f"expected lines of JSON, but one has more than {LONGEST_LINE:,} bytes")

    def accept_incomplete(self) -> None:
        """Counts the incomplete line as read."""
        self._advance(self.incomplete)

    def sample(self, columns: Columns) -> Columns:
        """Adds events from the start and the end of a large file, and, if wanted, from stretches between them."""
        with self._open() as file:
            file.readline(LONGEST_LINE)
            head = max(min(_HEAD, self._size // 8), file.tell())  # with the first event, however long
            last = max(head, self._size - min(_END, self._size // 4))
            every = (last - head) // _STRETCHES
            count = _STRETCHES if columns.sample == "stretches" else 0
            stretches = [(head + every * i, head + every * i + min(_STRETCH, every // 2)) for i in range(count)]
            for start, end in [(0, head), *stretches, (last, self._size)]:
                file.seek(start)
                block = file.read(end - start)
                first = block.find(b"\n") + 1 if start else 0
                columns.extend(decode_lines(block[first : block.rfind(b"\n") + 1]))
        return columns

    def _open(self) -> BinaryIO:
        return open_regular_file(self.path, inside=self._inside)

    def _advance(self, read: bytes) -> None:
        self._offset += len(read)
        self._anchor = (self._anchor + read)[-_ANCHOR:]
        self.incomplete = b""


def find_runs(
    folder: str | os.PathLike[str] = "runs",
    *,
    read: bool = True,
    on_error: Callable[[OSError], object] | None = None,
) -> list[Follower]:
    """All runs in a directory and its subdirectories, oldest first.

    >>> from stoker.record import Run
    >>> Run.create("experiments/letters").close()
    >>> [(run.name, run.state) for run in find_runs("experiments")]
    [('letters', 'died')]

    With `read=False`, only the start and the end of a large record are read, which is enough for its state. A run
    that can't be read has the state "gone". `on_error` is called for each directory that can't be read. Runs that were
    removed (`remove_run`) are not listed.
    """
    if "\0" in str(folder):
        raise InvalidArgument(f"a path can't contain a zero byte; got {str(folder)!r}")
    runs: list[Follower] = []
    for directory, subdirectories, files in os.walk(folder, onerror=on_error):
        subdirectories[:] = [name for name in subdirectories if name != TRASH]
        if EVENTS in files or (FACTS in files and "checkpoints" in subdirectories):
            subdirectories.clear()  # a run holds checkpoints, not runs
            try:
                runs.append(Follower(directory))
            except MissingFile:  # deleted meanwhile, or a broken link
                continue
            runs[-1].refresh(seconds=None if read else 0)

    def start_time(run: Follower) -> float:
        started = run.facts.get("started")
        return float(started) if isinstance(started, int | float) else run.summary["started"] or 0.0

    return sorted(runs, key=lambda run: (start_time(run), str(run.path)))


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
            names = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name[0] != "."]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadFile(f"{directory} can't be read: {error.strerror or error}") from error
    infos = [_read_manifest(Path(name) / "manifest.json", facts.get("id", "")) for name in names]
    return sorted(filter(None, infos), key=lambda info: (info.update, info.time))


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
