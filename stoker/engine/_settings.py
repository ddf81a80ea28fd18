"""How to train, and for how long."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """The settings of a fit that the engine reads; each is an argument of `Learner` or of `fit`."""

    epochs: int | None = None
    updates: int | None = None
    minutes: float | None = None
    accumulate: int = 1  # micro-batches to an update
    clip_norm: float | None = None
    clip_value: float | None = None
    precision: str = "fp32"
    on_nan: Literal["stop", "skip"] = "stop"
    compile: bool = False
    validate_every: int | None = None  # updates; None for every epoch
    keep: Literal["best", "last"] = "best"
    monitor: str | None = None  # the metric that decides which weights are best; None without validation
