"""Meters: numbers about the training itself, read from the loop and not from an output."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from stoker.config import Config
from stoker.metrics._metric import Direction, State
from stoker.metrics._sums import add, fresh, join, ratio, read


class Readings(Protocol):
    """What the loop hands to a meter: rates of the last update, and samples and seconds since the last reading."""

    lr: Any  # a number, or a mapping of patterns to numbers
    samples: int
    seconds: float
    grad_norm: Tensor | None


class Meter(Config):
    """Something to read while training runs, at the end of an epoch and with the progress.

    >>> class Samples(Meter):
    ...     name: str = "samples"
    ...     def read(self, ctx: Readings) -> dict[str, float]:
    ...         return {self.name: ctx.samples}
    """

    name: str = ""

    direction: ClassVar[Direction | None] = None
    unit: ClassVar[str] = ""

    def read(self, ctx: Readings) -> dict[str, float]:
        """The numbers now, by name."""
        raise NotImplementedError


class LearningRate(Meter):
    """The learning rate of the last update, or one for each pattern of a mapping.

    >>> from types import SimpleNamespace
    >>> LearningRate().read(SimpleNamespace(lr={"head": 1e-3, "*": 1e-4}))
    {'lr/head': 0.001, 'lr/*': 0.0001}
    """

    name: str = "lr"

    def read(self, ctx: Readings) -> dict[str, float]:
        if isinstance(ctx.lr, Mapping):
            return {f"{self.name}/{pattern}": float(rate) for pattern, rate in ctx.lr.items()}
        return {self.name: float(ctx.lr)}


class Throughput(Meter):
    """Samples trained on per second since the last reading; NaN where no time has passed.

    >>> from types import SimpleNamespace
    >>> Throughput().read(SimpleNamespace(samples=100, seconds=0.5))
    {'samples_per_second': 200.0}
    """

    name: str = "samples_per_second"

    direction = "max"
    unit = "1/s"

    def read(self, ctx: Readings) -> dict[str, float]:
        return {self.name: ctx.samples / ctx.seconds if ctx.seconds > 0 else float("nan")}


class GradientNorm(Meter):
    """The norm of the gradients before clipping: now (`read`), or its mean and maximum over updates.

    >>> norm = GradientNorm()
    >>> state = norm.init(torch.device("cpu"))
    >>> for each in (1.0, 3.0):
    ...     state = norm.update_update(state, torch.tensor(each))
    >>> norm.compute(state)
    {'gradient_norm': 2.0, 'gradient_norm/max': 3.0}

    The state stays on the device and is added to once an update; nothing waits until `compute`. `read` waits.
    """

    name: str = "gradient_norm"

    def read(self, ctx: Readings) -> dict[str, float]:
        return {} if ctx.grad_norm is None else {self.name: float(ctx.grad_norm)}

    def init(self, device: torch.device) -> State:
        """The state that has seen no update."""
        return {"sum": fresh(device), "count": fresh(device), "max": torch.zeros((), device=device)}

    def update_update(self, state: State, grad_norm: Tensor) -> State:
        """The state that has also seen an update whose gradients have this norm."""
        largest = torch.maximum(state["max"], grad_norm.to(state["max"].dtype))
        return {"sum": add(state["sum"], grad_norm), "count": add(state["count"], 1), "max": largest}

    def merge(self, a: State, b: State) -> State:
        """The state that has seen the updates of both."""
        largest = torch.maximum(a["max"], b["max"])
        return {"sum": join(a["sum"], b["sum"]), "count": join(a["count"], b["count"]), "max": largest}

    def compute(self, state: State) -> dict[str, float]:
        """The mean and the maximum; NaN where there was no update."""
        largest = state["max"].item() if read(state["count"]) > 0 else float("nan")
        return {self.name: ratio(state["sum"], state["count"]), f"{self.name}/max": largest}
