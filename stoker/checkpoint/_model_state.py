"""The complete state of a model: parameters, all buffers, extra state, and the trainable and training flags."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from stoker._select import WRAPPERS
from stoker.checkpoint._frozen import fingerprint_tensors
from stoker.distributed import copy_into, reshard
from stoker.errors import InvalidArgument, StateMismatch, did_you_mean

_PARTS = {"parameters": Mapping, "buffers": Mapping, "tied": Mapping, "empty": list, "extra": Mapping}
_PARTS |= {"trainable": list, "evaluating": list, "frozen": Mapping}
_MAX_NAMES = 3  # of parameters that differ, in an error


def model_state(model: nn.Module) -> dict[str, Any]:
    """Everything that `load_model_state` restores, by the user's own names; the tensors are not copied.

    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.BatchNorm1d(1, affine=False))
    >>> state = model_state(model.eval())
    >>> list(state["parameters"]), list(state["buffers"])
    (['0.weight'], ['1.running_mean', '1.running_var', '1.num_batches_tracked'])
    >>> state["trainable"], state["evaluating"]
    (['0.weight'], ['', '0', '1'])

    Contains the buffers that a `state_dict` leaves out (`persistent=False`), because a resumed fit needs them.
    Wrappers (`torch.compile`, DDP) do not appear in the names. A tied tensor is stored once, and `tied` maps its other
    names to the first one; `empty` lists buffers that are None. The tensors of a sharded model are sharded.
    """
    reshard(model)
    parameters, buffers = _find_slots(model, "_parameters"), _find_slots(model, "_buffers")
    tied = _first_names(parameters) | _first_names(buffers)
    return {
        "parameters": {slot.name: tensor.detach() for slot, tensor in _without_ties(parameters)},
        "buffers": {slot.name: tensor.detach() for slot, tensor in _without_ties(buffers)},
        "tied": {name: first for name, first in tied.items() if name != first},
        "empty": [slot.name for slot in buffers if slot.tensor is None],
        "extra": {name: each.get_extra_state() for name, each in named_modules(model) if has_extra_state(each)},
        "trainable": [slot.name for slot, tensor in _without_ties(parameters) if tensor.requires_grad],
        "evaluating": [name for name, module in named_modules(model) if not module.training],
    }


def load_model_state(model: nn.Module, state: Mapping[str, Any], *, resize_buffers: bool = False) -> None:
    """Restores a model in place; its parameters stay the same objects.

    Raises `StateMismatch` and changes nothing if the state does not match the model. A buffer that is None on one side,
    or not part of a `state_dict` (`persistent=False`), gets the saved value whatever its shape and dtype; with
    `resize_buffers` every buffer does, since training may have changed them. A sharded model takes each rank's
    part of a whole tensor.

    A state may leave out parameters: its `frozen` maps their names to fingerprints, which those of the model must have,
    or to None if the model's may have any value.
    """
    check_model_state(model, state, resize_buffers=resize_buffers)
    state = {"frozen": {}, **state}
    for name, module in named_modules(model):
        if has_extra_state(module):  # first, because it is the user's code and may raise
            module.set_extra_state(state["extra"][name])
    trainable, evaluating = set(state["trainable"]), set(state["evaluating"])
    with torch.no_grad():
        for slot, parameter in _without_ties(_find_slots(model, "_parameters")):
            if slot.name not in state["frozen"]:
                copy_into(slot.name, parameter, state["parameters"][slot.name])
            parameter.requires_grad_(slot.name in trainable)
        device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
        _load_buffers(_find_slots(model, "_buffers"), _with_ties(state, "buffers"), device)
    for name, module in named_modules(model, wrappers=True):
        module.training = name not in evaluating


def check_model_state(model: nn.Module, state: Mapping[str, Any], *, resize_buffers: bool = False) -> None:
    """Raises `StateMismatch` if `load_model_state` would; changes nothing."""
    reshard(model)
    state = {"frozen": {}, **state}
    missing = [name for name, kind in _PARTS.items() if not isinstance(state.get(name), kind)]
    lines = [f"this is not a state of a model: {name!r} is missing" for name in missing]
    if not lines:
        names = [*state["tied"].values(), *state["empty"], *state["trainable"], *state["evaluating"]]
        lines = [f"this is not a state of a model: {name!r} is not a name" for name in names if type(name) is not str]
    lines = lines or _differences(model, state, resize_buffers=resize_buffers)
    if lines:
        raise StateMismatch("\n  ".join(["the state does not match the model", *lines]))
    _check_frozen(model, state["frozen"])


def _load_buffers(slots: list["_Slot"], saved: Mapping[str, Tensor], device: torch.device | None) -> None:
    written: dict[int, Tensor] = {}  # id of a buffer -> its new value; two saved buffers may be tied in this model
    for name, module, key, own in slots:
        value = saved.get(name)
        if value is None:
            module._buffers[key] = None
        elif own is not None and _is_expanded(own) and torch.equal(own, value.to(own.device)):
            continue  # torch can't write into memory that several elements share, and it has these values
        elif (
            own is None
            or _is_expanded(own)
            or _describe(own) != _describe(value)
            or written.get(id(own), value) is not value
        ):
            module._buffers[key] = value.detach().to(device if own is None else own.device, copy=True)
        else:
            copy_into(name, own, value)
            written[id(own)] = value


def _is_expanded(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and any(
        size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def has_extra_state(module: nn.Module) -> bool:
    """Whether a module defines `get_extra_state`."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def named_modules(model: nn.Module, *, wrappers: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, in torch's order; a wrapper (`torch.compile`, DDP) has the name of what it wraps."""
    names = {"": ""}  # by torch's name, which comes before those of the children
    for path, module in model.named_modules():
        inner = WRAPPERS.get(type(module).__name__)
        if inner is None or wrappers:
            yield names[path], module
        for key, _ in module.named_children():  # TorchScript's table of modules can't be iterated over
            names[_join(path, key)] = names[path] if key == inner else _join(names[path], key)


