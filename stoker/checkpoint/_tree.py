"""A state, nested as it comes, as tensors by name and plain values that JSON can say; and back, to the bit.

What JSON has no word for is a mapping with one marked key: `{"$tuple": [1, 2]}`. A tensor leaves its name in its place.
"""

import base64
import math
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.checkpoint._names import part_of, tensors_file
from stoker.distributed import to_local as local_of
from stoker.errors import BadFile, InvalidArgument, StokerError, WrongType
from stoker.weights import check_tensor

MOST_DEPTH = 64  # levels
_MOST_BITS = 2048  # of an integer; Python refuses to read longer ones as text, 2126 bits at the strictest
_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_KINDS = "tensors, mappings, lists, tuples, deques, None, bool, int, float, str, bytes and torch.dtype"

State = Mapping[str, Any]


def split(state: State) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """The plain part of a state, and the tensors of each of its top-level parts by name.

    >>> plain, tensors = split({"model": {"weight": torch.ones(2)}, "seen": (3, 4)})
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
        plain[part] = _Split(found).plain(value, (part,))
        if found:
            if part_of(tensors_file(part)) is None:
                raise InvalidArgument(
                    f"the part {part!r} of the state holds tensors, so a file is named after it; "
                    "expected up to 64 letters, digits, '_' and '-', starting with a letter"
                )
            tensors[part] = found
    return plain, tensors


class _Split:
    def __init__(self, tensors: dict[str, Tensor]):
        self._tensors = tensors

    def plain(self, value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > MOST_DEPTH:
            raise InvalidArgument(
                f"{_shown(path[:4])} is nested deeper than {MOST_DEPTH} levels, or holds itself; make the state flatter"
            )
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            return _integer(value, path)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
        if isinstance(value, Tensor):
            return {"$tensor": self._keep(value, path)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list):
            return self._items(value, path)
        if isinstance(value, tuple) and not hasattr(value, "_fields"):  # a named one would lose its names
            return {"$tuple": self._items(value, path)}
        if isinstance(value, deque):
            return {"$deque": self._items(value, path), "maxlen": value.maxlen}
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        raise WrongType(f"{_shown(path)} is a {_kind(value)}, which can't be saved; a state holds {_KINDS}")

    def _items(self, values: Any, path: tuple[str, ...]) -> list[Any]:
        return [self.plain(value, (*path, str(number))) for number, value in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> dict[str, Any]:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.plain(item, (*path, key)) for key, item in value.items()}
        return {
            "$mapping": [[_key(key, path), self.plain(item, (*path, str(key)))] for key, item in value.items()],
        }

    def _keep(self, tensor: Tensor, path: tuple[str, ...]) -> str:
        """Takes a tensor out, by its path below the part; a number is added where that is another's already."""
        check_tensor(".".join(path), local_of(tensor))
        key = ".".join(path[1:] or path).encode(errors="backslashreplace").decode()
        name, number = key, 1
        while name in self._tensors or name == "__metadata__":  # which safetensors has for itself
            name, number = f"{key}#{number}", number + 1
        self._tensors[name] = tensor.detach()
        return name


def _key(key: Any, path: tuple[str, ...]) -> Any:
    inside: dict[str, Tensor] = {}
    plain = _Split(inside).plain(key, (*path, str(key)))
    if inside:
        raise WrongType(f"{_shown(path)} has a tensor as a key, which can't be saved; use a name or a number")
    return plain


def _integer(value: int, path: tuple[str, ...]) -> int:
    if value.bit_length() > _MOST_BITS:
        raise InvalidArgument(
            f"{_shown(path)} is an integer of {value.bit_length()} bits; at most {_MOST_BITS} are saved"
        )
    return int(value)


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shown(path: tuple[str, ...]) -> str:
    return repr(".".join(path))


def joined(plain: Any, tensors: Mapping[str, Mapping[str, Tensor]], *, where: object = "the state") -> dict[str, Any]:
    """The undoing of `split`; what it can't have given is a `BadFile`."""
    if not isinstance(plain, dict):
        raise BadFile(f"{where} is a {type(plain).__name__}; expected a mapping")
    left = {part: dict(found) for part, found in tensors.items()}
    try:
        state = {part: _Join(left.get(part, {})).whole(value, 1) for part, value in plain.items()}
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        said = error if isinstance(error, StokerError) else "it holds a mark that doesn't hold what it should"
        raise BadFile(f"{where} is not as it was written: {said}") from error
    for part, found in left.items():
        if found:
            raise BadFile(f"{where} doesn't say where the tensor {next(iter(found))!r} of {part!r} belongs")
    return state


def tensor_paths(plain: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name of every tensor of a part's plain half, and the keys of mappings that lead to it.

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


class _Join:
    def __init__(self, tensors: dict[str, Tensor]):
        self._tensors = tensors

    def whole(self, value: Any, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise BadFile(f"it is nested deeper than {MOST_DEPTH} levels")
        if isinstance(value, list):
            return [self.whole(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if not any(key.startswith("$") for key in value):
            return {key: self.whole(item, depth + 1) for key, item in value.items()}
        return self._marked(value, depth)

    def _marked(self, value: dict[str, Any], depth: int) -> Any:
        match value:
            case {"$tensor": str(key), **rest} if not rest and key in self._tensors:
                return self._tensors.pop(key)
            case {"$tuple": list(items), **rest} if not rest:
                return tuple(self.whole(items, depth))
            case {"$deque": list(items), "maxlen": None | int() as most, **rest} if not rest:
                return deque(self.whole(items, depth), maxlen=most)
            case {"$mapping": list(pairs), **rest} if not rest:
                made = {self.whole(key, depth + 1): self.whole(item, depth + 1) for key, item in pairs}
                if len(made) == len(pairs):
                    return made
            case {"$float": str(bits), **rest} if not rest:
                return struct.unpack(">d", bytes.fromhex(bits))[0]
            case {"$bytes": str(text), **rest} if not rest:
                return base64.b64decode(text, validate=True)
            case {"$dtype": str(name), **rest} if not rest and name in _DTYPES:
                return _DTYPES[name]
        raise BadFile(f"{next(iter(value))!r} doesn't hold what it should")
