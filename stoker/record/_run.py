"""A run's directory: its config, what is known about the process, its events and its log."""

import functools
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from stoker._files import read_json, write_json
from stoker.config import Config
from stoker.errors import BadFile, InvalidArgument, RunExists
from stoker.record._event import Event, to_json_value
from stoker.record._journal import EVENTS, is_being_written, missing_run, writer_of
from stoker.record._record import Record
from stoker.record._summary import DIED

CONFIG, FACTS, LOG = "config.json", "run.json", "log.txt"
_LOGGED = {"note": "", "warning": "warning: ", "stop": "stopped: ", "error": "error: "}  # kinds, and their prefix


class Run:
    """A run's directory: `config.json`, `run.json` (facts about it), `events.jsonl` (its record) and `log.txt`.

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
        """Creates the directory and writes the config and the facts; raises `RunExists` if it already holds a run.

        `config` is a `stoker.Config`, a dataclass or a mapping. The versions, the command line, the git commit, the
        time and the run's `id` are added to `facts`.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise InvalidArgument(f"run={str(path)!r} is a file; expected a directory, or the path of a new one")
        path.mkdir(parents=True, exist_ok=True)
        try:
            if (path / FACTS).exists():
                raise FileExistsError
            (path / EVENTS).touch(exist_ok=False)  # of two processes that come at once, one succeeds
        except FileExistsError:
            raise RunExists(
                f"{str(path)!r} already holds a run; choose another path, or move or delete that directory first; "
                "resume=True continues it"
            ) from None
        return cls._open_for_writing(path, config, facts or {})

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], *, config: object = None, facts: Mapping[str, Any] | None = None
    ) -> Self:
        """Opens a run whose process has ended to continue it; raises `RunExists` if a living process writes it.

        >>> Run.create("runs/letters", config={"lr": 0.1}).close()
        >>> run = Run.resume("runs/letters", config={"lr": 0.2})
        >>> run.record.rewind(0, Event("resume", extra={"checkpoint": None}))
        >>> print(run.record.events_of("warning")[0].text)
        the config differs from the one the run began with (config.json, which is not changed): lr: 0.1 → 0.2
        >>> run.close()

        The files keep what the run began with. Differences become warnings after the next "resume" event. If the
        process was killed while it created the run, the missing files are written now.
        """
        path = Path(path)
        path = path.parent if path.is_file() else path
        if not (path / EVENTS).exists():
            raise missing_run(path)
        run = cls._open_for_writing(path, config, facts or {})
        run._warn_after_resume(_differences_now(run, config))
        return run

    @classmethod
    def _open_for_writing(cls, path: Path, config: object, facts: Mapping[str, Any]) -> Self:
        record = Record(path)
        try:
            known = _read_facts(path)
            if not known:  # a new run, or one whose creation was cut short: this file is written last
                _write_config(path / CONFIG, config)
                known = {**facts_of_this_process(), **to_json_value(facts)}
                known |= {"id": secrets.token_hex(8), "path": str(path.absolute())}
                write_json(path / FACTS, known)
            run = cls(path, record, config=_read_config(path), facts=known)
        except BaseException:
            record.close()
            raise
        record.subscribe(run._log_event)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a run's directory, even while the run is being written; never writes to it."""
        path = Path(path)
        path = path.parent if path.is_file() else path
        record = Record.open(path / EVENTS)
        return cls(path, record, config=_read_config(path), facts=_read_facts(path))

    @property
    def id(self) -> str:
        """Connects the run to its checkpoints, even if the directory is moved; "" for a run without one."""
        return str(self.facts.get("id", ""))

    @property
    def writer(self) -> str | None:
        """The living process that writes the run, as text (`process 4242`); `None` if there is none."""
        events = self.path / EVENTS
        return writer_of(events) if is_being_written(events) else None

    def update_facts(self, facts: Mapping[str, Any]) -> None:
        """Adds facts to `run.json` that are known only after the run has started: the execution plan, say."""
        self.facts = {**self.facts, **to_json_value(facts)}
        try:
            write_json(self.path / FACTS, self.facts)
        except OSError as error:  # a full disk must not end the training
            self.record.append(Event("warning", text=f"{FACTS} can't be updated: {error}"))

    def log(self, text: str) -> None:
        """Adds lines to `log.txt`, each with the current time."""
        self._log(text, time.time())

    def summary(self) -> dict[str, Any]:
        """The record's summary, with the name and path; "died" if the run has no end and no living process."""
        summary = {"name": self.path.name, "path": str(self.path), **self.record.summary()}
        if summary["state"] == "running" and self.writer is None:
            summary.update(state="died", reason=DIED)
        return summary

    def close(self) -> None:
        """Closes the files."""
        self.record.close()

    def _log_event(self, event: Event) -> None:
        if event.kind in _LOGGED:
            trace = event.extra.get("traceback", "")
            self._log(f"{_LOGGED[event.kind]}{event.text}" + (f"\n{trace}" if trace else ""), event.time)
        elif event.kind == "checkpoint":
            extra = {"name": "", "reason": "", "bytes": 0, **event.extra}
            self._log(f"checkpoint {extra['name']}: {extra['reason']}, {extra['bytes']:,} bytes", event.time)

    def _warn_after_resume(self, texts: list[str]) -> None:
        """Appends the warnings after the "resume" event, which would void them if they came before it."""

        def on_event(event: Event) -> None:
            if event.kind == "resume":
                unsubscribe()
                for text in texts:
                    self.record.append(Event("warning", text=text))

        unsubscribe = self.record.subscribe(on_event)

    def _log(self, text: str, timestamp: float) -> None:
        stamp = datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")
        lines = "".join(f"{stamp}  {line}\n" for line in text.rstrip("\n").split("\n"))
        with (self.path / LOG).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(lines)


