"""A run's directory: its config, what is known about the process, its events and its log."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from stoker._files import open_to_append, read_json, write_json
from stoker.config import Config
from stoker.errors import BadFile, InvalidArgument, RunExists, StokerError
from stoker.record._event import Event, to_json_value
from stoker.record._journal import EVENTS, FACTS, find_directory, is_being_written, writer_of
from stoker.record._media import MediaLog
from stoker.record._record import Record

CONFIG, LOG = "config.json", "log.txt"
FORMAT = 1  # of a run's directory: what its files hold
_LOGGED = {"note": "", "warning": "warning: ", "stop": "stopped: ", "error": "error: "}  # kinds, and their prefix


class Run(MediaLog):
    """A run's directory: `config.json`, `run.json` (facts about it), `events.jsonl` (its record) and `log.txt`.

    >>> run = Run.create("runs/digits", config={"lr": 0.1}, facts={"seed": 0})
    >>> run.record.append(Event("note", text="hello"))
    >>> run.close()
    >>> Run.open("runs/digits").config
    {'lr': 0.1}

    In your own loop, `run.log_image` and its siblings (see `MediaLog`) log media.
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
        with _explain_failure("created", path):
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
            try:
                return cls._open_for_writing(path, config, facts or {})
            except BaseException:  # a full disk, say: the next attempt finds no run here
                for name in (CONFIG, EVENTS):
                    with suppress(OSError):
                        (path / name).unlink(missing_ok=True)
                raise

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
        process was killed while it created the run, the missing files are written now. If `events.jsonl` was removed
        or damaged, the run continues with the rest of its record.
        """
        path = find_directory(path)
        with _explain_failure("resumed", path):
            run = cls._open_for_writing(path, config, facts or {})
        run._warn_after_resume(_differences_now(run, config))
        return run

    @classmethod
    def _open_for_writing(cls, path: Path, config: object, facts: Mapping[str, Any]) -> Self:
        record = Record(path)
        try:
            known = _read_facts(path)
            if "id" not in known:  # a new run, or one whose creation was cut short: this file is written last
                if config is not None and not (path / CONFIG).exists():
                    write_json(path / CONFIG, _to_json(config))
                known = to_json_value({**_facts_of_this_process(), **facts, **known})
                known = {"format": FORMAT, **known, "id": os.urandom(8).hex(), "path": str(path.absolute())}
                write_json(path / FACTS, known)
            run = cls(path, record, config=_read_config(path), facts=known)
        except BaseException:
            record.close()
            raise
        record.subscribe(run._log_event)
        return run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a run's directory, even while the run is being written; never writes to it.

        A damaged line of `events.jsonl` is an event of the kind "damaged"; the record is empty if the file was removed.
        """
        path = find_directory(path)
        record = Record.open(path / EVENTS, strict=False) if (path / EVENTS).exists() else Record()
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
        self.facts = to_json_value({**self.facts, **facts})
        try:
            write_json(self.path / FACTS, self.facts)
        except OSError as error:  # a full disk must not end the training
            self.record.append(Event("warning", text=f"{FACTS} can't be updated: {error}"))

    def log(self, text: str) -> None:
        """Adds lines to `log.txt`, each with the current time."""
        self._log(text, time.time())

    def _media_place(self) -> tuple[Record, int, int, int]:
        last = self.record.last_event or Event("none")
        return self.record, last.epoch, last.batch, last.update

    def summary(self) -> dict[str, Any]:
        """The record's summary, with the name and path; "died" if the run has no end and no living process."""
        summary = self.record.summary(alive=self.writer is not None)
        return {"name": self.path.name, "path": str(self.path), **summary}

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
        with open_to_append(self.path / LOG) as file:
            file.write(lines.encode("utf-8", "backslashreplace"))


@contextmanager
def _explain_failure(action: str, path: Path) -> Iterator[None]:
    """Raises an `OSError` (no permission, a full disk, a path that is too long) as `BadFile`."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        if isinstance(error, StokerError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise BadFile(f"the run {str(path)!r} can't be {action}: {reason}") from error


def _read_config(path: Path) -> Any:
    return read_json(path / CONFIG, missing_ok=True)


def _read_facts(path: Path) -> dict[str, Any]:
    facts = read_json(path / FACTS, missing_ok=True)
    if facts is not None and not isinstance(facts, dict):
        raise BadFile(f"{path / FACTS}: expected an object, {{…}}, but it holds a {type(facts).__name__}")
    if facts and facts.get("format", FORMAT) != FORMAT:
        raise BadFile(
            f"the run {str(path)!r} has format {str(facts['format'])[:9]}, and this stoker reads format {FORMAT}: use "
            "the stoker that wrote it (`versions` in its run.json names it)"
        )
    return facts or {}


def _to_json(config: object) -> Any:
    return config.to_dict() if isinstance(config, Config) else to_json_value(config)


def _differences_now(run: Run, config: object) -> list[str]:
    """Warnings about damaged events, and a config and package versions that differ from those the run began with."""
    warnings = [f"a damaged event is left out: {event.text}" for event in run.record.events_of("damaged")[:1]]
    fields = _differences(run.config, _to_json(config)) if config is not None else []
    if fields:
        file = f"({CONFIG}, which is not changed)" if run.config is not None else "(none)"
        warnings.append(f"the config differs from the one the run began with {file}: {', '.join(fields)}")
    packages = _differences(run.facts.get("versions"), _versions())
    if packages:
        warnings.append(f"versions differ from those the run began with, so the last bits may: {', '.join(packages)}")
    return warnings


def _differences(old: Any, new: Any) -> list[str]:
    before = {name: repr(value) for name, value in flatten_config(old)}
    after = {name: repr(value) for name, value in flatten_config(new)}
    changed = [name for name in before | after if before.get(name) != after.get(name)]
    return [f"{name}: {before.get(name, 'nothing')} → {after.get(name, 'nothing')}" for name in changed]


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


def run_settings(config: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was set for a run, by name: arguments of the learner and of `fit`, hparams, and the config.

    >>> facts = {"settings": {"lr": 0.1, "seed": 0, "hparams": {"hidden": 64}}}
    >>> run_settings({"lr": 0.1, "seed": 1, "data": {"size": 28}}, facts)
    {'lr': 0.1, 'seed': 0, 'hidden': 64, 'config.seed': 1, 'data.size': 28}

    The plain name belongs to what the learner used. A field of the config or an hparam that has the same name and
    another value is `config.name` or `hparams.name`.
    """
    given = facts.get("settings")
    given = dict(given) if isinstance(given, Mapping) else {}
    hparams = given.pop("hparams", None)
    settings = dict(flatten_config(given))
    for folder, fields in (("hparams", hparams), ("config", config)):
        for name, value in flatten_config(fields):
            if name not in settings:
                settings[name] = value
            elif str(settings[name]) != str(value):
                settings[f"{folder}.{name}"] = value
    return settings


def _facts_of_this_process() -> dict[str, Any]:
    """What `run.json` says about the process; `stoker resume` runs `command` in `folder`."""
    return {
        "started": time.time(),
        "command": list(sys.orig_argv),
        "folder": os.getcwd(),
        "git": git_commit(),
        "pid": os.getpid(),
        "host": platform.node(),
        "platform": platform.platform(),
        "versions": _versions(),
    }


def _versions() -> dict[str, str | None]:
    """Versions of Python and of the packages that a run's numbers depend on, read without importing them."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("stoker", "torch", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def git_commit() -> str | None:
    """The commit of the working directory, with "-dirty" if files differ; `None` without a repository or git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
