"""Copies of the weights: the best so far, and the exponential moving average (EMA)."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker.checkpoint import load_model_state, model_state
from stoker.distributed import to_local
from stoker.errors import InvalidArgument

WeightCopy = dict[str, Tensor]
_foreach_lerp: Any = torch._foreach_lerp  # pyright: ignore[reportPrivateImportUsage]
_foreach_lerp_: Any = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]


def weights_of(model: nn.Module) -> WeightCopy:
    """The parameters and buffers themselves, by their names in the user's model."""
    state = model_state(model)
    return {**state["parameters"], **state["buffers"]}


def copy_weights(model: nn.Module) -> WeightCopy:
    """A copy of the parameters and buffers, on their device."""
    return {name: value.clone() for name, value in weights_of(model).items()}


def restore_weights(model: nn.Module, weights: WeightCopy) -> None:
    """Writes a copy back in place. A buffer may have another shape than in the copy, or be None in one of the two."""
    own = model_state(model)
    parameters = {name: weights.get(name, value) for name, value in own["parameters"].items()}
    buffers = {name: value for name, value in weights.items() if name not in parameters}
    empty = [name for name in (*own["buffers"], *own["empty"]) if name not in buffers]
    load_model_state(model, {**own, "parameters": parameters, "buffers": buffers, "empty": empty})


class EMA:
    """An exponential moving average of a model's parameters, kept in a copy of the model. Buffers are copied.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(model, decay=0.5)
    >>> with torch.no_grad():
    ...     difference = model.weight.copy_(ema.model.weight + 1) - ema.model.weight
    >>> ema.update()
    >>> torch.allclose(model.weight - ema.model.weight, torch.tensor(0.5))
    True
    """

    __slots__ = ("_averaged", "_source", "_trained", "decay", "model")

    def __init__(self, source: nn.Module, decay: float, twin: nn.Module | None = None) -> None:
        if not 0 <= decay < 1:
            raise InvalidArgument(f"ema is a decay of at least 0 and below 1, for example 0.999; got {decay!r}")
        self.decay = decay
        self._source = source
        # A sharded model can't be copied, so `twin` is a copy that was made before sharding.
        self.model = (copy.deepcopy(source) if twin is None else twin).requires_grad_(False)
        pairs = zip(self.model.parameters(), source.parameters(), strict=True)
        floating = [(own, theirs) for own, theirs in pairs if own.is_floating_point() or own.is_complex()]
        self._averaged = [own for own, _ in floating]
        self._trained = [theirs for _, theirs in floating]

    @torch.no_grad()
    def update(self, when: Tensor | None = None) -> None:
        """Moves the average towards the current weights; if `when` is False on the device, nothing changes."""
        averaged = [to_local(each) for each in self._averaged]
        trained = [to_local(each) for each in self._trained]
        if averaged and when is None:
            _foreach_lerp_(averaged, trained, 1 - self.decay)
        elif averaged and when is not None:
            for old, new in zip(averaged, _foreach_lerp(averaged, trained, 1 - self.decay), strict=True):
                old.copy_(torch.where(when, new, old))
        for own, newest in zip(self.model.buffers(), self._source.buffers(), strict=True):
            own.copy_(newest if when is None else torch.where(when, newest, own))

    def state_dict(self) -> dict[str, Any]:
        """The averaged model as `stoker.checkpoint.model_state` returns it; the tensors are not copies."""
        return model_state(self.model)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; raises `StateMismatch` if it does not fit the model."""
        load_model_state(self.model, state)
