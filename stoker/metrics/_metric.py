"""The contract of a metric: four functions of a state that is a value and stays on the device."""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from stoker.config import Config
from stoker.metrics._sums import join

State = dict[str, Tensor]
Value = float | list[Any] | dict[str, float]
Direction = Literal["min", "max"]


class Metric(Config):
    """What to measure. A metric is a frozen value; what it has seen so far is a state, passed in and given back.

    >>> from stoker.steps import Output
    >>> class Bias(Metric):
    ...     def init(self, device: torch.device) -> State:
    ...         return {"sum": torch.zeros((), device=device), "count": torch.zeros((), device=device)}
    ...     def update(self, state: State, output: Output) -> State:
    ...         error = output.predictions - output.targets
    ...         return {"sum": state["sum"] + error.sum(), "count": state["count"] + error.numel()}
    ...     def compute(self, state: State) -> Value:
    ...         return (state["sum"] / state["count"]).item()
    >>> Bias(), Bias(name="offset", on="valid").name
    (Bias(name='bias', on='both'), 'offset')

    Anything with these names is a metric, whether it inherits from this class or not. `update` runs without gradients,
    reads no value on the host, and changes nothing in place. From the first update on, the tensors of a state keep
    their shapes, unless `static` is False. `direction` says what is better, `unit` what the number is measured in.
    """

    name: str = field(default="", kw_only=True)
    on: Literal["train", "valid", "both"] = field(default="both", kw_only=True)

    direction: ClassVar[Direction | None] = None
    unit: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.default_name())

    def default_name(self) -> str:
        """What the metric is called where the user gives no name."""
        return worded(type(self).__name__)

    def replace(self, **changes: Any) -> Self:
        """The same metric with some fields changed; a name that came from the old ones is made anew."""
        own = {} if self.name == self.default_name() else {"name": self.name}
        return super().replace(**{"name": "", **own, **changes})

    @property
    def static(self) -> bool:
        """Whether the state keeps its shapes, so that `update` can be part of a compiled or captured step."""
        return True

    @property
    def counts(self) -> Hashable:
        """What `init` and `update` go by: metrics that say the same here are counted once for all of them.

        >>> from stoker.metrics import Precision, Recall
        >>> Precision("micro").counts == Recall().counts
        True

        None: this one is counted by itself.
        """
        return None

    def init(self, device: torch.device) -> State:
        """The state that has seen nothing."""
        raise NotImplementedError

    def update(self, state: State, output: Any) -> State:
        """The state that has also seen an output."""
        raise NotImplementedError

    def merge(self, a: State, b: State) -> State:
        """The state that has seen what two states have, of two shards or processes. Here: sums, added up."""
        return {name: join(each, b[name]) for name, each in a.items()}

    def compute(self, state: State) -> Value:
        """The number, or several. The one place that waits for the device. NaN where nothing was counted."""
        raise NotImplementedError


def worded(name: str) -> str:
    """The name of a class in small words: `AveragePrecision` is `average_precision`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def named(name: str, value: Value) -> dict[str, float]:
    """A metric's value as numbers with names: one, or `name/0`, `name/1` and so on.

    >>> named("valid/recall", [0.5, 1.0])
    {'valid/recall/0': 0.5, 'valid/recall/1': 1.0}
    """
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, Sequence):
        inner = enumerate(value)
    else:
        return {name: float(value)}
    return {key: number for part, each in inner for key, number in named(f"{name}/{part}", each).items()}
