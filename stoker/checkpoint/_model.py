"""All that a model is, as a value: parameters, every buffer, extra state, what trains, and what only evaluates."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stoker.checkpoint._places import Spot, first_names, named_modules, spots
from stoker.distributed import copy_into as fill
from stoker.distributed import reshard as settle_shards
from stoker.errors import StateMismatch, did_you_mean

_PARTS = {"parameters": Mapping, "buffers": Mapping, "tied": Mapping, "empty": list, "extra": Mapping}
_PARTS |= {"trainable": list, "evaluating": list}


def model_state(model: nn.Module) -> dict[str, Any]:
    """What a model has to be put back to, by the user's own names; the tensors are the model's, and not copies.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    >>> state = model_state(model.eval())
    >>> list(state["parameters"]), list(state["buffers"])
    (['0.weight'], ['1.running_mean', '1.running_var', '1.num_batches_tracked'])
    >>> state["trainable"], state["evaluating"]
    (['0.weight'], ['', '0', '1'])

    Buffers are there that a `state_dict` leaves out (`persistent=False`): a fit that goes on needs them. Wrappers
    (`torch.compile`, DDP) leave no trace in the names. What stands in two places is there once, and `tied` says where
    else; `empty` are buffers that are None. Of a sharded model, the tensors are sharded.
    """
    settle_shards(model)
    parameters, buffers = spots(model, "_parameters"), spots(model, "_buffers")
    tied = first_names(parameters) | first_names(buffers)
    return {
        "parameters": {spot.name: tensor.detach() for spot, tensor in _once(parameters)},
        "buffers": {spot.name: tensor.detach() for spot, tensor in _once(buffers)},
        "tied": {name: first for name, first in tied.items() if name != first},
        "empty": [spot.name for spot in buffers if spot.tensor is None],
        "extra": {name: module.get_extra_state() for name, module in named_modules(model) if has_extra(module)},
        "trainable": [spot.name for spot, tensor in _once(parameters) if tensor.requires_grad],
        "evaluating": [name for name, module in named_modules(model) if not module.training],
    }


def load_model_state(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Puts a model back, in place: its parameters stay the same objects.

    What doesn't fit is listed in a `StateMismatch`, and then nothing has been changed. A buffer that is None on one
    side, or no part of a `state_dict` (`persistent=False`), becomes what it was, whatever its shape. Of a whole
    tensor a sharded model takes on each rank that rank's part.
    """
    settle_shards(model)
    odd = [name for name, kind in _PARTS.items() if not isinstance(state.get(name), kind)]
    lines = [f"it is no state of a model: {name!r} is missing in it" for name in odd] or _differences(model, state)
    if lines:
        raise StateMismatch("\n  ".join(["this state doesn't fit the model", *lines]))
    for name, module in named_modules(model):
        if has_extra(module):  # before the rest: it is the user's code, and may refuse
            module.set_extra_state(state["extra"][name])
    trainable, evaluating = set(state["trainable"]), set(state["evaluating"])
    with torch.no_grad():
        for spot, parameter in _once(spots(model, "_parameters")):
            fill(spot.name, parameter, state["parameters"][spot.name])
            parameter.requires_grad_(spot.name in trainable)
        _load_buffers(spots(model, "_buffers"), _everywhere(state, "buffers"), home=_device(model))
    for name, module in named_modules(model, wrappers=True):
        module.training = name not in evaluating


def has_extra(module: nn.Module) -> bool:
    """Whether a module has state of its own beside tensors."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def _once(found: list[Spot]) -> list[tuple[Spot, Tensor]]:
    first = first_names(found)
    return [(spot, spot.tensor) for spot in found if spot.tensor is not None and first[spot.name] == spot.name]


def _everywhere(state: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A part's tensors by every name that they have, the second places of tied ones included."""
    saved = state[part]
    return {**saved, **{name: saved[first] for name, first in state["tied"].items() if first in saved}}


def _load_buffers(found: list[Spot], saved: Mapping[str, Tensor], *, home: torch.device | None) -> None:
    written: dict[int, Tensor] = {}  # own buffer -> what it got: two of the state's may be tied here
    for name, module, key, own in found:
        value = saved.get(name)
        if value is None:
            module._buffers[key] = None
        elif own is None or _kind(own) != _kind(value) or written.get(id(own), value) is not value:
            module._buffers[key] = value.detach().to(home if own is None else own.device, copy=True)
        else:
            fill(name, own, value)
            written[id(own)] = value


def _device(model: nn.Module) -> torch.device | None:
    return next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


# --- what differs


def _differences(model: nn.Module, state: Mapping[str, Any]) -> list[str]:
    parameters, buffers = spots(model, "_parameters"), spots(model, "_buffers")
    modules = dict(named_modules(model))
    extra = [name for name, module in modules.items() if has_extra(module)]
    saved_buffers = _everywhere(state, "buffers")
    lines = _names_differ("parameter", [spot.name for spot in parameters], _everywhere(state, "parameters"))
    lines += _kinds_differ(parameters, _everywhere(state, "parameters")) + _ties_differ(parameters, state)
    lines += _names_differ("buffer", [spot.name for spot in buffers], [*saved_buffers, *state["empty"]])
    lines += _kinds_differ([spot for spot in buffers if _persistent(spot)], saved_buffers)
    lines += _names_differ("extra state", extra, state["extra"])
    lines += _names_differ("module", list(modules), [*modules, *state["evaluating"]])
    return lines


def _names_differ(what: str, own: list[str], saved: Any) -> list[str]:
    missing, unexpected = [name for name in own if name not in saved], [name for name in saved if name not in set(own)]
    hints = [(name, did_you_mean(name, unexpected, most=1).removeprefix("; ")) for name in missing]
    texts = [f"{name!r} ({hint})" if hint else repr(name) for name, hint in hints]
    lines = [f"not in the state: {what} {', '.join(texts)}"] if missing else []
    return lines + ([f"not in the model: {what} {', '.join(map(repr, unexpected))}"] if unexpected else [])


def _kinds_differ(found: list[Spot], saved: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, _, _, own in found:
        value = saved.get(name, own)
        if value is not None and not isinstance(value, Tensor):
            lines.append(f"no tensor in the state: {name!r} is a {type(value).__name__}")
        elif value is not None and own is not None and _kind(value) != _kind(own):
            lines.append(f"of another kind: {name!r} is {_kind(value)} in the state, {_kind(own)} in the model")
    return lines


def _ties_differ(found: list[Spot], state: Mapping[str, Any]) -> list[str]:
    """Buffers may come apart (`.to` a device does it to them), parameters don't."""
    lines: list[str] = []
    for name, first in first_names(found).items():
        there = state["tied"].get(name, name)
        if there != first and name in _everywhere(state, "parameters"):
            here = "by itself" if first == name else f"tied to {first!r}"
            saved = "by itself" if there == name else f"tied to {there!r}"
            lines.append(f"tied otherwise: {name!r} is {saved} in the state, {here} in the model")
    return lines


def _persistent(spot: Spot) -> bool:
    return spot.key not in spot.module._non_persistent_buffers_set
