"""Weights beside the model's own: a running average of them, and the best so far."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker.checkpoint import load_model_state, model_state
from stoker.distributed import to_local
from stoker.errors import InvalidArgument

Snapshot = dict[str, Tensor]
_lerped: Any = torch._foreach_lerp  # pyright: ignore[reportPrivateImportUsage]
lerp_all: Any = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]  one kernel for all of them


def snapshot(model: nn.Module) -> Snapshot:
    """A copy of the weights and buffers, on their device, by the user's own names."""
    return {name: value.clone() for name, value in places(model).items()}


def restore(model: nn.Module, weights: Snapshot) -> None:
    """Writes a copy back, in place: parameters stay the same objects; a buffer may have had another shape, or none."""
    own = model_state(model)
    parameters = {name: weights.get(name, value) for name, value in own["parameters"].items()}
    buffers = {name: value for name, value in weights.items() if name not in parameters}
    empty = [name for name in (*own["buffers"], *own["empty"]) if name not in buffers]
    load_model_state(model, {**own, "parameters": parameters, "buffers": buffers, "empty": empty})


def places(model: nn.Module) -> Snapshot:
    """The weights and buffers themselves, by the names of a snapshot."""
    state = model_state(model)
    return {**state["parameters"], **state["buffers"]}


class Average:
    """An exponential moving average of a model's parameters, in a twin of the model; buffers are the model's newest.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = Average(model, decay=0.5)
    >>> with torch.no_grad():
    ...     difference = model.weight.copy_(average.model.weight + 1) - average.model.weight
    >>> average.update()
    >>> torch.allclose(model.weight - average.model.weight, torch.tensor(0.5))
    True
    """

    __slots__ = ("_pairs", "_source", "decay", "model")

    def __init__(self, source: nn.Module, decay: float, twin: nn.Module | None = None) -> None:
        if not 0 <= decay < 1:
            raise InvalidArgument(f"ema is a decay of at least 0 and below 1, 0.999 say; got {decay!r}")
        self.decay = decay
        self._source = source
        # Where a model is sharded it can't be copied any more, so the twin was made before.
        self.model = (copy.deepcopy(source) if twin is None else twin).requires_grad_(False)
        own, theirs = list(self.model.parameters()), list(source.parameters())
        floating = [(a, b) for a, b in zip(own, theirs, strict=True) if a.is_floating_point() or a.is_complex()]
        self._pairs = [a for a, _ in floating], [b for _, b in floating]

    @torch.no_grad()
    def update(self, when: Tensor | None = None) -> None:
        """Moves the average towards the weights as they are now; where `when` is False on the device, it stays."""
        own, theirs = ([to_local(each) for each in column] for column in self._pairs)
        if own and when is None:
            lerp_all(own, theirs, 1 - self.decay)
        elif own and when is not None:
            for average, moved in zip(own, _lerped(own, theirs, 1 - self.decay), strict=True):
                average.copy_(torch.where(when, moved, average))
        for mine, newest in zip(self.model.buffers(), self._source.buffers(), strict=True):
            mine.copy_(newest if when is None else torch.where(when, newest, mine))

    def state_dict(self) -> dict[str, Any]:
        """The twin as it is, as `stoker.checkpoint.model_state` gives it; the tensors are not copies."""
        return model_state(self.model)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken; a `StateMismatch` lists what doesn't fit."""
        load_model_state(self.model, state)
