"""The arguments of a `fit`, checked where they are written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker.callbacks import Callback
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

    def __post_init__(self) -> None:
        check_limits(epochs=self.epochs, updates=self.updates, minutes=self.minutes)
        if self.keep not in ("best", "last"):
            raise InvalidArgument(f'keep is "best" or "last", got {self.keep!r}')
        every = self.validate_every
        if every != "epoch" and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise InvalidArgument(f'validate_every is "epoch" or a number of updates, got {every!r}')
        if self.config is not None and self.run is None:
            raise InvalidArgument("config is written into the run's directory, and there is none: give run= as well")


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
