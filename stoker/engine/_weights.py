"""Other weights than those being trained, as tensors by name: the best so far, and the moving average (EMA)."""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker._select import named_parameters
from stoker._tree import map_state
from stoker.checkpoint import load_model_state, model_state
from stoker.distributed import copy_into, to_local
from stoker.errors import InvalidArgument, StateMismatch

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


def copy_weights(
    model: nn.Module, weights: Mapping[str, Tensor] | None = None, *, leave_out: Container[str] = ()
) -> WeightCopy:
    """A copy of the weights, on their device, without those that are named in `leave_out`.

    `weights` replace the model's own, by name.
    """
    extra = model_state(model)["extra"]
    chosen = {**weights_of(model), **(weights or {})}
    tensors = {name: value.detach().clone() for name, value in chosen.items() if name not in leave_out}
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
    """An exponential moving average of the parameters that are trained: `weights`, tensors by name.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> ema = EMA(model, decay=0.999)
    >>> with torch.no_grad():
    ...     difference = model.weight.copy_(ema.weights["weight"] + 1) - ema.weights["weight"]
    >>> ema.update()
    >>> torch.allclose(model.weight - ema.weights["weight"], torch.tensor(0.1))
    True

    Parameters that don't require gradients have no average until they do, and buffers have none: those of the model are
    evaluated. It warms up: update n (from 0) uses the decay (1 + n) / (10 + n) as long as that is smaller. Otherwise
    the average of a short fit would mostly consist of the initial weights.
    """

    __slots__ = ("_frozen", "_parameters", "_updates", "decay", "weights")

    def __init__(self, source: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise InvalidArgument(f"ema is a decay of at least 0 and below 1, for example 0.999; got {decay!r}")
        self.decay = decay
        self._parameters = named_parameters(source)
        self._frozen = dict(self._parameters)  # those without an average
        self.weights: dict[str, Tensor] = {}
        self.add_unfrozen()
        device = next((parameter.device for parameter in self._parameters.values()), torch.device("cpu"))
        self._updates = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    def add_unfrozen(self) -> None:
        """Begins the averages of parameters that have become trainable, before the first update that changes them."""
        for name in [name for name, parameter in self._frozen.items() if parameter.requires_grad]:
            self.weights[name] = self._frozen.pop(name).detach().clone()

    @torch.no_grad()
    def update(self, when: Tensor | None = None) -> None:
        """Moves the average towards the current weights; if `when` is False on the device, nothing changes."""
        averaged = [to_local(tensor) for tensor in self.weights.values()]
        trained = [to_local(self._parameters[name]) for name in self.weights]
        if when is None and self._updates.is_cpu:
            if averaged:
                _foreach_lerp_(averaged, trained, max(1 - self.decay, 9 / (10 + self._updates.item())))
            self._updates.add_(1)
        else:  # on a GPU, eager steps compute what a CUDA graph does: no value is read
            weight = (9 / (10 + self._updates)).clamp_(min=1 - self.decay)
            weight = weight if when is None else torch.where(when, weight, 0)
            _move_towards(averaged, trained, weight)
            self._updates.add_(1 if when is None else when)

    def tensors(self) -> list[Tensor]:
        """The tensors that an update writes."""
        return [*self.weights.values(), self._updates]

    def state_dict(self, *, leave_out: Container[str] = ()) -> dict[str, Any]:
        """The average, without copies and without what is named in `leave_out`, and the number of updates so far."""
        weights = {name: tensor for name, tensor in self.weights.items() if name not in leave_out}
        return {"weights": weights, "updates": int(self._updates.item())}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restores what `state_dict` returned; raises `StateMismatch` if it does not fit the model.

        None is the state of a run without an average, which begins with the weights as they are.
        Parameters that the state leaves out are frozen, and have their own values.
        """
        self.add_unfrozen()
        if state is None:
            state = {"weights": {name: self._parameters[name].detach() for name in self.weights}, "updates": 0}
        saved, updates = state["weights"], state["updates"]
        trained = [name for name, parameter in self._parameters.items() if parameter.requires_grad]
        problems = [f"not in the state: parameter {name!r}" for name in trained if name not in saved]
        problems += [f"not in the model: parameter {name!r}" for name in saved if name not in self._parameters]
        for name in [name for name in saved if name in self._parameters]:
            own, given = _describe(self._parameters[name]), _describe(saved[name])
            if own != given:
                problems.append(f"different: {name!r} is {given} in the state, {own} in the model")
        if problems:
            raise StateMismatch("\n  ".join(["the state of the average does not match the model", *problems]))
        self.weights |= {name: self._frozen.pop(name).detach().clone() for name in saved if name in self._frozen}
        for name, tensor in self.weights.items():
            copy_into(name, tensor, saved.get(name, self._parameters[name].detach()))
        self._updates.fill_(updates)


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


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
