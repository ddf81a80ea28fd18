"""The arguments of `Learner` and `fit`, checked before anything happens."""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from torch import nn

from stoker.callbacks import Callback
from stoker.checkpoint import Checkpoint
from stoker.distributed import as_parallel
from stoker.engine import check_precision
from stoker.errors import InvalidArgument, StokerError, WrongType, did_you_mean
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


@dataclass(frozen=True, slots=True)
class Argument:
    """What is declared of an argument of `fit` besides its name and type: a check, and the sentence of its error."""

    accepts: Callable[[Any], bool] = lambda value: True
    sentence: str = ""  # what the argument is; {value} is what was given
    error: type[StokerError] = InvalidArgument
    needs_run: bool = False  # it makes no sense without a run directory
    is_shared: bool = False  # it determines what ranks do together, so that they compare it

    def check(self, name: str, value: Any, run: Any) -> None:
        """Raises if the value is not one that the argument takes."""
        if not self.accepts(value):
            raise self.error(f"{name} {self.sentence.format(value=value, type=type(value).__name__)}")
        if self.needs_run and value and run is None:
            raise InvalidArgument(f"{name} needs a run directory: give run= as well")


def _declare(*args: Any, **kwargs: Any) -> dict[str, Argument]:
    """The metadata of a field of `FitArguments`."""
    return {"argument": Argument(*args, **kwargs)}


def _is_path(value: Any) -> bool:
    return value is None or isinstance(value, str | os.PathLike)


def _is_one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


@dataclass(frozen=True, eq=False, repr=False)
class FitArguments:
    """The arguments of `Learner.fit`, which has their defaults and describes them, without `show`."""

    train: Any
    valid: Any
    epochs: int | None = field(metadata=_declare(is_shared=True))  # `check_limits` checks the limits
    updates: int | None = field(metadata=_declare(is_shared=True))
    minutes: float | None = field(metadata=_declare(is_shared=True))
    batch_size: int | None
    micro_batch: int | Literal["auto"] | None = field(
        metadata=_declare(
            lambda value: value in (None, "auto") or _is_count(value),
            'is a number of samples, at least 1, or "auto"; got {value!r}',
        )
    )
    callbacks: Sequence[Callback]
    run: str | Path | None = field(
        metadata=_declare(_is_path, "is the path of a directory, got {value!r}", WrongType, is_shared=True)
    )
    config: Any
    validate_every: Literal["epoch"] | int = field(
        metadata=_declare(
            lambda value: value == "epoch" or _is_count(value),
            'is "epoch" or a number of updates, got {value!r}',
            is_shared=True,
        )
    )
    keep: Literal["best", "last"] = field(
        metadata=_declare(_is_one_of("best", "last"), 'is "best" or "last", got {value!r}', is_shared=True)
    )
    monitor: str | None = field(
        metadata=_declare(
            lambda value: value is None or (isinstance(value, str) and value != ""),
            'is the name of a metric, such as "valid/accuracy"; got {value!r}',
            is_shared=True,
        )
    )
    mode: Literal["min", "max"] | None = field(
        metadata=_declare(
            _is_one_of(None, "min", "max"),
            'is "min", "max" or None (as the metric says), got {value!r}',
            is_shared=True,
        )
    )
    checkpoint: Checkpoint | bool | None = field(
        metadata=_declare(
            lambda value: isinstance(value, Checkpoint | bool | None),
            "is a stoker.Checkpoint(...) or False, got {type}",
            WrongType,
            needs_run=True,
        )
    )
    resume: bool | Literal["force"] = field(
        metadata=_declare(_is_one_of(True, False, "force"), 'is True, False or "force", got {value!r}', needs_run=True)
    )
    system_metrics: bool

    def __post_init__(self) -> None:
        check_limits(epochs=self.epochs, updates=self.updates, minutes=self.minutes)
        for name, each in declared_arguments().items():
            each.check(name, getattr(self, name), self.run)
        if self.run == "":
            raise InvalidArgument("run is the path of a directory, got an empty string; leave it out to record nothing")
        if self.run is not None and "\0" in os.fspath(self.run):
            raise InvalidArgument(f"run is the path of a directory, and a path has no zero byte; got {self.run!r}")
        if self.config is not None and self.run is None:
            raise InvalidArgument("config is written to the run directory: give run= as well")

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


def declared_arguments() -> dict[str, Argument]:
    """What is declared of the arguments of `fit`, by name."""
    return {each.name: each.metadata["argument"] for each in fields(FitArguments) if "argument" in each.metadata}


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
