"""A run is a directory: what was asked for, what ran, what happened, and what was said."""

import json
import os
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from stoker.config import Config
from stoker.errors import BadFile, InvalidArgument, RunExists
from stoker.record._event import Event, plain
from stoker.record._facts import facts_of_this_process
from stoker.record._journal import EVENTS, is_written
from stoker.record._record import Record

CONFIG, FACTS, LOG = "config.json", "run.json", "log.txt"
_SAID = {"note": "", "warning": "warning: ", "stop": "stopped: ", "error": "error: "}  # kinds that the log gets


class Run:
    """A run's directory: `config.json`, `run.json` (what ran), `events.jsonl` (its record) and `log.txt`.

    >>> run = Run.create("runs/digits", config={"lr": 0.1}, facts={"seed": 0})
    >>> run.record.append(Event("note", text="hello"))
    >>> run.close()
    >>> Run.open("runs/digits").config
    {'lr': 0.1}
    """

    def __init__(self, path: Path, record: Record, *, config: Any, facts: Mapping[str, Any]) -> None:
        self.path = path
        self.record = record
        self.config = config
        self.facts = facts

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], *, config: object = None, facts: Mapping[str, Any] | None = None
    ) -> Self:
        """Makes the directory and writes down what is asked for and what runs; one that holds a run is refused.

        `config` is a `stoker.Config`, a dataclass or a mapping. To `facts` are added the versions, the command line,
        the git commit where there is one, and the time.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise InvalidArgument(f"run={str(path)!r} is a file; expected a directory, or the path of a new one")
        path.mkdir(parents=True, exist_ok=True)
        try:
            if (path / FACTS).exists():
                raise FileExistsError
            (path / EVENTS).touch(exist_ok=False)  # of two processes that come at once, one gets it
        except FileExistsError:
            raise RunExists(
                f"{str(path)!r} already holds a run; choose another path, or move or delete that directory first"
            ) from None
        whole = {**facts_of_this_process(), **plain(facts or {})}
        written = config.to_dict() if isinstance(config, Config) else plain(config)
        if isinstance(config, Config):
            config.save(path / CONFIG)
        elif config is not None:
            _write_json(path / CONFIG, written)
        _write_json(path / FACTS, whole)
        run = cls(path, Record(path), config=written, facts=whole)
        run.record.subscribe(run._hear)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a run's directory, whether the run is over or not; nothing is written to it."""
        path = Path(path)
        path = path.parent if path.is_file() else path
        record = Record.open(path / EVENTS)
        return cls(path, record, config=_read_json(path / CONFIG), facts=_read_json(path / FACTS) or {})

    def log(self, text: str) -> None:
        """Adds lines to `log.txt`, each with its time: what was printed, say."""
        self._log(text, time.time())

    def summary(self) -> dict[str, Any]:
        """The record's summary, with the name, and with "died" where no process goes on with a run that has no end."""
        found = {"name": self.path.name, "path": str(self.path), **self.record.summary()}
        if found["state"] == "running" and not is_written(self.path / EVENTS):
            found.update(state="died", reason="the process went away without a word")
        return found

    def close(self) -> None:
        """Lets go of the files."""
        self.record.close()

    def _hear(self, event: Event) -> None:
        if event.kind in _SAID:
            trace = event.extra.get("traceback", "")
            self._log(f"{_SAID[event.kind]}{event.text}" + (f"\n{trace}" if trace else ""), event.time)

    def _log(self, text: str, when: float) -> None:
        stamp = datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M:%S")
        lines = "".join(f"{stamp}  {line}\n" for line in text.rstrip("\n").split("\n"))
        with (self.path / LOG).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(lines)


def runs_in(folder: str | os.PathLike[str] = "runs") -> list[Run]:
    """Every run in a folder and the folders below it, the oldest first; one that can't be read has died of that."""
    found: list[Run] = []
    for place, below, files in os.walk(folder):
        if EVENTS in files:
            below.clear()  # inside a run are checkpoints, no runs
            try:
                found.append(Run.open(place))
            except BadFile as error:
                found.append(_unreadable(Path(place), error))
    return sorted(found, key=lambda run: (_started(run), str(run.path)))


def _unreadable(path: Path, error: BadFile) -> Run:
    record = Record()
    record.append(Event("error", (path / EVENTS).stat().st_mtime, text=str(error)))
    return Run(path, record, config=None, facts={})


def _started(run: Run) -> float:
    started = run.facts.get("started")
    return started if isinstance(started, float) else (run.path / EVENTS).stat().st_mtime


def _write_json(path: Path, data: object) -> None:
    draft = path.with_name(f".{path.name}.part")
    draft.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BadFile(f"{path}: expected JSON, but: {error}") from error