# --- Slots: where a model holds its tensors


class _Slot(NamedTuple):
    """One parameter or buffer of one module; a buffer may be None."""

    name: str  # in the model
    module: nn.Module
    key: str  # in the module
    tensor: Tensor | None


def _find_slots(model: nn.Module, kind: Literal["_parameters", "_buffers"]) -> list[_Slot]:
    """Every parameter that is not None, or every buffer; a tied tensor appears once for each of its names."""
    slots = [
        _Slot(_join(name, key), module, key, tensor)
        for name, module in named_modules(model, wrappers=True)
        for key, tensor in getattr(module, kind).items()
        if tensor is not None or kind == "_buffers"
    ]
    for name, _, _, tensor in slots:
        if tensor is not None and is_lazy(tensor):
            raise InvalidArgument(f"{name!r} has no shape yet (a lazy module); run one batch through the model first")
        if tensor is not None and tensor.is_meta:
            raise InvalidArgument(
                f"{name!r} is on the meta device and has no values; allocate them with model.to_empty(device=...)"
            )
    return slots


def _join(module: str, key: str) -> str:
    return f"{module}.{key}" if module else key


def _first_names(slots: Iterable[_Slot]) -> dict[str, str]:
    """For every name the first name of the same tensor: the name itself unless the tensor is tied."""
    first: dict[int, str] = {}
    return {slot.name: first.setdefault(id(slot.tensor), slot.name) for slot in slots if slot.tensor is not None}


def _without_ties(slots: list[_Slot]) -> list[tuple[_Slot, Tensor]]:
    first = _first_names(slots)
    return [(slot, slot.tensor) for slot in slots if slot.tensor is not None and first[slot.name] == slot.name]


