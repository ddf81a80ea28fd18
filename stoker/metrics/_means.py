"""Means over samples: the loss, regression errors, and the mean of any function."""

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType
from stoker.metrics._metric import Direction, Metric, State
from stoker.metrics._outputs import read_numbers, read_pair, read_weights, weight_of
from stoker.metrics._states import add, ratio, weighted_sum, widest_float, zero_sum


class Mean(Metric):
    """Base of weighted means: a sum and a count. `update` is left to the subclass."""

    direction = "min"

    def init(self, device: torch.device) -> State:
        return {"sum": zero_sum(device), "count": zero_sum(device)}

    def compute(self, state: State) -> float:
        return ratio(state["sum"], state["count"])


def add_values(state: State, values: Tensor, weights: Tensor | None) -> State:
    """Adds values with weights of the same shape to the state of a `Mean`."""
    count = values.numel() if weights is None else weighted_sum(torch.ones_like(values), weights)
    return {"sum": add(state["sum"], weighted_sum(values, weights)), "count": add(state["count"], count)}


class Loss(Mean):
    """The mean loss; each batch weighs its samples or tokens, or the sum of their weights.

    >>> from types import SimpleNamespace as Output
    >>> metric = Loss()
    >>> state = metric.update(metric.init(torch.device("cpu")), Output(loss=torch.tensor(1.0), targets=torch.ones(3)))
    >>> metric.compute(metric.update(state, Output(loss=torch.tensor(5.0), targets=torch.ones(1))))
    2.0

    A batch of weight 0 (empty, or completely masked) changes nothing, even if its loss is NaN.
    """

    def update(self, state: State, output: Any) -> State:
        loss, weight = getattr(output, "loss", None), weight_of(output)
        if not isinstance(loss, Tensor):
            raise WrongType(f"{self.name} needs an output with a loss that is a tensor; got {type(output).__name__}")
        if isinstance(weight, Tensor):
            amount = torch.where(weight == 0, 0, loss * weight)
            return {"sum": add(state["sum"], amount), "count": add(state["count"], weight)}
        if weight == 0:
            return state
        return {"sum": add(state["sum"], loss, times=weight), "count": add(state["count"], weight)}


class MAE(Mean):
    """The mean absolute error over all numbers of all samples.

    >>> from stoker.steps import RegressionOutput
    >>> metric = MAE()
    >>> output = RegressionOutput(torch.tensor(2.5), torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    >>> metric.compute(metric.update(metric.init(torch.device("cpu")), output))
    1.5

    A sample's weight applies to each of its numbers.
    """

    def update(self, state: State, output: Any) -> State:
        predictions, targets, weights = read_numbers(self.name, output)
        return add_values(state, (predictions - targets).abs(), weights)


class MSE(Mean):
    """The mean squared error over all numbers of all samples.

    >>> MSE().name, MSE().direction
    ('mse', 'min')
    """

    def update(self, state: State, output: Any) -> State:
        predictions, targets, weights = read_numbers(self.name, output)
        return add_values(state, (predictions - targets).square(), weights)


class RMSE(MSE):
    """The root of the mean squared error of all samples (not the mean of the batches' roots).

    >>> RMSE().name
    'rmse'
    """

    def compute(self, state: State) -> float:
        return math.sqrt(super().compute(state))


