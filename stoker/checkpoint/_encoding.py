"""Encodes a nested state as tensors by name and plain values for JSON, and decodes it to the same bits.

A value that JSON cannot hold becomes a mapping with one marked key: `{"$tuple": [1, 2]}`. A tensor is replaced by its
name: `{"$tensor": "weight"}`.
"""

import base64
import math
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.checkpoint._manifest import part_name
from stoker.distributed import to_local
from stoker.errors import BadFile, InvalidArgument, StokerError, WrongType
from stoker.weights import check_tensor

MAX_DEPTH = 64  # levels
_MAX_BITS = 2048  # of an integer; Python parses at least 2126 bits from text
_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_KINDS = "tensors, mappings, lists, tuples, deques, None, bool, int, float, str, bytes and torch.dtype"

State = Mapping[str, Any]
Parts = Mapping[str, Mapping[str, Tensor]]  # the tensors of each top-level part of a state, by name


class EncodedState(NamedTuple):
    """A state as it is stored; the plain values are copies, the tensors are not."""

    plain: Mapping[str, Any]
    tensors: Parts


def encode(state: State) -> EncodedState:
    """Splits a state into plain values and the tensors of each of its top-level parts.

    >>> plain, tensors = encode({"model": {"weight": torch.ones(2)}, "seen": (3, 4)})
    >>> plain
    {'model': {'weight': {'$tensor': 'weight'}}, 'seen': {'$tuple': [3, 4]}}
    >>> tensors
    {'model': {'weight': tensor([1., 1.])}}
    """
    if not isinstance(state, Mapping):
        raise WrongType(f"a state is a mapping with strings as keys; got a {_type_name(state)}")
    plain: dict[str, Any] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for part, value in state.items():
        if type(part) is not str:
            raise WrongType(f"a state is a mapping with strings as keys; got the key {part!r}")
        tensors: dict[str, Tensor] = {}
        plain[part] = _encode(value, (part,), tensors)
        if tensors:
            if part_name(f"{part}.safetensors") is None:
                raise InvalidArgument(
                    f"the part {part!r} of the state holds tensors, so a file is named after it; "
                    "expected up to 64 letters, digits, '_' and '-', starting with a letter"
                )
            parts[part] = tensors
    return EncodedState(plain, parts)


def _encode(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    if len(path) > MAX_DEPTH:
        raise InvalidArgument(
            f"{'.'.join(path[:4])!r} is nested deeper than {MAX_DEPTH} levels, or contains itself; "
            "make the state flatter"
        )
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS:
            raise InvalidArgument(
                f"{'.'.join(path)!r} is an integer of {value.bit_length()} bits; at most {_MAX_BITS} are saved"
            )
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        return {"$tensor": _add_tensor(value, path, tensors)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Mapping):
        items = [(key, _encode(item, (*path, str(key)), tensors)) for key, item in value.items()]
        if all(type(key) is str and not key.startswith("$") for key in value):
            return dict(items)
        return {"$mapping": [[_encode_key(key, path), item] for key, item in items]}
    if not isinstance(value, list | tuple | deque) or hasattr(value, "_fields"):  # a namedtuple would lose its names
        raise WrongType(f"{'.'.join(path)!r} is a {_type_name(value)}, which cannot be saved; a state holds {_KINDS}")
    encoded = [_encode(item, (*path, str(number)), tensors) for number, item in enumerate(value)]
    if isinstance(value, deque):
        return {"$deque": encoded, "maxlen": value.maxlen}
    return encoded if isinstance(value, list) else {"$tuple": encoded}


def _encode_key(key: Any, path: tuple[str, ...]) -> Any:
    tensors: dict[str, Tensor] = {}
    plain = _encode(key, (*path, str(key)), tensors)
    if tensors:
        raise WrongType(f"{'.'.join(path)!r} has a tensor as a key, which cannot be saved; use a name or a number")
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


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def decode(plain: Any, tensors: Parts, *, path: object) -> dict[str, Any]:
    """The state that `encode` split; raises `BadFile`, which names `path`, for values that it does not produce."""
    if not isinstance(plain, dict):
        raise BadFile(f"{path} holds a {type(plain).__name__}; expected a mapping")
    unused = {part: dict(named) for part, named in tensors.items()}
    try:
        state = {part: _decode(value, 1, unused.get(part, {})) for part, value in plain.items()}
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        problem = error if isinstance(error, StokerError) else "a marked value is malformed"
        raise BadFile(f"{path} is damaged: {problem}") from error
    for part, named in unused.items():
        if named:
            raise BadFile(f"{path} does not mention the tensor {next(iter(named))!r} of {part!r}")
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
            mapping = {_decode(key, depth + 1, tensors): _decode(item, depth + 1, tensors) for key, item in pairs}
            if len(mapping) == len(pairs):
                return mapping
        case {"$float": str(bits), **rest} if not rest:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case {"$bytes": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"$dtype": str(name), **rest} if not rest and name in _DTYPES:
            return _DTYPES[name]
    raise BadFile(f"{next(iter(value))!r} has an unexpected value")


def tensor_paths(plain: Any, path: tuple[str, ...] = (), depth: int = 1) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name of every tensor in encoded values, and the keys of the mappings that contain it.

    >>> list(tensor_paths({"state": {"0.weight": {"moment": {"$tensor": "state.0.weight.moment"}}}}))
    [('state.0.weight.moment', ('state', '0.weight', 'moment'))]
    """
    if depth > MAX_DEPTH:  # `decode` refuses it
        return
    if isinstance(plain, list):
        for item in plain:
            yield from tensor_paths(item, path, depth + 1)
    elif isinstance(plain, dict) and isinstance(plain.get("$tensor"), str):
        yield plain["$tensor"], path
    elif isinstance(plain, dict):
        for key, item in plain.items():
            yield from tensor_paths(item, (*path, key), depth + 1)