def _read_config(path: Path) -> Any:
    return read_json(path / CONFIG, missing_ok=True)


def _read_facts(path: Path) -> dict[str, Any]:
    facts = read_json(path / FACTS, missing_ok=True)
    if facts is not None and not isinstance(facts, dict):
        raise BadFile(f"{path / FACTS}: expected an object, {{…}}, but it holds a {type(facts).__name__}")
    return facts or {}


def _write_config(path: Path, config: object) -> None:
    if isinstance(config, Config):
        config.save(path)
    elif config is not None:
        write_json(path, to_json_value(config))


def _differences_now(run: Run, config: object) -> list[str]:
    """Warnings about a config and package versions that differ from those the run began with."""
    warnings: list[str] = []
    given = config.to_dict() if isinstance(config, Config) else to_json_value(config)
    fields = _differences(run.config, given) if config is not None else []
    if fields:
        file = f"({CONFIG}, which is not changed)" if run.config is not None else "(none)"
        warnings.append(f"the config differs from the one the run began with {file}: {', '.join(fields)}")
    packages = _differences(run.facts.get("versions"), versions())
    if packages:
        warnings.append(f"versions differ from those the run began with, so the last bits may: {', '.join(packages)}")
    return warnings


def _differences(old: Any, new: Any) -> list[str]:
    before, after = dict(flatten_config(old)), dict(flatten_config(new))

    def show(fields: Mapping[str, Any], name: str) -> str:
        return repr(fields[name]) if name in fields else "nothing"

    return [
        f"{name}: {show(before, name)} → {show(after, name)}"
        for name in before | after
        if name not in before or name not in after or before[name] != after[name]
    ]


def flatten_config(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of a config by their dotted names.

    >>> list(flatten_config({"model": {"hidden": 128, "norm": {}}, "lr": 0.1}))
    [('model.hidden', 128), ('model.norm', {}), ('lr', 0.1)]
    """
    if isinstance(config, Mapping) and config:
        for name, value in config.items():
            yield from flatten_config(value, f"{path}.{name}" if path else str(name))
    elif path:
        yield path, config


def run_settings(config: Any, facts: Mapping[str, Any], *, once: bool = False) -> dict[str, Any]:
    """The fields of a run's config and the learner's settings, by dotted name.

    >>> facts = {"settings": {"lr": 0.1, "seed": 0}}
    >>> run_settings({"lr": 0.1}, facts)
    {'lr': 0.1, 'settings.lr': 0.1, 'settings.seed': 0}
    >>> run_settings({"lr": 0.1}, facts, once=True)
    {'lr': 0.1, 'settings.seed': 0}

    `once` leaves out settings that repeat a field of the config. When runs are compared, that would hide differences.
    """
    fields = dict(flatten_config(config))
    repeated = {(name.rpartition(".")[2], str(value)) for name, value in fields.items()} if once else set()
    settings = flatten_config({"settings": facts["settings"]} if facts.get("settings") else {})
    return fields | {n: value for n, value in settings if (n.rpartition(".")[2], str(value)) not in repeated}


def facts_of_this_process() -> dict[str, Any]:
    """What `run.json` says about the process; `stoker resume` runs `command` in `folder`."""
    return {
        "started": time.time(),
        "command": list(sys.orig_argv),
        "folder": os.getcwd(),
        "git": git_commit(),
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "versions": versions(),
    }


def versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that a run's numbers depend on, read without importing them."""
    return {"python": platform.python_version(), **{name: _version(name) for name in ("stoker", "torch", "numpy")}}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_commit() -> str | None:
    """The commit of the working directory, with "-dirty" if files differ; `None` without a repository or git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
