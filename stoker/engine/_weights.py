"""Copies of the weights: the best so far, and the exponential moving average (EMA)."""

import math
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker._tree import map_state
from stoker.checkpoint import is_plain, load_model_state, model_state
from stoker.distributed import is_dtensor, to_local
from stoker.errors import InvalidArgument
from stoker.steps import clone_model

_foreach_lerp_: Any = torch._foreach_lerp_  # pyright: ignore[reportPrivateImportUsage]
_foreach_sub: Any = torch._foreach_sub  # pyright: ignore[reportPrivateImportUsage]
_foreach_mul_: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]
_foreach_add_: Any = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]


class ModelWithLoss(nn.Module):
    """A model and a loss that has parameters of its own, which are trained together. Its parameters are `loss.*`."""

    def __init__(self, model: nn.Module, loss: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = loss


def join_loss(model: nn.Module, loss: Any) -> nn.Module:
    """What is trained: the model, together with the loss if that has parameters of its own that require gradients.

    >>> join_loss(nn.Linear(1, 1), nn.MSELoss())
    Linear(in_features=1, out_features=1, bias=True)
    """
    if not isinstance(loss, nn.Module):
        return model
    known = {id(parameter) for parameter in model.parameters()}
    if not any(parameter.requires_grad and id(parameter) not in known for parameter in loss.parameters()):
        return model
    if any(name.split(".")[0] == "loss" for name in weights_of(model)):
        raise InvalidArgument(
            f"the parameters of the loss would be called loss.*, and {type(model).__name__} has a part with this name: "
            "rename that, or make the loss a part of the model"
        )
    return ModelWithLoss(model, loss)


class WeightCopy(NamedTuple):
    """A copy of a model's weights, without parameters that do not change."""

    tensors: dict[str, Tensor]  # parameters and buffers, by their names in the user's model
    extra: Mapping[str, Any] | None = None  # of modules with a `get_extra_state`; None if it is not known


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers themselves, by their names in the user's model."""
    state = model_state(model)
    return {**state["parameters"], **state["buffers"]}


def copy_weights(model: nn.Module, *, extra_of: nn.Module | None = None, leave_out: Container[str] = ()) -> WeightCopy:
    """A copy of the weights, on their device, without those that are named in `leave_out`.

    `extra_of`: the model with the extra state, if it is another one.
    """
    extra = model_state(model if extra_of is None else extra_of)["extra"]
    tensors = {name: value.clone() for name, value in weights_of(model).items() if name not in leave_out}
    return WeightCopy(tensors, copy_user_state(extra))


def restore_weights(model: nn.Module, weights: WeightCopy) -> None:
    """Writes a copy back in place; parameters that it leaves out stay as they are.

    A buffer may have another shape than in the copy, or be None in one of the two.
    """
    own = model_state(model)
    parameters = {name: weights.tensors[name] for name in own["parameters"] if name in weights.tensors}
    frozen = dict.fromkeys(name for name in own["parameters"] if name not in parameters)
    buffers = {name: value for name, value in weights.tensors.items() if name not in parameters}
    empty = [name for name in (*own["buffers"], *own["empty"]) if name not in buffers]
    extra = own["extra"] if weights.extra is None else weights.extra
    state = {**own, "parameters": parameters, "frozen": frozen, "buffers": buffers, "empty": empty, "extra": extra}
    load_model_state(model, state, resize_buffers=True)


def copy_user_state(value: Any) -> Any:
    """A copy of a user's state that later changes of its containers and tensors do not affect."""
    return map_state(lambda tensor: tensor.detach().clone(), value)


class EMA:
    """An exponential moving average of a model's parameters, kept in a copy of the model. Buffers are copied.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(model, decay=0.999)
    >>> with torch.no_grad():
    ...     difference = model.weight.copy_(ema.model.weight + 1) - ema.model.weight
    >>> ema.update()
    >>> torch.allclose(model.weight - ema.model.weight, torch.tensor(0.1))
    True

    It warms up: update n (from 0) uses the decay (1 + n) / (10 + n) as long as that is smaller. Otherwise the average
    of a short fit would mostly consist of the initial weights.
    """

    __slots__ = ("_averaged", "_source", "_trained", "_updates", "decay", "model")

    def __init__(self, source: nn.Module, decay: float, sharded: nn.Module | None = None) -> None:
        if not 0 <= decay < 1:
            raise InvalidArgument(f"ema is a decay of at least 0 and below 1, for example 0.999; got {decay!r}")
        self.decay = decay
        self._source = source
        # A sharded model can't be copied, so `sharded` is a copy that was made before sharding.
        self.model = (clone_model(source) if sharded is None else sharded).requires_grad_(False)
        pairs = zip(self.model.parameters(), source.parameters(), strict=True)
        floating = [(own, theirs) for own, theirs in pairs if _is_averaged(theirs)]
        self._averaged = [own for own, _ in floating]
        self._trained = [theirs for _, theirs in floating]
        device = self._averaged[0].device if self._averaged else torch.device("cpu")
        self._updates = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    @torch.no_grad()
    def update(self, when: Tensor | None = None) -> None:
        """Moves the average towards the current weights; if `when` is False on the device, nothing changes."""
        averaged = [to_local(tensor) for tensor in self._averaged]
        trained = [to_local(tensor) for tensor in self._trained]
        if when is None and self._updates.is_cpu:
            _foreach_lerp_(averaged, trained, max(1 - self.decay, 9 / (10 + self._updates.item())))
            self._updates.add_(1)
        else:  # on a GPU, eager steps compute what a CUDA graph does: no value is read
            weight = (9 / (10 + self._updates)).clamp_(min=1 - self.decay)
            weight = weight if when is None else torch.where(when, weight, 0)
            _move_towards(averaged, trained, weight)
            self._updates.add_(1 if when is None else when)
        for own, newest in zip(self.model.modules(), self._source.modules(), strict=True):
            if newest._buffers:
                _copy_buffers(own._buffers, newest._buffers, when)

    def tensors(self) -> list[Tensor]:
        """The tensors that an update writes besides those of the model."""
        return [self._updates]

    def state_dict(self) -> dict[str, Any]:
        """The averaged model as `stoker.checkpoint.model_state` returns it, without copies, and the updates so far."""
        updates = self._updates.item()
        return {**model_state(self.model), "updates": None if math.isinf(updates) else int(updates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` returned; raises `StateMismatch` if it does not fit the model.

        A state without the number of updates is of a run that did not warm up, and continues so.
        """
        load_model_state(self.model, state, resize_buffers=True)
        updates = state.get("updates")
        self._updates.fill_(math.inf if updates is None else updates)


def _is_averaged(parameter: nn.Parameter) -> bool:
    """Whether a parameter has an average: not integers, nor quantised weights (of a subclass), which do not train."""
    can_change = parameter.requires_grad or is_plain(parameter) or is_dtensor(parameter)
    return can_change and (parameter.is_floating_point() or parameter.is_complex())


def _move_towards(averaged: list[Tensor], trained: list[Tensor], weight: Tensor) -> None:
    """Moves tensors towards others by a weight on the device, in three launches for all of a type."""
    if torch.compiler.is_compiling():  # the compiler fuses single operations
        for own, newest in zip(averaged, trained, strict=True):
            own.add_((newest - own) * weight.to(own.dtype))
        return
    groups: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, Tensor]]] = {}
    for own, newest in zip(averaged, trained, strict=True):
        groups.setdefault((own.device, own.dtype), []).append((own, newest))
    for (device, dtype), pairs in groups.items():
        targets = [own for own, _ in pairs]
        steps = _foreach_sub([newest for _, newest in pairs], targets)
        _foreach_mul_(steps, weight.to(device, torch.promote_types(dtype, torch.float32)))
        _foreach_add_(targets, steps)


def _copy_buffers(own: dict[str, Tensor | None], newest: dict[str, Tensor | None], when: Tensor | None) -> None:
    for name, value in newest.items():
        old = own.get(name)
        is_alike = value is not None and old is not None and (old.shape, old.dtype) == (value.shape, value.dtype)
        if value is None or old is None or not is_alike:  # it may grow, change its type, or appear later
            own[name] = None if value is None else value.clone()
        else:
            old.copy_(value if when is None else torch.where(when, value, old))
