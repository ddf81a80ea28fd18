"""A metric out of a function."""

from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType
from stoker.metrics._metric import Direction, Metric, State
from stoker.metrics._reading import read_raw, read_weights, weight_of
from stoker.metrics._sums import add, fresh, ratio, weighted


def of(
    fn: Callable[[Any, Any], Any], name: str | None = None, direction: Direction | None = None, *, unit: str = ""
) -> "FromFunction":
    """A metric that is the mean of a function of predictions and targets.

    >>> def off_by_one(predictions, targets):
    ...     return ((predictions - targets).abs() <= 1).float()
    >>> of(off_by_one, direction="max").name
    'off_by_one'

    The function gets what the model gave (an output's `logits`, else its `predictions`) and the targets. It returns a
    value for each sample (or position), which count by their weights and mask; or the mean of the batch, which counts
    as the loss does.
    """
    if not callable(fn) or isinstance(fn, type):
        raise WrongType(f"metrics.of takes a function fn(predictions, targets); got {fn!r}")
    called = name or str(getattr(fn, "__name__", "<lambda>"))
    if called == "<lambda>":
        raise InvalidArgument("the function has no name for the metric: write metrics.of(fn, name='...')")
    return FromFunction(fn=fn, name=called, better=direction, measured_in=unit)


class FromFunction(Metric):
    """What `of` makes."""

    fn: Callable[[Any, Any], Any] = field(kw_only=True)
    better: Direction | None = field(default=None, kw_only=True)
    measured_in: str = field(default="", kw_only=True)

    @property
    def direction(self) -> Direction | None:  # pyright: ignore[reportIncompatibleVariableOverride]  a setting here
        """What the user said is better."""
        return self.better

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the user said it is measured in."""
        return self.measured_in

    def init(self, device: torch.device) -> State:
        return {"sum": fresh(device), "count": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        value = self.fn(*read_raw(output))
        if not isinstance(value, Tensor):
            value = torch.as_tensor(value, device=state["sum"].device)
        if value.ndim == 0:
            weight = weight_of(output)
            amount = torch.where(torch.as_tensor(weight, device=value.device) == 0, 0, value * weight)
            return {"sum": add(state["sum"], amount), "count": add(state["count"], weight)}
        weights = read_weights(self.name, output, value.shape)
        count = value.numel() if weights is None else weighted(torch.ones_like(value), weights)
        return {"sum": add(state["sum"], weighted(value, weights)), "count": add(state["count"], count)}

    def compute(self, state: State) -> float:
        return ratio(state["sum"], state["count"])
