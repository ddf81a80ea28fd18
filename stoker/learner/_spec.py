"""What a learner says, as a value: the model and how to train it, before there is any data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn

from stoker.distributed import Parallel
from stoker.errors import InvalidArgument, WrongType
from stoker.engine import check_precision
from stoker.steps import LossFunction


@dataclass(frozen=True)
class Spec:
    """The arguments of a `Learner`, checked where they are written."""

    model: nn.Module | Callable[..., nn.Module]
    loss: LossFunction | None
    optimizer: Any
    lr: Any
    metrics: Sequence[Any]
    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    precision: str
    ema: float | None
    device: torch.device | str | None
    seed: int | None
    on_nan: Literal["stop", "skip"]
    compile: bool = False
    parallel: Parallel = field(default_factory=Parallel)
    hparams: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module) and not callable(self.model):
            raise WrongType(f"the model is a torch.nn.Module or a class of them, got {type(self.model).__name__}")
        if self.loss is not None and not callable(self.loss):
            raise WrongType(f"the loss is a function of (predictions, targets), got {type(self.loss).__name__}")
        if isinstance(self.loss, type):
            raise WrongType(f"the loss is the class {self.loss.__name__}: make one, loss={self.loss.__name__}()")
        check_precision(self.precision)
        if not isinstance(self.compile, bool):
            raise WrongType(f"compile is True or False, got {self.compile!r}")
        if self.on_nan not in ("stop", "skip"):
            raise InvalidArgument(f'on_nan is "stop" or "skip", got {self.on_nan!r}')
        if isinstance(self.accumulate, bool) or not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise InvalidArgument(
                f"accumulate is a number of batches to an update, at least 1; got {self.accumulate!r}"
            )
        for name in ("clip_norm", "clip_value", "ema"):
            limit = getattr(self, name)
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
                raise WrongType(f"{name} is a number, got {limit!r}")
            if limit is not None and name != "ema" and not limit > 0:
                raise InvalidArgument(f"{name} needs a limit above 0, got {limit!r}")
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int)):
            raise WrongType(f"seed is a whole number, got {self.seed!r}")
        if isinstance(self.metrics, str) or not isinstance(self.metrics, Iterable):
            raise WrongType(
                f"metrics is a list, got {type(self.metrics).__name__}; put it into brackets: metrics=[...]"
            )
        if self.ema is not None and not 0 <= self.ema < 1:
            raise InvalidArgument(f"ema is a decay of at least 0 and below 1, 0.999 say; got {self.ema!r}")

    def make_model(self) -> nn.Module:
        """The instance itself, or a fresh one of the class with its hyper-parameters."""
        if isinstance(self.model, nn.Module):
            return self.model
        try:
            made = self.model(**self.hparams)
        except TypeError as error:
            name = getattr(self.model, "__name__", repr(self.model))
            error.add_note(
                f"while making the model {name}(**{dict(self.hparams)!r}); set them with learner.hparams(...)"
            )
            raise
        if not isinstance(made, nn.Module):
            raise WrongType(f"the model's maker gave {type(made).__name__}, expected a torch.nn.Module")
        return made
