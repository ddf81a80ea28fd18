"""The arguments of `Learner` and `fit`, checked before anything happens."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from stoker.callbacks import Callback
from stoker.checkpoint import Checkpoint
from stoker.distributed import as_parallel
from stoker.engine import check_precision
from stoker.errors import InvalidArgument, WrongType

if TYPE_CHECKING:
    from stoker.learner._learner import Learner


@dataclass(frozen=True)
class FitArguments:
    """The arguments of `Learner.fit`, without `show`."""

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
    checkpoint: Checkpoint | bool | None = None
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
            raise InvalidArgument("run is the path of a directory, got an empty string; leave it out to record nothing")
        if self.config is not None and self.run is None:
            raise InvalidArgument("config is written to the run directory: give run= as well")
        if not isinstance(self.checkpoint, Checkpoint | bool | None):
            raise WrongType(f"checkpoint is a stoker.Checkpoint(...) or False, got {type(self.checkpoint).__name__}")
        if self.resume not in (True, False, "force"):
            raise InvalidArgument(f'resume is True, False or "force", got {self.resume!r}')
        for name in ("checkpoint", "resume"):
            if getattr(self, name) and self.run is None:
                raise InvalidArgument(f"{name} needs a run directory: give run= as well")

    @property
    def directory(self) -> Path:
        """The run directory as an absolute path, which stays valid if the process changes its directory."""
        assert self.run is not None
        return Path(self.run).absolute()

    @property
    def should_resume(self) -> bool | Literal["force"]:
        """Whether to resume an existing run; `stoker resume` requests it through the environment."""
        requested = os.environ.get("STOKER_RESUME")
        is_requested = (
            requested is not None and self.run is not None and Path(requested).resolve() == Path(self.run).resolve()
        )
        return self.resume or is_requested

    @property
    def checkpoint_settings(self) -> Checkpoint | None:
        """How to save, or `None` if nothing is saved."""
        if self.run is None or self.checkpoint is False:
            return None
        return self.checkpoint if isinstance(self.checkpoint, Checkpoint) else Checkpoint()


def check_limits(*, epochs: int | None, updates: int | None, minutes: float | None) -> None:
    """Raises unless there is at least one limit, and each is a number above 0."""
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


def check_learner(learner: "Learner") -> None:
    """Raises for arguments of a `Learner` that are wrong whatever the data are."""
    model, loss = learner.model, learner.loss
    if not isinstance(model, nn.Module) and not callable(model):
        raise WrongType(f"the model is a torch.nn.Module or a class of them, got {type(model).__name__}")
    if loss is not None and not callable(loss):
        raise WrongType(f"the loss is a function of (predictions, targets), got {type(loss).__name__}")
    if isinstance(loss, type):
        raise WrongType(f"the loss is the class {loss.__name__}; create one: loss={loss.__name__}()")
    check_precision(learner.precision)
    as_parallel(learner.parallel)
    if not isinstance(learner.compile, bool):
        raise WrongType(f"compile is True or False, got {learner.compile!r}")
    if learner.on_nan not in ("stop", "skip"):
        raise InvalidArgument(f'on_nan is "stop" or "skip", got {learner.on_nan!r}')
    accumulate, seed, ema = learner.accumulate, learner.seed, learner.ema
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise InvalidArgument(f"accumulate is a number of batches per update, at least 1; got {accumulate!r}")
    for name in ("clip_norm", "clip_value", "ema"):
        limit = getattr(learner, name)
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
            raise WrongType(f"{name} is a number, got {limit!r}")
        if limit is not None and name != "ema" and not limit > 0:
            raise InvalidArgument(f"{name} must be above 0, got {limit!r}")
    if ema is not None and not 0 <= ema < 1:
        raise InvalidArgument(f"ema is a decay of at least 0 and below 1, such as 0.999; got {ema!r}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise WrongType(f"seed is a whole number, got {seed!r}")
    if isinstance(learner.metrics, str) or not isinstance(learner.metrics, Iterable):
        raise WrongType(f"metrics takes a list, got {type(learner.metrics).__name__}; write metrics=[...]")


def make_model(model: Any) -> nn.Module:
    """Returns the model itself, or creates one from its class (with the `hparams` of the learner)."""
    if isinstance(model, nn.Module):
        return model
    try:
        made = model()
    except TypeError as error:
        error.add_note(
            f"while creating the model with {describe_model(model)}; set arguments with learner.hparams(...)"
        )
        raise
    if not isinstance(made, nn.Module):
        raise WrongType(f"{describe_model(model)} returned {type(made).__name__}, expected a torch.nn.Module")
    return made


def hparams_of(model: Any) -> dict[str, Any]:
    """The arguments that a learner has for the class of its model."""
    return dict(model.keywords) if isinstance(model, partial) else {}


def describe_model(model: Any) -> str:
    """A model, or the call that creates it, as text."""
    if isinstance(model, nn.Module):
        return type(model).__name__
    function = model.func if isinstance(model, partial) else model
    name = getattr(function, "__name__", repr(function))
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in hparams_of(model).items())})"