class R2(Metric):
    """The fraction of the targets' variance that the model explains; the mean over the numbers of a sample.

    >>> from stoker.steps import RegressionOutput
    >>> metric, targets = R2(), torch.tensor([1.0, 2.0, 3.0])
    >>> output = RegressionOutput(torch.tensor(0.0), targets, targets)
    >>> metric.compute(metric.update(metric.init(torch.device("cpu")), output))
    1.0

    As in scikit-learn, constant targets give 1 if the predictions are exact and 0 otherwise. Fewer than two samples
    give NaN. Squares are summed around the mean, so large offsets cost no digits.
    """

    direction = "max"

    def init(self, device: torch.device) -> State:
        zero = torch.zeros((), dtype=widest_float(device), device=device)
        return dict.fromkeys(("mean", "spread", "residual", "weight", "count"), zero)

    def update(self, state: State, output: Any) -> State:
        predictions, targets, weights = read_numbers(self.name, output)
        shape = (targets.shape[0], -1) if targets.numel() else (0, math.prod(targets.shape[1:]))
        targets, errors = targets.reshape(shape), (predictions - targets).reshape(shape)
        weights = torch.ones_like(targets) if weights is None else weights.reshape(shape).to(targets.dtype)
        targets, errors = targets.where(weights != 0, 0), errors.where(weights != 0, 0)
        total = weights.sum(0)
        mean = (weights * targets).sum(0) / total.where(total != 0, 1)
        batch = {
            "mean": mean,
            "spread": (weights * (targets - mean).square()).sum(0),
            "residual": (weights * errors.square()).sum(0),
            "weight": total,
            "count": (weights != 0).sum(0).to(targets.dtype),
        }
        return self.merge(state, batch)

    def merge(self, a: State, b: State) -> State:
        """Combines means and squares around them (Chan's parallel algorithm)."""
        total = a["weight"] + b["weight"]
        share = b["weight"] / total.where(total != 0, 1)
        difference = b["mean"] - a["mean"]
        return {
            "mean": a["mean"] + difference * share,
            "spread": a["spread"] + b["spread"] + difference.square() * a["weight"] * share,
            **{name: a[name] + b[name] for name in ("residual", "weight", "count")},
        }

    def compute(self, state: State) -> float:
        read = {name: each.cpu().double().reshape(-1) for name, each in state.items()}
        if (read["count"] < 2).any():
            return float("nan")
        # For constant targets, rounding of the mean leaves up to this much.
        constant = read["spread"] <= read["weight"] * (1e-12 * read["mean"]).square()
        values = torch.where(constant, (read["residual"] == 0).double(), 1 - read["residual"] / read["spread"])
        return values.mean().item()


def of(
    fn: Callable[[Any, Any], Any], name: str | None = None, direction: Direction | None = None, *, unit: str = ""
) -> "FromFunction":
    """Makes a metric that is the mean of a function of predictions and targets.

    >>> def off_by_one(predictions, targets):
    ...     return ((predictions - targets).abs() <= 1).float()
    >>> of(off_by_one, direction="max").name
    'off_by_one'

    The function gets what the model returned (an output's `logits`, else its `predictions`) and the targets. It
    returns one value per sample or position, which count by their weights and mask, or the mean of the batch, which
    counts like the loss.
    """
    if not callable(fn) or isinstance(fn, type):
        raise WrongType(f"metrics.of takes a function fn(predictions, targets); got {fn!r}")
    metric_name = name or str(getattr(fn, "__name__", "<lambda>"))
    if metric_name == "<lambda>":
        raise InvalidArgument("a lambda has no name for the metric: write metrics.of(fn, name='...')")
    return FromFunction(fn=fn, name=metric_name, better=direction, measured_in=unit)


class FromFunction(Mean):
    """The metric that `of` makes."""

    fn: Callable[[Any, Any], Any] = field(kw_only=True)
    better: Direction | None = field(default=None, kw_only=True)
    measured_in: str = field(default="", kw_only=True)

    @property
    def direction(self) -> Direction | None:  # pyright: ignore[reportIncompatibleVariableOverride]  a setting here
        """The direction given to `of`."""
        return self.better

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The unit given to `of`."""
        return self.measured_in

    def update(self, state: State, output: Any) -> State:
        value = self.fn(*read_pair(output))
        if not isinstance(value, Tensor):
            value = torch.as_tensor(value, device=state["sum"].device)
        if value.ndim:
            return add_values(state, value, read_weights(self.name, output, value.shape))
        weight = weight_of(output)
        amount = torch.where(torch.as_tensor(weight, device=value.device) == 0, 0, value * weight)
        return {"sum": add(state["sum"], amount), "count": add(state["count"], weight)}
