"""Means over samples: the loss, regression errors, and the mean of any function."""

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

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
    give NaN. Sums are of distances from one of the targets, so large offsets cost no digits.
    """

    direction = "max"

    def init(self, device: torch.device) -> State:
        zero = torch.zeros((), dtype=widest_float(device), device=device)
        return dict.fromkeys(("origin", "sum", "squares", "residual", "weight", "count"), zero)

    def update(self, state: State, output: Any) -> State:
        predictions, targets, weights = read_numbers(self.name, output)
        if targets.shape[0] == 0:
            return state
        targets, errors = (each.reshape(len(each), -1) for each in (targets, predictions - targets))
        weights = torch.ones_like(targets) if weights is None else weights.reshape(targets.shape).to(targets.dtype)
        counted = weights != 0
        # Distances from one of the targets are exact, also far from 0, and zero if all targets are equal.
        origin = targets.where(counted, -math.inf).amax(0).nan_to_num(neginf=0.0)
        distances = (targets - origin).where(counted, 0)
        batch = {
            "origin": origin,
            "sum": (weights * distances).sum(0),
            "squares": (weights * distances.square()).sum(0),
            "residual": (weights * errors.where(counted, 0).square()).sum(0),
            "weight": weights.sum(0),
            "count": counted.sum(0).to(targets.dtype),
        }
        return self.merge(state, batch)

    def merge(self, a: State, b: State) -> State:
        """Adds sums after moving both to one origin."""
        origin = torch.where(a["weight"] == 0, b["origin"], a["origin"])
        a, b = _move_origin(a, origin), _move_origin(b, origin)
        return {"origin": origin, **{name: a[name] + b[name] for name in a if name != "origin"}}

    def compute(self, state: State) -> float:
        read = {name: tensor.cpu().double().reshape(-1) for name, tensor in state.items()}
        if (read["count"] < 2).any():
            return math.nan
        spread = read["squares"] - read["sum"] * (read["sum"] / read["weight"])
        values = torch.where(spread <= 0, (read["residual"] == 0).double(), 1 - read["residual"] / spread)
        return values.mean().item()


def _move_origin(state: State, origin: Tensor) -> State:
    shift = state["origin"] - origin
    squares = state["squares"] + shift * (2 * state["sum"] + shift * state["weight"])
    return {**state, "sum": state["sum"] + shift * state["weight"], "squares": squares}


def of(
    fn: Callable[[Any, Any], Any],
    name: str | None = None,
    direction: Direction | None = None,
    *,
    unit: str = "",
    of: str | None = None,
    on: Literal["train", "valid", "both"] = "both",
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
    if not name and getattr(fn, "__name__", "<lambda>") == "<lambda>":
        raise InvalidArgument("a lambda has no name for the metric: write metrics.of(fn, name='...')")
    return FromFunction(fn=fn, name=name or "", better=direction, measured_in=unit, of=of, on=on)


class FromFunction(Mean):
    """The metric that `of` makes."""

    fn: Callable[[Any, Any], Any] = field(kw_only=True)
    better: Direction | None = field(default=None, kw_only=True)
    measured_in: str = field(default="", kw_only=True)

    def default_name(self) -> str:
        return str(getattr(self.fn, "__name__", ""))

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
