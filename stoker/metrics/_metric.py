"""The contract of a metric: functions of a state that is a value and stays on the device."""

import copy
import functools
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from stoker.config import Config
from stoker.metrics._outputs import read_part

State = dict[str, Tensor]
"""What a metric has counted: tensors by name."""

Value = float | list[Any] | dict[str, Any]
"""What a metric computes: a number, nested lists of numbers, or a mapping of them."""

Direction = Literal["min", "max"]


class Metric(Config):
    """A number to compute from the outputs of steps. It is frozen: what it has counted so far is a separate state.

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
    (Bias(name='bias', on='both', of=None), 'offset')

    With `of` a metric applies to a part of the output: `Accuracy(of="digit")` compares `predictions["digit"]` with
    `targets["digit"]` (or with the targets, if they have no parts), or reads the field `digit` of an output that has
    its own targets. Its name is then `digit_accuracy`.

    Any object with these attributes is a metric; it need not inherit from this class. `update` runs without gradients,
    reads no value on the host, and returns a state without changing the tensors of the one it is given. After the
    first update the tensors of a state keep their shapes, unless `static` is False. `direction` says which values are
    better, `unit` what the number is measured in.
    """

    name: str = field(default="", kw_only=True)
    on: Literal["train", "valid", "both"] = field(default="both", kw_only=True)
    of: str | None = field(default=None, kw_only=True)

    direction: ClassVar[Direction | None] = None
    unit: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "update" in vars(cls):
            type.__setattr__(cls, "update", _apply_to_part(cls.update))

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self._default_name())

    def _default_name(self) -> str:
        return self.default_name() if self.of is None else f"{self.of}_{self.default_name()}"

    def default_name(self) -> str:
        """The name if the user gives none, without that of the part."""
        return to_snake_case(type(self).__name__)

    def replace(self, **changes: Any) -> Self:
        """The same metric with some fields changed; a default name follows the new fields."""
        own = {} if self.name == self._default_name() else {"name": self.name}
        return super().replace(**{"name": "", **own, **changes})

    @property
    def static(self) -> bool:
        """Whether the state keeps its shapes, so that `update` can be part of a compiled or captured step."""
        return True

    @property
    def counts(self) -> Hashable:
        """A key for what `init` and `update` count: metrics with equal keys share one state. None: not shared.

        >>> from stoker.metrics import Precision, Recall
        >>> Precision("micro").counts == Recall().counts
        True
        """
        return None

    def init(self, device: torch.device) -> State:
        """The state before the first output."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method init(device), which returns the state before the first output"
        )

    def update(self, state: State, output: Any) -> State:
        """The state after one more output."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a method update(state, output), which returns the new state"
        )

    def merge(self, a: State, b: State) -> State:
        """One state from the states of two shards or processes, which may be merged ones. The default adds sums."""
        return {name: total + b[name] for name, total in a.items()}

    def compute(self, state: State) -> Value:
        """The number, or several; NaN if nothing was counted. Only this method waits for the device."""
        raise NotImplementedError(f"{type(self).__name__} needs a method compute(state), which returns a number")


def _apply_to_part(update: Callable[..., State]) -> Callable[..., State]:
    """Makes `update` read the part of the output that the metric is `of`."""

    @functools.wraps(update)
    def update_from_part(self: Metric, state: State, output: Any) -> State:
        if self.of is None:
            return update(self, state, output)
        whole = copy.copy(self)
        object.__setattr__(whole, "of", None)  # `update` may call that of its base class, with the part
        return update(whole, state, read_part(self.name, output, self.of))

    return update_from_part


def to_snake_case(name: str) -> str:
    """`average_precision` for `AveragePrecision`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def flatten_value(name: str, value: Value) -> dict[str, float]:
    """The numbers of a metric's value by name: one, or `name/0`, `name/1` and so on.

    >>> flatten_value("valid/recall", [0.5, 1.0])
    {'valid/recall/0': 0.5, 'valid/recall/1': 1.0}
    """
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, Sequence):
        parts = enumerate(value)
    else:
        return {name: float(value)}
    return {key: number for part, each in parts for key, number in flatten_value(f"{name}/{part}", each).items()}
