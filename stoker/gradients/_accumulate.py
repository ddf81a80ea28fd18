"""One update's gradients out of many micro-batches."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stoker._select import Models, named_parameters
from stoker.errors import GradientsConsumed, InvalidArgument, WrongType
from stoker.gradients._clip import on_values, single
from stoker.gradients._gradients import Gradients, merged
from stoker.gradients._saved import apart, sums_of


class Accumulator:
    """Adds gradients up, each with a weight, until `take` gives their weighted mean.

    Weigh by what the loss is a mean over (samples, tokens), and any split of a batch gives the gradient of the batch.

    >>> from torch import nn
    >>> model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    >>> accumulator.add(Gradients({"weight": torch.tensor([[3.0]])}, model), weight=24)
    >>> accumulator.add(Gradients({"weight": torch.tensor([[6.0]])}, model), weight=12)
    >>> accumulator.take()["weight"]
    tensor([[4.]])

    A parameter that only some additions hold counts as zero in the others. `reduce="sum"` leaves out the division.
    """

    __slots__ = ("_count", "_model", "_parameters", "_reduce", "_weight", "_wide")

    def __init__(self, reduce: Literal["mean", "sum"] = "mean") -> None:
        if reduce not in ("mean", "sum"):
            raise InvalidArgument(f'reduce is "mean" or "sum", got {reduce!r}')
        self._reduce = reduce
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._weight: float | Tensor = 0
        self._model: Models | None = None
        self._parameters: dict[str, nn.Parameter] = {}  # of all additions so far, in the model's order
        self._wide: dict[str, Tensor] = {}  # running sums, ours alone, 16-bit gradients in 32 bits

    def __len__(self) -> int:
        """How many gradients have been added since the last `take`."""
        return self._count

    def add(self, grads: Gradients, weight: float | Tensor = 1) -> None:
        """Uses up `grads`. The weight may be a 0-d tensor (a count of tokens, say): nothing waits for the device.

        Weight 0 counts as nothing, whatever the gradients are: NaN, where a loss is a mean over no tokens.
        """
        if not isinstance(grads, Gradients):
            raise WrongType(f"add takes Gradients, got {type(grads).__name__}; stoker.backward makes them")
        if isinstance(weight, Tensor):
            weight = single(weight.detach(), "a weight")
        elif not (weight >= 0 and math.isfinite(weight)):
            raise InvalidArgument(f"a weight is a number of at least 0, got {weight!r}")
        parameters = merged(self._parameters, grads._parameters, "than before")
        tensors = grads.use("Accumulator.add")
        if len(grads._parameters) > len(self._parameters):
            self._model = grads._model
        self._parameters = parameters
        self._count += 1
        self._weight = self._weight + weight
        if not isinstance(weight, Tensor) and weight == 0:
            return  # an infinite gradient times zero would be NaN
        for name, tensor in tensors.items():
            self._add(name, tensor.detach(), weight)

    def _add(self, name: str, tensor: Tensor, weight: float | Tensor) -> None:
        wide = widened(tensor)
        if isinstance(weight, Tensor):
            # Chosen on the device: an infinite gradient times zero would be NaN here too.
            factor, nothing = weight.to(wide.device), (weight == 0).to(wide.device)
            wide, weight = on_values(wide * factor, lambda values: torch.where(nothing, 0, values)), 1
        if name not in self._wide:
            self._wide[name] = wide * weight  # always a new tensor: later additions write into it
        else:
            self._wide[name].add_(wide, alpha=weight)

    def take(self) -> Gradients:
        """The mean (or sum) of what was added; the accumulator is empty afterwards."""
        total, model, parameters = self._weight, self._model, self._parameters
        if model is None:
            raise GradientsConsumed("the accumulator is empty: add gradients before taking them")
        if not isinstance(total, Tensor) and total == 0:
            raise InvalidArgument(
                f"all {self._count} gradients in the accumulator had weight 0: there is nothing to take a mean of"
            )
        tensors: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            if name in self._wide:
                tensor = self._wide[name] / total if self._reduce == "mean" else self._wide[name]
                tensors[name] = tensor.to(parameter.dtype)
        self._clear()
        return Gradients._of(tensors, parameters, model)

    def drained(self) -> tuple[float | Tensor, dict[str, Tensor]]:
        """The weight of what was added and the sums by parameter; the accumulator is empty afterwards."""
        weight, sums = self._weight, self._wide
        self._clear()
        return weight, sums

    @property
    def held(self) -> tuple[int, float | Tensor, dict[str, Tensor]]:
        """How many were added, their weight, and the sums by parameter: what `hold` puts back; not copies."""
        return self._count, self._weight, self._wide

    def hold(
        self, held: tuple[int, float | Tensor, dict[str, Tensor]], parameters: dict[str, nn.Parameter], model: Models
    ) -> None:
        """Goes on from what another one held, of gradients for these parameters."""
        self._count, self._weight, self._wide = held[0], held[1], dict(held[2])
        self._model, self._parameters = (model, parameters) if self._count else (None, {})

    def state_dict(self) -> dict[str, Any]:
        """What was added since the last `take`, as tensors and plain values; the tensors are not copies.

        >>> from torch import nn
        >>> model, accumulator, other = nn.Linear(1, 1, bias=False), Accumulator(), Accumulator()
        >>> accumulator.add(Gradients({"weight": torch.tensor([[3.0]])}, model), weight=2)
        >>> other.load_state_dict(accumulator.state_dict(), model)
        >>> len(other), other.take()["weight"]
        (1, tensor([[3.]]))
        """
        weight = self._weight
        return {
            "reduce": self._reduce,
            "count": self._count,
            "weight": weight,
            "weight_on_host": isinstance(weight, Tensor) and weight.device.type == "cpu",
            "parameters": list(self._parameters),
            "sums": {name: apart(total) for name, total in self._wide.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], model: Models) -> None:
        """Goes on where `state_dict` was taken, for gradients of `model`; what was in the accumulator is dropped.

        Where the state doesn't fit, nothing is changed, and a `StateMismatch` lists what differs.
        """
        own = named_parameters(model)
        sums, weight = sums_of(state, own, self._reduce), state["weight"]
        if isinstance(weight, Tensor):  # where it was: dividing by a number on the host rounds otherwise
            there = next((total.device for total in sums.values()), weight.device)
            weight = weight.detach().to("cpu" if state["weight_on_host"] else there, copy=True)
        self._count, self._weight, self._wide = state["count"], weight, sums
        self._parameters = {name: own[name] for name in state["parameters"]}
        self._model = model if self._parameters else None


def widened(tensor: Tensor) -> Tensor:
    """A tensor in the type that sums are kept in: 16-bit ones in 32 bits."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
