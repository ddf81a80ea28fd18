"""The loss, as a mean over samples."""

from typing import Any

import torch
from torch import Tensor

from stoker.errors import WrongType
from stoker.metrics._metric import Metric, State
from stoker.metrics._reading import weight_of
from stoker.metrics._sums import add, fresh, ratio


class Loss(Metric):
    """The mean of the loss, each batch weighing what it stands for: samples, tokens, or the sum of their weights.

    >>> from types import SimpleNamespace as Output
    >>> metric = Loss()
    >>> state = metric.update(metric.init(torch.device("cpu")), Output(loss=torch.tensor(1.0), targets=torch.ones(3)))
    >>> metric.compute(metric.update(state, Output(loss=torch.tensor(5.0), targets=torch.ones(1))))
    2.0

    A batch that stands for nothing (empty, or all masked) changes nothing, even if its loss is NaN.
    """

    direction = "min"

    def init(self, device: torch.device) -> State:
        return {"sum": fresh(device), "count": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        loss, weight = getattr(output, "loss", None), weight_of(output)
        if not isinstance(loss, Tensor):
            raise WrongType(f"{self.name} needs a loss; {type(output).__name__} has none that is a tensor")
        if isinstance(weight, Tensor):
            amount = torch.where(weight == 0, 0, loss * weight)
            return {"sum": add(state["sum"], amount), "count": add(state["count"], weight)}
        if weight == 0:
            return state
        return {"sum": add(state["sum"], loss, times=weight), "count": add(state["count"], weight)}

    def compute(self, state: State) -> float:
        return ratio(state["sum"], state["count"])
