"""lightning: trains a `LightningModule` with stoker, if it uses nothing of Lightning's `Trainer`.

    learner = make_learner(LitClassifier(), seed=0)
    fitted = learner.fit(train_loader, valid=valid_loader, epochs=10)

This module imports neither Lightning nor pytorch_lightning: the module that it gets comes from one of them. Weights of
Lightning's checkpoints are read safely by `stoker.load_torch("last.ckpt", key="state_dict")`.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from stoker import optim, schedule
from stoker.errors import InvalidArgument, WrongType
from stoker.learner import Learner

__all__ = ["make_learner"]

_LIBRARIES = ("lightning", "pytorch_lightning", "lightning_fabric")
_PREFIXES = ("train_", "train/", "val_", "val/", "valid_", "valid/", "validation_", "validation/")
# Methods that the Trainer calls and stoker does not, with what takes their place.
_HOOKS = {
    "on_before_optimizer_step": "callbacks=[...] with on_train_batch_after_backward",
    "optimizer_step": "Learner(optimizer=...)",
    "lr_scheduler_step": "Learner(lr=...) with a schedule",
    "configure_gradient_clipping": "Learner(clip_norm=...)",
    "configure_callbacks": "fit(callbacks=[...])",
    "configure_model": "the module's __init__",
    "setup": "the module's __init__",
    "transfer_batch_to_device": "a collate_fn of the loader",
    "on_before_batch_transfer": "a collate_fn of the loader",
    "on_after_batch_transfer": "callbacks=[...] with on_train_batch_begin",
    **dict.fromkeys(
        (
            *("on_fit_start", "on_fit_end", "on_train_start", "on_train_end", "on_validation_start"),
            *("on_validation_end", "on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start"),
            *("on_validation_epoch_end", "on_train_batch_start", "on_train_batch_end", "on_validation_batch_start"),
            *("on_validation_batch_end", "on_before_backward", "on_after_backward", "on_before_zero_grad"),
        ),
        "callbacks=[...], which stoker calls at the same points",
    ),
}


def make_learner(module: nn.Module, **options: Any) -> Learner:
    """Returns a `Learner` that calls the steps of a `LightningModule`, with its optimizer and learning rates.

    `training_step`, `validation_step` and `predict_step` get the batch; `configure_optimizers` is called once, here.
    What the steps log is recorded under the set's name (`self.log("val_acc", ...)` is "valid/acc"), as a mean over
    samples. `options` are other arguments of `Learner`; they replace what the module says.

    Whatever needs the `Trainer` is an error that names it: manual optimization, several optimizers, hooks that stoker
    does not call, `self.trainer`, and the value of `batch_idx`.
    """
    name = type(module).__name__
    if not isinstance(module, nn.Module) or not _is_from_lightning(type(module)):
        raise WrongType(f"make_learner takes an instance of a LightningModule, got {_describe(module)}")
    if getattr(module, "automatic_optimization", True) is False:
        raise InvalidArgument(
            f"{name} optimizes by hand (automatic_optimization=False): write a train_step that yields objectives, and "
            "give it to Learner"
        )
    if not _overrides(module, "training_step"):
        raise InvalidArgument(f"{name} has no training_step, so there is nothing to train")
    for hook, instead in _HOOKS.items():
        if _overrides(module, hook):
            raise InvalidArgument(f"{name}.{hook} would not be called by stoker; use {instead}")
    steps: dict[str, Any] = {"step": _Step("training_step", needs_loss=True)}
    if _overrides(module, "validation_step"):
        steps["valid_step"] = _Step("validation_step", needs_loss=True)
    if _overrides(module, "predict_step"):
        steps["predict_step"] = _Step("predict_step", needs_loss=False)
    if not {"optimizer", "lr"} <= set(options):
        steps |= _optimizer_options(module)
    return Learner(module, **{**steps, **options})


class _Step:
    """A step of Lightning as a step of stoker: a function of (model, batch). `log` and `log_dict` collect numbers."""

    def __init__(self, method: str, *, needs_loss: bool) -> None:
        self._method, self._needs_loss = method, needs_loss
        self.__name__ = self.__qualname__ = method

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        method = getattr(model, self._method)
        takes = list(inspect.signature(method).parameters.values())[1:3]  # batch_idx and dataloader_idx, by position
        indices = [_Unknown(each.name) for each in takes if each.kind is each.POSITIONAL_OR_KEYWORD]
        logged: dict[str, Any] = {}

        def log(name: str, value: Any, *_: Any, **__: Any) -> None:
            if not isinstance(value, Tensor | int | float):
                raise InvalidArgument(
                    f"{type(model).__name__}.{self._method} logs {name!r}, a {type(value).__name__}; stoker records "
                    "numbers here, and takes metrics of torchmetrics as Learner(metrics=[...])"
                )
            prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
            logged[name.removeprefix(prefix)] = value

        own = vars(model)
        own["log"] = log
        own["log_dict"] = lambda values, *_, **__: [log(name, value) for name, value in values.items()]
        try:
            answer = method(batch, *indices)
        except RuntimeError as error:
            if "not attached to a `Trainer`" not in str(error):
                raise
            raise InvalidArgument(
                f"{type(model).__name__}.{self._method} uses self.trainer, which is None without Lightning's Trainer; "
                "remove it, or write a train_step(batch)"
            ) from error
        finally:
            del own["log"], own["log_dict"]
        return answer if not self._needs_loss else self._with_logs(model, answer, logged)

    def _with_logs(self, model: nn.Module, answer: Any, logged: dict[str, Any]) -> Any:
        """What the step returned, with the numbers that it logged; a logged loss takes the place of a missing one."""
        loss = logged.pop("loss", None)
        if answer is None and isinstance(loss, Tensor) and self._method == "validation_step":
            answer = loss
        if answer is None:
            raise InvalidArgument(
                f"{type(model).__name__}.{self._method} returned None"
                + ("" if self._method == "training_step" else ' and logged no loss as "val_loss"')
                + "; return the loss"
            )
        numbers = {name: value.detach() if isinstance(value, Tensor) else value for name, value in logged.items()}
        if not numbers:
            return answer
        return {**answer, **numbers} if isinstance(answer, Mapping) else {"loss": answer, **numbers}


class _Unknown:
    """Stands for the number of a batch, which a step of stoker does not get; raises where it is used."""

    def __init__(self, name: str) -> None:
        vars(self)["name"] = name

    def _raise(self, *_: Any) -> NoReturn:
        raise InvalidArgument(
            f"the step uses the value of {vars(self)['name']}, which stoker does not pass; a callback has "
            "ctx.batch_number"
        )

    __getattr__ = __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __add__ = __sub__ = __mul__ = _raise
    __bool__ = __int__ = __index__ = __float__ = __str__ = __format__ = __hash__ = _raise


def _optimizer_options(module: nn.Module) -> dict[str, Any]:
    """`optimizer=` and `lr=` for what `configure_optimizers` returned."""
    if not _overrides(module, "configure_optimizers"):
        return {}
    name = type(module).__name__
    found: Any = getattr(module, "configure_optimizers")()  # noqa: B009  a module's attributes are not declared
    scheduler: Any = None
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Sequence):
        found, schedulers = found
        scheduler = schedulers[0] if len(schedulers) == 1 else None
        if len(schedulers) > 1:
            raise InvalidArgument(f"{name}.configure_optimizers returned {len(schedulers)} schedulers; expected one")
    if isinstance(found, Mapping):
        found, scheduler = found.get("optimizer"), found.get("lr_scheduler")
    if isinstance(found, Sequence) and len(found) == 1:
        found = found[0]
    if not isinstance(found, torch.optim.Optimizer):
        raise InvalidArgument(
            f"{name}.configure_optimizers returned {_describe(found)}; expected one torch.optim.Optimizer, alone or "
            "with a scheduler. For several optimizers, write a train_step that yields objectives"
        )
    names = {parameter: name for name, parameter in module.named_parameters()}
    accepted = set(inspect.signature(type(found)).parameters) - {"params", *_RATES}
    settings = [{key: value for key, value in group.items() if key in accepted} for group in found.param_groups]
    configs = [optim.wrap(type(found), **each) for each in settings]
    rates = [_rate(module, scheduler, number, group) for number, group in enumerate(found.param_groups)]
    if len(configs) == 1:
        return {"optimizer": configs[0], "lr": rates[0]}
    selectors = [tuple(names[parameter] for parameter in group["params"]) for group in found.param_groups]
    return {
        "optimizer": dict(zip(selectors, configs, strict=True)),
        "lr": dict(zip(selectors, rates, strict=True)),
    }


_RATES = ("lr", "initial_lr", "max_lr", "min_lr")  # what schedulers keep in a group
_PER_GROUP = {"base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs"}  # lists of schedulers, by group


def _rate(module: nn.Module, scheduler: Any, number: int, group: Mapping[str, Any]) -> Any:
    """The learning rate of a group of parameters: a number, or the schedule of a scheduler."""
    interval, start = "epoch", float(group.get("initial_lr", group["lr"]))
    if isinstance(scheduler, Mapping):
        interval = scheduler.get("interval", "epoch")
        if scheduler.get("frequency", 1) != 1:
            raise InvalidArgument(f"the scheduler of {type(module).__name__} has a frequency; expected 1")
        scheduler = scheduler.get("scheduler")
    if scheduler is None:
        return float(group["lr"])

    def build(optimizer: torch.optim.Optimizer) -> Any:
        return _rebuild(scheduler, optimizer, number)

    return schedule.torch(build, start, every="epoch" if interval == "epoch" else "update")


def _rebuild(scheduler: Any, optimizer: torch.optim.Optimizer, number: int) -> Any:
    """A copy of an unused scheduler that drives another optimizer, which has one group: that of this number."""
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        return scheduler  # `schedule.torch` says what to use instead
    own, group = scheduler.optimizer.param_groups[number], optimizer.param_groups[0]
    group.update({name: own[name] for name in _RATES if name in own})
    copied = object.__new__(type(scheduler))
    vars(copied).update(vars(scheduler), optimizer=optimizer)
    for name in _PER_GROUP & vars(scheduler).keys():
        vars(copied)[name] = [vars(scheduler)[name][number]]
    if hasattr(scheduler, "_schedulers"):  # of SequentialLR and ChainedScheduler
        copied._schedulers = [_rebuild(each, optimizer, number) for each in scheduler._schedulers]
    return copied


def _overrides(module: nn.Module, method: str) -> bool:
    """Whether the user's class defines a method that Lightning's own classes define as well, or not at all."""
    owner = next((cls for cls in type(module).__mro__ if method in vars(cls)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in _LIBRARIES


def _is_from_lightning(cls: type) -> bool:
    return any(
        base.__name__ == "LightningModule" and base.__module__.partition(".")[0] in _LIBRARIES for base in cls.__mro__
    )


def _describe(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"{len(value)} of them" if isinstance(value, list | tuple) else type(value).__name__
