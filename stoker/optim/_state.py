"""What optimizers keep, as tensors and plain values, and back, and whether it fits a model: no pickle, no imports."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.distributed import place_like
from stoker.errors import StateMismatch, did_you_mean

_MARK = "__kind__"  # a mapping with this key stands for something that JSON has no word for


def to_plain(value: Any, where: str) -> Any:
    """Tensors, numbers, strings, lists and mappings as they are; tuples, deques and dtypes marked; else an error."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Mapping):
        pairs = [[to_plain(key, where), to_plain(item, where)] for key, item in value.items()]
        if all(isinstance(key, str) and key != _MARK for key in value):
            return dict(pairs)
        return {_MARK: "mapping", "items": pairs}
    if isinstance(value, list):
        return [to_plain(item, where) for item in value]
    if isinstance(value, tuple):
        return {_MARK: "tuple", "items": [to_plain(item, where) for item in value]}
    if isinstance(value, deque):
        return {_MARK: "deque", "items": [to_plain(item, where) for item in value], "maxlen": value.maxlen}
    if isinstance(value, torch.dtype):
        return {_MARK: "dtype", "items": str(value).removeprefix("torch.")}
    raise StateMismatch(
        f"the optimizer keeps a {type(value).__name__} for {where!r}, which can't be saved as tensors and plain values"
    )


def from_plain(value: Any) -> Any:
    """The undoing of `to_plain`; tensors come as copies."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    kind, items = value.get(_MARK), value.get("items", [])
    if kind is None:
        return {key: from_plain(item) for key, item in value.items()}
    if kind == "tuple":
        return tuple(from_plain(items))
    if kind == "deque":
        return deque(from_plain(items), maxlen=value["maxlen"])
    if kind == "mapping":
        return {from_plain(key): from_plain(item) for key, item in items}
    dtype = getattr(torch, str(items), None)
    if kind == "dtype" and isinstance(dtype, torch.dtype):
        return dtype
    raise StateMismatch(f"the state holds a {kind!r} of {items!r}, which is not known here")


def moment(value: Any, like: Tensor) -> Tensor | str:
    """A copy of a saved tensor in the type and the order of memory of `like`, where that is; or why it can't be one."""
    if not isinstance(value, Tensor):
        return f"is {type(value).__name__} in the state, not a tensor"
    if value.shape != like.shape:
        return f"has shape {list(value.shape)} in the state, {list(like.shape)} here"
    if value.is_complex() != like.is_complex() or value.is_floating_point() != like.is_floating_point():
        kinds = [str(each.dtype).removeprefix("torch.") for each in (value, like)]
        return f"is {kinds[0]} in the state, {kinds[1]} here"
    return torch.empty_like(like).copy_(place_like(value.detach(), like))


def differences_of(state: Any, parameters: Mapping[str, Tensor], kinds: list[str]) -> list[str]:
    """What keeps a saved state from fitting a model and its algorithms: a line each, in the user's names."""
    shapes, rules = (state.get("parameters"), state.get("rules")) if isinstance(state, Mapping) else (None, None)
    if not isinstance(shapes, Mapping) or not isinstance(rules, list | tuple):
        return ["it is no state of an optimizer: it has no 'parameters' or no 'rules'"]
    if not all(isinstance(rule, Mapping) and {"algorithm", "state"} <= set(rule) for rule in rules):
        return ["it is no state of an optimizer: a rule has no 'algorithm' or no 'state'"]
    saved = {name: list(shape) for name, shape in shapes.items()}
    own = {name: list(parameter.shape) for name, parameter in parameters.items()}
    lines = [
        f"{name}: in the state, not in the model{did_you_mean(name, own, most=1)}" for name in saved if name not in own
    ]
    lines += [
        f"{name}: in the model, not in the state{did_you_mean(name, saved, most=1)}"
        for name in own
        if name not in saved
    ]
    lines += [
        f"{name}: shape {saved[name]} in the state, {own[name]} in the model"
        for name in saved
        if name in own and saved[name] != own[name]
    ]
    given = [str(rule["algorithm"]) for rule in rules]
    if given != kinds:
        lines.append(f"the state is of {', '.join(given)}, this optimizer is {', '.join(kinds)}")
    return lines
