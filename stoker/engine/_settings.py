"""How to train, and for how long."""

from dataclasses import dataclass
from typing import Literal

from stoker.checkpoint import Frozen
from stoker.record import Direction


@dataclass(frozen=True, eq=False, repr=False)
class Settings:
    """The settings of a fit that the engine reads, as `Learner` and `fit` take them or the learner completes them."""

    epochs: int | None = None
    updates: int | None = None
    minutes: float | None = None
    accumulate: int = 1  # batches to an update
    micro_batch: int | Literal["auto"] | None = None  # samples that are computed at once; None for the whole batch
    clip_norm: float | None = None
    clip_value: float | None = None
    precision: str = "fp32"
    on_nan: Literal["stop", "skip"] = "stop"
    compile: bool = False
    deterministic: bool = False
    validate_every: int | None = None  # updates; None for every epoch
    keep: Literal["best", "last"] = "best"
    monitor: str | None = None  # the metric that decides which weights are best; None without validation
    mode: Direction = "min"  # whether the lowest or the highest value of it is best
    frozen: Frozen = "auto"  # whether checkpoints and copies of the weights leave out frozen parameters
