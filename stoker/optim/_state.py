"""What optimizers keep, as tensors and plain values, and back, and whether it fits a model: no pickle, no imports."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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


def differences_of(state: Mapping[str, Any], parameters: Mapping[str, Tensor], kinds: list[str]) -> list[str]:
    """What keeps a saved state from fitting a model and its algorithms: a line each, in the user's names."""
    if not isinstance(state, Mapping) or not {"parameters", "rules"} <= set(state):
        return ["it is no state of an optimizer: it has no 'parameters' or no 'rules'"]
    saved = {name: list(shape) for name, shape in state["parameters"].items()}
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
    given = [str(rule["algorithm"]) for rule in state["rules"]]
    if given != kinds:
        lines.append(f"the state is of {', '.join(given)}, this optimizer is {', '.join(kinds)}")
    return lines
