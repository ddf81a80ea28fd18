"""Encodes a nested state as tensors by name and plain values for JSON, and decodes it to the same bits.

A value that JSON cannot hold becomes a mapping with one marked key: `{"$tuple": [1, 2]}`. A tensor is replaced by its
name: `{"$tensor": "weight"}`.
"""

import base64
import math
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoint._manifest import part_name, tensors_file
from stoker.distributed import to_local
from stoker.errors import BadFile, InvalidArgument, StokerError, WrongType
from stoker.weights import check_tensor

MAX_DEPTH = 64  # levels
_MAX_BITS = 2048  # of an integer; Python parses at least 2126 bits from text
_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_KINDS = "tensors, mappings, lists, tuples, deques, None, bool, int, float, str, bytes and torch.dtype"

State = Mapping[str, Any]
Parts = Mapping[str, Mapping[str, Tensor]]  # the tensors of each top-level part of a state, by name


def encode(state: State) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Splits a state into plain values and the tensors of each of its top-level parts.

    >>> plain, tensors = encode({"model": {"weight": torch.ones(2)}, "seen": (3, 4)})
    >>> plain
    {'model': {'weight': {'$tensor': 'weight'}}, 'seen': {'$tuple': [3, 4]}}
    >>> tensors
    {'model': {'weight': tensor([1., 1.])}}
    """
    if not isinstance(state, Mapping):
        raise WrongType(f"a state is a mapping with strings as keys; got a {_kind(state)}")
    plain: dict[str, Any] = {}
    tensors: dict[str, dict[str, Tensor]] = {}
    for part, value in state.items():
        if type(part) is not str:
            raise WrongType(f"a state is a mapping with strings as keys; got the key {part!r}")
        found: dict[str, Tensor] = {}
        plain[part] = _encode(value, (part,), found)
        if found:
            if part_name(tensors_file(part)) is None:
                raise InvalidArgument(
                    f"the part {part!r} of the state holds tensors, so a file is named after it; "
                    "expected up to 64 letters, digits, '_' and '-', starting with a letter"
                )
            tensors[part] = found
    return plain, tensors


def _encode(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if len(path) > MAX_DEPTH:
        raise InvalidArgument(
            f"{_format_path(path[:4])} is nested deeper than {MAX_DEPTH} levels, or contains itself; "
            "make the state flatter"
        )
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise InvalidArgument(
                f"{_format_path(path)} is an integer of {value.bit_length()} bits; at most {_MAX_BITS} are saved"
            )
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        return {"$tensor": _add_tensor(value, path, tensors)}
    if isinstance(value, Mapping):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: _encode(item, (*path, key), tensors) for key, item in value.items()}
        pairs = value.items()
        return {
            "$mapping": [[_encode_key(key, path), _encode(item, (*path, str(key)), tensors)] for key, item in pairs]
        }
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if not isinstance(value, list | tuple | deque) or hasattr(value, "_fields"):  # a namedtuple would lose its names
        raise WrongType(f"{_format_path(path)} is a {_kind(value)}, which cannot be saved; a state holds {_KINDS}")
    items = [_encode(item, (*path, str(number)), tensors) for number, item in enumerate(value)]
    if isinstance(value, deque):
        return {"$deque": items, "maxlen": value.maxlen}
    return items if isinstance(value, list) else {"$tuple": items}


def _encode_key(key: Any, path: tuple[str, ...]) -> Any:
    inside: dict[str, Tensor] = {}
    plain = _encode(key, (*path, str(key)), inside)
    if inside:
        raise WrongType(f"{_format_path(path)} has a tensor as a key, which cannot be saved; use a name or a number")
    return plain


def _add_tensor(tensor: Tensor, path: tuple[str, ...], tensors: dict[str, Tensor]) -> str:
    """Adds a tensor under its path below the part, with a number if that name is taken."""
    check_tensor(".".join(path), to_local(tensor))
    key = ".".join(path[1:] or path).encode(errors="backslashreplace").decode()
    name, number = key, 1
    while name in tensors or name == "__metadata__":  # which safetensors reserves
        name, number = f"{key}#{number}", number + 1
    tensors[name] = tensor.detach()
    return name


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _format_path(path: tuple[str, ...]) -> str:
    return repr(".".join(path))


def decode(plain: Any, tensors: Parts, *, where: object = "the state") -> dict[str, Any]:
    """The state that `encode` split; raises `BadFile` for values that it does not produce."""
    if not isinstance(plain, dict):
        raise BadFile(f"{where} holds a {type(plain).__name__}; expected a mapping")
    unused = {part: dict(found) for part, found in tensors.items()}
    try:
        state = {part: _decode(value, 1, unused.get(part, {})) for part, value in plain.items()}
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        problem = error if isinstance(error, StokerError) else "a marked value is malformed"
        raise BadFile(f"{where} is damaged: {problem}") from error
    for part, found in unused.items():
        if found:
            raise BadFile(f"{where} does not mention the tensor {next(iter(found))!r} of {part!r}")
    return state


def _decode(value: Any, depth: int, tensors: dict[str, Tensor]) -> Any:
    if depth > MAX_DEPTH:
        raise BadFile(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list):
        return [_decode(item, depth + 1, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if not any(key.startswith("$") for key in value):
        return {key: _decode(item, depth + 1, tensors) for key, item in value.items()}
    match value:
        case {"$tensor": str(key), **rest} if not rest and key in tensors:
            return tensors.pop(key)
        case {"$tuple": list(items), **rest} if not rest:
            return tuple(_decode(items, depth, tensors))
        case {"$deque": list(items), "maxlen": None | int() as maxlen, **rest} if not rest:
            return deque(_decode(items, depth, tensors), maxlen=maxlen)
        case {"$mapping": list(pairs), **rest} if not rest:
            made = {_decode(key, depth + 1, tensors): _decode(item, depth + 1, tensors) for key, item in pairs}
            if len(made) == len(pairs):
                return made
        case {"$float": str(bits), **rest} if not rest:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case {"$bytes": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"$dtype": str(name), **rest} if not rest and name in _DTYPES:
            return _DTYPES[name]
    raise BadFile(f"{next(iter(value))!r} has an unexpected value")


def tensor_paths(plain: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name of every tensor in encoded values, and the keys of the mappings that contain it.

    >>> list(tensor_paths({"state": {"0.weight": {"moment": {"$tensor": "state.0.weight.moment"}}}}))
    [('state.0.weight.moment', ('state', '0.weight', 'moment'))]
    """
    if isinstance(plain, list):
        for item in plain:
            yield from tensor_paths(item, path)
    elif isinstance(plain, dict) and isinstance(plain.get("$tensor"), str):
        yield plain["$tensor"], path
    elif isinstance(plain, dict):
        for key, item in plain.items():
            yield from tensor_paths(item, (*path, key))
