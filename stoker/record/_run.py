"""A run is a directory: what was asked for, what ran, what happened, and what was said."""

import os
import secrets
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from stoker.config import Config
from stoker.errors import BadFile, InvalidArgument, RunExists
from stoker.record._differences import differences
from stoker.record._event import Event, plain
from stoker.record._facts import facts_of_this_process, versions
from stoker.record._journal import EVENTS, no_run
from stoker.record._jsonfile import read_json, write_json
from stoker.record._lock import holder, is_written
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
        the git commit where there is one, the time, and the run's `id`.
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
                f"{str(path)!r} already holds a run; choose another path, or move or delete that directory first; "
                "resume=True goes on with it"
            ) from None
        return cls._take(path, config, facts or {})

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], *, config: object = None, facts: Mapping[str, Any] | None = None
    ) -> Self:
        """Takes up a run whose process has ended, in whatever way; one that a living process writes is refused.

        >>> Run.create("runs/letters", config={"lr": 0.1}).close()
        >>> run = Run.resume("runs/letters", config={"lr": 0.2})
        >>> run.record.rewind(0, Event("resume", extra={"checkpoint": None}))
        >>> print(run.record.events_of("warning")[0].text)
        the config is not the one that the run began with (config.json, which stays as it is): lr: 0.1 → 0.2
        >>> run.close()

        The files say what the run began with, and stay so; what differs now is a warning after the next "resume" event.
        A run whose process was killed while it was created is given what its files lack, `facts` among it.
        """
        path = Path(path)
        path = path.parent if path.is_file() else path
        if not (path / EVENTS).exists():
            raise no_run(path / EVENTS)
        run = cls._take(path, config, facts or {})
        run._warn_once_resumed(_changes(run, config))
        return run

    @classmethod
    def _take(cls, path: Path, config: object, facts: Mapping[str, Any]) -> Self:
        """The run, written by this process from now on."""
        record = Record(path)
        try:
            known = _facts_in(path)
            if "id" not in known:  # a new one, or its creation was cut short: this file is the last of it
                if not known:  # runs had no id at first, and those keep their config
                    _write_config(path / CONFIG, config)
                known = {
                    **facts_of_this_process(),
                    **plain(facts),
                    **known,
                    "id": secrets.token_hex(8),
                    "path": str(path.absolute()),
                }
                write_json(path / FACTS, known)
            run = cls(path, record, config=read_json(path / CONFIG), facts=known)
        except BaseException:
            record.close()
            raise
        record.subscribe(run._hear)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a run's directory, whether the run is over or not; nothing is written to it."""
        path = Path(path)
        path = path.parent if path.is_file() else path
        record = Record.open(path / EVENTS)
        return cls(path, record, config=read_json(path / CONFIG), facts=_facts_in(path))

    @property
    def id(self) -> str:
        """What the run is known by to its checkpoints, wherever its directory is moved; "" for a run without one."""
        return str(self.facts.get("id", ""))

    @property
    def writer(self) -> str | None:
        """Which living process writes to it, in words: `process 4242`; `None` where none does."""
        events = self.path / EVENTS
        return holder(events) if is_written(events) else None

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Brings `run.json` up to date with what turned out only when it ran: the plan, say."""
        self.facts = {**self.facts, **plain(facts)}
        try:
            write_json(self.path / FACTS, self.facts)
        except OSError as error:  # a full disk, say: the training is worth more
            self.record.append(Event("warning", text=f"{FACTS} can't be brought up to date: {error}"))

    def log(self, text: str) -> None:
        """Adds lines to `log.txt`, each with its time: what was printed, say."""
        self._log(text, time.time())

    def summary(self) -> dict[str, Any]:
        """The record's summary, with the name, and with "died" where no process goes on with a run that has no end."""
        found = {"name": self.path.name, "path": str(self.path), **self.record.summary()}
        if found["state"] == "running" and self.writer is None:
            found.update(state="died", reason="the process went away without a word")
        return found

    def close(self) -> None:
        """Lets go of the files."""
        self.record.close()

    def _hear(self, event: Event) -> None:
        if event.kind in _SAID:
            trace = event.extra.get("traceback", "")
            self._log(f"{_SAID[event.kind]}{event.text}" + (f"\n{trace}" if trace else ""), event.time)
        elif event.kind == "checkpoint":
            told = {"name": "", "reason": "", "bytes": 0, **event.extra}
            self._log(f"checkpoint {told['name']}: {told['reason']}, {told['bytes']:,} bytes", event.time)

    def _warn_once_resumed(self, texts: list[str]) -> None:
        """After the "resume" event and not now: that event would make them void."""

        def hear(event: Event) -> None:
            if event.kind == "resume":
                unsubscribe()
                for text in texts:
                    self.record.append(Event("warning", text=text))

        unsubscribe = self.record.subscribe(hear)

    def _log(self, text: str, when: float) -> None:
        stamp = datetime.fromtimestamp(when).strftime("%Y-%m-%d %H:%M:%S")
        lines = "".join(f"{stamp}  {line}\n" for line in text.rstrip("\n").split("\n"))
        with (self.path / LOG).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(lines)


def _facts_in(path: Path) -> dict[str, Any]:
    found = read_json(path / FACTS)
    if found is not None and not isinstance(found, dict):
        raise BadFile(f"{path / FACTS}: expected an object, {{…}}, but it is a {type(found).__name__}")
    return found or {}


def _write_config(path: Path, config: object) -> None:
    if isinstance(config, Config):
        config.save(path)
    elif config is not None:
        write_json(path, plain(config))


def _changes(run: Run, config: object) -> list[str]:
    """What is not as it was when the run began, a text each."""
    texts: list[str] = []
    given = config.to_dict() if isinstance(config, Config) else plain(config)
    fields = differences(run.config, given) if config is not None else []
    if fields:
        began = f"({CONFIG}, which stays as it is)" if run.config is not None else "(none)"
        texts.append(f"the config is not the one that the run began with {began}: {', '.join(fields)}")
    packages = differences(run.facts.get("versions"), versions())
    if packages:
        texts.append(f"other versions than when the run began, so the last bits may differ: {', '.join(packages)}")
    return texts
