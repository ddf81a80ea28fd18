"""The learning rates of torch's schedulers, as functions of a step number.

This package does not import torch; a program that has a scheduler of torch has imported it.
"""

import functools
import math
import sys
import warnings
from array import array
from collections.abc import Callable
from typing import Any

from stoker.errors import InvalidArgument, WrongType

_MOMENTUM = 0.123  # a value that no scheduler sets, so that a change is noticed


def replay_scheduler(make: Callable[[Any], Any], lr: float | None) -> Callable[[int], float]:
    """Returns the function from a step number to the learning rate that torch's scheduler has after so many steps.

    The scheduler drives an optimizer of its own. Its rates are kept, so that the function is a pure one: it steps on
    only for numbers that are larger than all before.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        raise WrongType(f"schedule.torch takes a scheduler of torch.optim.lr_scheduler, got {_name(make)}")
    optimizer = _make_optimizer(torch, math.nan if lr is None else lr)
    group = optimizer.param_groups[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimizer makes no steps; SequentialLR also warns of its own calls
        scheduler = make(optimizer)
    _check_scheduler(scheduler, make, torch)
    name, rates = type(scheduler).__name__, array("d", [float(group["lr"])])
    if group["momentum"] != _MOMENTUM:
        raise InvalidArgument(
            f"{name} also changes the momentum, and a schedule is about learning rates only: give it "
            "cycle_momentum=False"
        )
    if math.isnan(rates[0]):
        raise InvalidArgument(
            f"{name} starts from the learning rate of its optimizer: write schedule.torch({_name(make)}, lr=0.1, ...)"
        )

    def rate(step: int) -> float:
        if step >= len(rates):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                while step >= len(rates):
                    try:
                        scheduler.step()
                    except ValueError as error:
                        raise InvalidArgument(
                            f"{name} has no learning rate after {len(rates)} steps: {error}"
                        ) from None
                    rates.append(float(group["lr"]))
        return rates[step]

    return rate


def _make_optimizer(torch: Any, lr: float) -> Any:
    """An optimizer without parameters, with all that schedulers read and write."""

    class Rates(torch.optim.Optimizer):
        def __init__(self) -> None:  # torch's own imports its compiler, which takes seconds
            self.defaults = {"lr": lr, "momentum": _MOMENTUM}
            self.param_groups = [{"params": [], **self.defaults}]
            self.state = {}

        def step(self, closure: Any = None) -> None:
            pass

    return Rates()


def _check_scheduler(scheduler: Any, make: Callable[..., Any], torch: Any) -> None:
    kinds = torch.optim.lr_scheduler
    if isinstance(scheduler, kinds.ReduceLROnPlateau):
        raise InvalidArgument(
            "ReduceLROnPlateau depends on a metric and not on the update number: use "
            "callbacks=[callbacks.ReduceLROnPlateau(factor=..., patience=...)]"
        )
    if not isinstance(scheduler, kinds.LRScheduler):
        raise WrongType(
            "schedule.torch takes a class of torch.optim.lr_scheduler, or a function that takes an optimizer and "
            f"returns a scheduler; {_name(make)} returned {type(scheduler).__name__}"
        )


def describe_scheduler(make: Callable[..., Any], lr: float | None) -> str:
    """The arguments of the call of `schedule.torch` that makes a scheduler."""
    is_partial = isinstance(make, functools.partial)
    named = [f"{name}={value!r}" for name, value in make.keywords.items()] if is_partial else []
    return ", ".join([_name(make), *([] if lr is None else [repr(lr)]), *named])


def _name(make: Any) -> str:
    function = make.func if isinstance(make, functools.partial) else make
    return getattr(function, "__qualname__", None) or repr(function)
