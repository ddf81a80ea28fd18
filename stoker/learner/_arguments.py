"""The arguments of `Learner` and `fit`, checked before anything happens."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from torch import nn

from stoker.callbacks import Callback
from stoker.checkpoint import Checkpoint
from stoker.distributed import as_parallel
from stoker.engine import check_precision
from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.learner._rates import check_rates

if TYPE_CHECKING:
    from stoker.learner._learner import Learner

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


_ELSEWHERE = {
    **dict.fromkeys(
        ("num_workers", "shuffle", "collate_fn", "pin_memory"), "; it is one of data.Loader: fit(Loader(...))"
    ),
    **dict.fromkeys(("validation_data", "val_data", "val_dataloaders", "eval_dataset"), "; did you mean 'valid'?"),
}


def check_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function raise `WrongType` for arguments that it does not have, with those that it has."""
    parameters = inspect.signature(function).parameters
    names = [name for name in parameters if name != "self"]
    positional = [name for name in names if parameters[name].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    title = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                hint = _ELSEWHERE.get(name) if "valid" in names else None
                hint = hint or did_you_mean(name, names) or f"; the arguments are: {', '.join(names)}"
                raise WrongType(f"{title} has no argument {name!r}{hint}")
        if len(args) - 1 > len(positional):
            raise WrongType(
                f"{title} takes one argument without a name, {positional[0]!r}, and got {len(args) - 1}: give the "
                "others by name, and inputs with their targets as one argument: (x, y)"
            )
        return function(*args, **kwargs)

    return call


def check_keywords_of_init(cls: type[T]) -> type[T]:
    """`check_keywords` for the constructor of a class."""
    cls.__init__ = check_keywords(cls.__init__)
    return cls


@dataclass(frozen=True, eq=False, repr=False)
class FitArguments:
    """The arguments of `Learner.fit`, which has their defaults, without `show`."""

    train: Any
    valid: Any
    epochs: int | None
    updates: int | None
    minutes: float | None
    batch_size: int | None
    micro_batch: int | Literal["auto"] | None
    callbacks: Sequence[Callback]
    run: str | Path | None
    config: Any
    validate_every: Literal["epoch"] | int
    keep: Literal["best", "last"]
    monitor: str | None
    mode: Literal["min", "max"] | None
    checkpoint: Checkpoint | bool | None
    resume: bool | Literal["force"]
    system_metrics: bool

    def __post_init__(self) -> None:
        check_limits(epochs=self.epochs, updates=self.updates, minutes=self.minutes)
        if self.keep not in ("best", "last"):
            raise InvalidArgument(f'keep is "best" or "last", got {self.keep!r}')
        if self.micro_batch not in (None, "auto") and not _is_count(self.micro_batch):
            raise InvalidArgument(
                f'micro_batch is a number of samples, at least 1, or "auto"; got {self.micro_batch!r}'
            )
        if self.monitor is not None and (not isinstance(self.monitor, str) or not self.monitor):
            raise InvalidArgument(f'monitor is the name of a metric, such as "valid/accuracy"; got {self.monitor!r}')
        if self.mode not in (None, "min", "max"):
            raise InvalidArgument(f'mode is "min", "max" or None (as the metric says), got {self.mode!r}')
        if self.validate_every != "epoch" and not _is_count(self.validate_every):
            raise InvalidArgument(f'validate_every is "epoch" or a number of updates, got {self.validate_every!r}')
        if self.run is not None and not isinstance(self.run, str | os.PathLike):
            raise WrongType(f"run is the path of a directory, got {self.run!r}")
        if self.run == "":
            raise InvalidArgument("run is the path of a directory, got an empty string; leave it out to record nothing")
        if self.run is not None and "\0" in os.fspath(self.run):
            raise InvalidArgument(f"run is the path of a directory, and a path has no zero byte; got {self.run!r}")
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
        if requested is None or self.run is None:
            return self.resume
        return self.resume or Path(requested).resolve() == Path(self.run).resolve()

    @property
    def checkpoint_settings(self) -> Checkpoint | None:
        """How to save, or `None` if nothing is saved."""
        if self.run is None or self.checkpoint is False:
            return None
        return self.checkpoint if isinstance(self.checkpoint, Checkpoint) else Checkpoint()


def check_limits(*, epochs: int | None, updates: int | None, minutes: float | None) -> None:
    """Raises unless there is at least one limit, and each is a number above 0."""
    if epochs is None and updates is None and minutes is None:
        raise InvalidArgument("say how long to train: epochs=, updates= or minutes=")
    for name, value in (("epochs", epochs), ("updates", updates)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise WrongType(f"{name} is a whole number, got {value!r}")
        _check_above_zero(name, value)
    _check_above_zero("minutes", minutes)


def check_learner(learner: "Learner") -> None:
    """Raises for arguments of a `Learner` that are wrong whatever the data are."""
    model, loss, ema, seed = learner.model, learner.loss, learner.ema, learner.seed
    if not isinstance(model, nn.Module) and not callable(model):
        raise WrongType(f"the model is a torch.nn.Module or a class of them, got {type(model).__name__}")
    if loss is not None and not callable(loss):
        raise WrongType(f"the loss is a function of (predictions, targets), got {type(loss).__name__}")
    if isinstance(loss, type):
        raise WrongType(f"the loss is the class {loss.__name__}; create one: loss={loss.__name__}()")
    for name in ("step", "valid_step", "predict_step"):
        _check_step(name, getattr(learner, name))
    check_rates(learner.lr)
    check_precision(learner.precision)
    as_parallel(learner.parallel)
    if not isinstance(learner.compile, bool):
        raise WrongType(f"compile is True or False, got {learner.compile!r}")
    if not isinstance(learner.deterministic, bool):
        raise WrongType(f"deterministic is True or False, got {learner.deterministic!r}")
    if learner.on_nan not in ("stop", "skip"):
        raise InvalidArgument(f'on_nan is "stop" or "skip", got {learner.on_nan!r}')
    if not _is_count(learner.accumulate):
        raise InvalidArgument(f"accumulate is a number of batches per update, at least 1; got {learner.accumulate!r}")
    _check_above_zero("clip_norm", learner.clip_norm)
    _check_above_zero("clip_value", learner.clip_value)
    if ema is not None and not (_is_number(ema) and 0 <= ema < 1):
        raise InvalidArgument(f"ema is a decay of at least 0 and below 1, such as 0.999; got {ema!r}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise WrongType(f"seed is a whole number, got {seed!r}")
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise InvalidArgument(f"seed has to fit into 64 bits, as torch's seeds do; got {seed!r}")
    if isinstance(learner.metrics, str) or not isinstance(learner.metrics, Iterable):
        raise WrongType(f"metrics takes a list, got {type(learner.metrics).__name__}; write metrics=[...]")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_step(name: str, step: Any) -> None:
    if step is None:
        return
    if isinstance(getattr(step, "__self__", None), nn.Module):
        kind, method = type(step.__self__).__name__, step.__name__
        raise WrongType(
            f"{name} is the method {method} of a {kind}, and validation needs it for another view of the model: give "
            f"the function itself, {name}={kind}.{method}, which is called with (model, batch)"
        )
    try:
        inspect.signature(step).bind(None, None)
    except TypeError:
        raise WrongType(f"{name} is a function of (model, batch), got {step!r}") from None
    except ValueError:  # a builtin without a signature
        pass


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_above_zero(name: str, value: Any) -> None:
    if value is not None and not _is_number(value):
        raise WrongType(f"{name} is a number, got {value!r}")
    if value is not None and not value > 0:
        raise InvalidArgument(f"{name} must be above 0, got {value!r}")


def make_model(model: Any) -> nn.Module:
    """Returns the model itself, or creates one from its class (with the `hparams` of the learner)."""
    if isinstance(model, nn.Module):
        return model
    try:
        created = model()
    except TypeError as error:
        error.add_note(
            f"while creating the model with {describe_model(model)}; set arguments with learner.hparams(...)"
        )
        raise
    if not isinstance(created, nn.Module):
        raise WrongType(f"{describe_model(model)} returned {type(created).__name__}, expected a torch.nn.Module")
    return created


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