def _with_ties(state: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The tensors of a part under all their names."""
    saved = state[part]
    return {**saved, **{name: saved[first] for name, first in state["tied"].items() if first in saved}}


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


# --- Differences between a state and a model


def _differences(model: nn.Module, state: Mapping[str, Any], *, resize_buffers: bool) -> list[str]:
    parameters, buffers = _find_slots(model, "_parameters"), _find_slots(model, "_buffers")
    modules = dict(named_modules(model))
    extra = [name for name, module in modules.items() if has_extra_state(module)]
    persistent = [slot for slot in buffers if slot.key not in slot.module._non_persistent_buffers_set]
    saved_parameters, saved_buffers = _with_ties(state, "parameters"), _with_ties(state, "buffers")
    known = {**saved_parameters, **_with_ties(state, "frozen")}
    return [
        *_compare_names("parameter", [slot.name for slot in parameters], known),
        *_compare_tensors(parameters, saved_parameters),
        *_compare_ties(parameters, known, state["tied"]),
        *_compare_names("buffer", [slot.name for slot in buffers], [*saved_buffers, *state["empty"]]),
        *_compare_tensors(persistent, saved_buffers, any_value=resize_buffers),
        *_compare_names("extra state", extra, state["extra"]),
        *_compare_names("module", list(modules), [*modules, *state["evaluating"]]),
    ]


def _check_frozen(model: nn.Module, frozen: Mapping[str, Any]) -> None:
    """Raises `StateMismatch` unless the parameters that a state leaves out have their fingerprints in the model."""
    parameters = {slot.name: tensor for slot, tensor in _without_ties(_find_slots(model, "_parameters"))}
    own = fingerprint_tensors({name: parameters[name] for name, expected in frozen.items() if expected is not None})
    different = [name for name, fingerprint in own.items() if fingerprint != frozen[name]]
    if different:
        more = f" and {len(different) - _MAX_NAMES} more" if len(different) > _MAX_NAMES else ""
        raise StateMismatch(
            f"a checkpoint leaves out parameters that were frozen, and {len(different)} of these {len(own)} have other "
            f"values in this model than in the run: {', '.join(map(repr, different[:_MAX_NAMES]))}{more}. Create the "
            "model with the weights that the run started from (the pretrained ones). For a run whose checkpoints "
            'contain all weights, start it with Checkpoint(frozen="save")'
        )


def _compare_names(what: str, own: list[str], saved: Any) -> list[str]:
    missing, unexpected = [name for name in own if name not in saved], [name for name in saved if name not in set(own)]
    hints = [(name, did_you_mean(name, unexpected, most=1).removeprefix("; ")) for name in missing]
    texts = [f"{name!r} ({hint})" if hint else repr(name) for name, hint in hints]
    lines = [f"not in the state: {what} {', '.join(texts)}"] if missing else []
    return lines + ([f"not in the model: {what} {', '.join(map(repr, unexpected))}"] if unexpected else [])


def _compare_tensors(slots: list[_Slot], saved: Mapping[str, Any], *, any_value: bool = False) -> list[str]:
    lines: list[str] = []
    for name, _, _, own in slots:
        value = saved.get(name, own)
        if any_value and isinstance(value, Tensor):
            continue
        if value is not None and not isinstance(value, Tensor):
            lines.append(f"not a tensor: {name!r} is a {type(value).__name__} in the state")
        elif value is not None and own is not None and _describe(value) != _describe(own):
            lines.append(f"different: {name!r} is {_describe(value)} in the state, {_describe(own)} in the model")
    return lines


def _compare_ties(slots: list[_Slot], saved: Mapping[str, Any], tied: Mapping[str, str]) -> list[str]:
    """Only parameters: `.to(device)` unties buffers, but not parameters."""
    lines: list[str] = []
    for name, first in _first_names(slots).items():
        before = tied.get(name, name)
        if before != first and name in saved:
            texts = ["not tied" if each == name else f"tied to {each!r}" for each in (before, first)]
            lines.append(f"tied differently: {name!r} is {texts[0]} in the state, {texts[1]} in the model")
    return lines
