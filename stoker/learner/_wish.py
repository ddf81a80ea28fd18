"""The arguments of a `fit`, checked where they are written."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker.callbacks import Callback
from stoker.checkpoint import Checkpoint
from stoker.errors import InvalidArgument, WrongType


@dataclass(frozen=True)
class Wish:
    """On what to train, and for how long."""

    train: Any
    valid: Any = None
    epochs: int | None = None
    updates: int | None = None
    minutes: float | None = None
    batch_size: int | None = None
    callbacks: Sequence[Callback] = ()
    run: str | Path | None = None
    config: Any = None
    validate_every: Literal["epoch"] | int = "epoch"
    keep: Literal["best", "last"] = "best"
    checkpoint: Checkpoint | bool | None = None  # None: as `Checkpoint()` says, where there is a run
    resume: bool | Literal["force"] = False

    def __post_init__(self) -> None:
        check_limits(epochs=self.epochs, updates=self.updates, minutes=self.minutes)
        if self.keep not in ("best", "last"):
            raise InvalidArgument(f'keep is "best" or "last", got {self.keep!r}')
        every = self.validate_every
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise InvalidArgument(f'validate_every is "epoch" or a number of updates, got {every!r}')
        if self.run is not None and not isinstance(self.run, str | os.PathLike):
            raise WrongType(f"run is the path of a directory, got {self.run!r}")
        if self.run == "":
            raise InvalidArgument("run is the path of a directory, got an empty one; leave it out to record nothing")
        if self.config is not None and self.run is None:
            raise InvalidArgument("config is written into the run's directory, and there is none: give run= as well")
        if not isinstance(self.checkpoint, Checkpoint | bool | None):
            raise WrongType(f"checkpoint is a stoker.Checkpoint(...), or False; got {type(self.checkpoint).__name__}")
        if self.resume not in (True, False, "force"):
            raise InvalidArgument(f'resume is True, False or "force", got {self.resume!r}')
        for name in ("checkpoint", "resume"):
            if getattr(self, name) and self.run is None:
                raise InvalidArgument(f"{name} needs a run: give run= the directory that it is written to")

    @property
    def folder(self) -> Path:
        """The run's directory, wherever the process goes later."""
        assert self.run is not None
        return Path(self.run).absolute()

    @property
    def resumes(self) -> bool | Literal["force"]:
        """Whether to go on with the run where it is there; `stoker resume` asks for it from outside."""
        asked = os.environ.get("STOKER_RESUME")
        named = asked is not None and self.run is not None and Path(asked).resolve() == Path(self.run).resolve()
        return self.resume or named

    @property
    def checkpoints(self) -> Checkpoint | None:
        """How to save; None where nothing is saved."""
        if self.run is None or self.checkpoint is False:
            return None
        return self.checkpoint if isinstance(self.checkpoint, Checkpoint) else Checkpoint()


def check_limits(*, epochs: int | None, updates: int | None, minutes: float | None) -> None:
    """At least one limit, each a number above 0."""
    limits = {"epochs": epochs, "updates": updates, "minutes": minutes}
    if all(value is None for value in limits.values()):
        raise InvalidArgument("say how long to train: epochs=, updates= or minutes=")
    for name, value in limits.items():
        if value is None:
            continue
        kinds = (int, float) if name == "minutes" else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise WrongType(f"{name} is a {'number' if name == 'minutes' else 'whole number'}, got {value!r}")
        if not value > 0:
            raise InvalidArgument(f"{name} must be above 0, got {value!r}")
