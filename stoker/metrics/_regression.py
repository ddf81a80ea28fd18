"""How far numbers are from what they should have been."""

import math
from typing import Any

import torch
from torch import Tensor

from stoker.metrics._metric import Metric, State
from stoker.metrics._reading import Compared, read_numbers
from stoker.metrics._sums import add, fresh, ratio, weighted, wide


class MAE(Metric):
    """The mean absolute error, over all numbers of all samples.

    >>> from stoker.steps import RegressionOutput
    >>> metric = MAE()
    >>> output = RegressionOutput(torch.tensor(2.5), torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    >>> metric.compute(metric.update(metric.init(torch.device("cpu")), output))
    1.5

    A weight counts for every number of its sample.
    """

    direction = "min"

    def init(self, device: torch.device) -> State:
        return {"sum": fresh(device), "count": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        read = read_numbers(self.name, output)
        return _mean_of(state, (read.predictions - read.targets).abs(), read)

    def compute(self, state: State) -> float:
        return ratio(state["sum"], state["count"])


class MSE(Metric):
    """The mean squared error, over all numbers of all samples.

    >>> MSE().name, MSE().direction
    ('mse', 'min')
    """

    direction = "min"

    def init(self, device: torch.device) -> State:
        return {"sum": fresh(device), "count": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        read = read_numbers(self.name, output)
        return _mean_of(state, (read.predictions - read.targets).square(), read)

    def compute(self, state: State) -> float:
        return ratio(state["sum"], state["count"])


class RMSE(Metric):
    """The square root of the mean squared error of everything seen (not the mean of the batches' roots).

    >>> RMSE().name
    'rmse'
    """

    direction = "min"

    def init(self, device: torch.device) -> State:
        return {"sum": fresh(device), "count": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        read = read_numbers(self.name, output)
        return _mean_of(state, (read.predictions - read.targets).square(), read)

    def compute(self, state: State) -> float:
        return math.sqrt(ratio(state["sum"], state["count"]))


class R2(Metric):
    """The share of the targets' variance that is explained; the mean over the numbers of a sample.

    >>> from stoker.steps import RegressionOutput
    >>> metric, targets = R2(), torch.tensor([1.0, 2.0, 3.0])
    >>> output = RegressionOutput(torch.tensor(0.0), targets, targets)
    >>> metric.compute(metric.update(metric.init(torch.device("cpu")), output))
    1.0

    As in scikit-learn, targets that are all the same give 1 where they are met exactly and 0 elsewhere. Fewer than two
    samples give NaN. Means and squares are kept around the mean, so that large offsets cost no digits.
    """

    direction = "max"

    def init(self, device: torch.device) -> State:
        zero = torch.zeros((), dtype=wide(device), device=device)
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
        """Means and squares around them, of two shards as of one."""
        total = a["weight"] + b["weight"]
        share = b["weight"] / total.where(total != 0, 1)
        apart = b["mean"] - a["mean"]
        return {
            "mean": a["mean"] + apart * share,
            "spread": a["spread"] + b["spread"] + apart.square() * a["weight"] * share,
            **{name: a[name] + b[name] for name in ("residual", "weight", "count")},
        }

    def compute(self, state: State) -> float:
        mean, spread, residual, weight, count = (
            state[name].cpu().double().reshape(-1) for name in ("mean", "spread", "residual", "weight", "count")
        )
        if (count < 2).any():
            return float("nan")
        # Rounding of the mean leaves this much of a spread in targets that are all the same.
        constant = spread <= weight * (1e-12 * mean).square()
        values = torch.where(constant, (residual == 0).double(), 1 - residual / spread)
        return values.mean().item()


def _mean_of(state: State, errors: Tensor, read: Compared) -> State:
    count: Tensor | float = errors.numel() if read.weights is None else weighted(torch.ones_like(errors), read.weights)
    return {"sum": add(state["sum"], weighted(errors, read.weights)), "count": add(state["count"], count)}
