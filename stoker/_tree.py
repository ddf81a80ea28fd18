"""Nested structures: tuples, namedtuples, lists, mappings and dataclasses that hold tensors and other values.

Containers keep their type when they are rebuilt, except that every mapping becomes a `dict`. Of a dataclass (which a
mapping may be, as Hugging Face's `ModelOutput` is), the fields that its `__init__` takes are visited. Everything else
is a leaf. `torch.utils._pytree` is private, does not know
dataclasses and is several times slower for the small structures that a batch is.
"""

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, Enum)
_LEAF_TYPES = frozenset({Tensor, *_PLAIN})  # a quick look-up for the usual leaves; others are found by isinstance


def is_namedtuple(value: object) -> bool:
    """Whether a value is a namedtuple, whose class takes the elements as separate arguments."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def map_leaves(
    function: Callable[..., Any], tree: Any, *others: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """Builds the same structure with `function(leaf)` in place of every leaf.

    >>> map_leaves(lambda a, b: a + b, (1, {"x": 2}), (10, {"x": 20}))
    (11, {'x': 22})

    `others` have the structure of `tree`; their leaves are further arguments. A value for which `is_leaf` returns True
    is passed to `function` as it is, also if it is a container.
    """
    if not others:
        return _map_one(function, tree, is_leaf)
    parts = _children(tree)
    if parts is None or (is_leaf is not None and is_leaf(tree)):
        return function(tree, *others)
    rows = zip(parts, *(_matching_children(tree, other) for other in others), strict=True)
    return _rebuild(tree, [map_leaves(function, *row, is_leaf=is_leaf) for row in rows])


def _map_one(function: Callable[[Any], Any], tree: Any, is_leaf: Callable[[Any], bool] | None) -> Any:
    parts = _children(tree)
    if parts is None or (is_leaf is not None and is_leaf(tree)):
        return function(tree)
    return _rebuild(tree, [_map_one(function, part, is_leaf) for part in parts])


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Builds the same structure with `function(tensor)` in place of every tensor; other leaves stay as they are.

    >>> map_tensors(torch.neg, {"x": torch.ones(2), "name": "a"})
    {'x': tensor([-1., -1.]), 'name': 'a'}
    """
    if isinstance(tree, Tensor):
        return function(tree)
    parts = _children(tree)
    return tree if parts is None else _rebuild(tree, [map_tensors(function, part) for part in parts])


def named_leaves(
    tree: Any, name: str = "", *, is_leaf: Callable[[Any], bool] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields every leaf with the expression that reads it.

    >>> list(named_leaves((1, {"x": 2}), "batch"))
    [('batch[0]', 1), ("batch[1]['x']", 2)]
    """
    parts = _children(tree)
    if parts is None or (is_leaf is not None and is_leaf(tree)):
        yield name, tree
        return
    if isinstance(tree, (tuple, list)):
        keys = [f"[{place}]" for place in range(len(tree))]
    elif _is_dataclass(tree):
        keys = [f".{field}" for field in _field_names(tree)]
    else:
        keys = [f"[{key!r}]" for key in tree]
    for key, part in zip(keys, parts, strict=True):
        yield from named_leaves(part, name + key, is_leaf=is_leaf)


def tensors_in(tree: Any) -> list[Tensor]:
    """Lists the tensors of a structure in order.

    >>> tensors_in((torch.zeros(1), {"name": "a", "x": torch.ones(1)}))
    [tensor([0.]), tensor([1.])]
    """
    if isinstance(tree, Tensor):
        return [tree]
    return [tensor for part in _children(tree) or () for tensor in tensors_in(part)]


def first_tensor(tree: Any) -> Tensor | None:
    """Finds the first tensor of a structure, or returns None if it has none."""
    if isinstance(tree, Tensor):
        return tree
    for part in _children(tree) or ():
        found = first_tensor(part)
        if found is not None:
            return found
    return None


def find_tensors(thing: Any) -> list[Tensor]:
    """Lists the tensors that `copy.deepcopy` of a module or another object reaches through attributes and containers.

    >>> from types import SimpleNamespace
    >>> find_tensors(SimpleNamespace(names={"a": [torch.zeros(1)]}))
    [tensor([0.])]
    """
    seen: dict[int, Any] = {}
    pending: list[Any] = [thing]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list | tuple | set | deque):
            pending.extend(value)
        elif isinstance(value, MethodType):
            pending.append(value.__self__)
        elif not isinstance(value, Tensor | type | ModuleType | FunctionType):
            pending.extend(getattr(value, "__dict__", {}).values())
    return [value for value in seen.values() if isinstance(value, Tensor)]


class Structure(NamedTuple):
    """A nested value without its tensors. It is hashable; two are equal if everything but the tensors is equal."""

    kind: Any  # the container's class; Tensor in place of a tensor; None for any other leaf
    keys: Hashable  # of the children; for a leaf other than a tensor its class and value
    children: tuple["Structure", ...] = ()


_TENSOR = Structure(Tensor, None)


class OpaqueValue(TypeError):
    """Raised for a value that may hide tensors, because it is neither a known container nor a plain value."""


def flatten(tree: Any) -> tuple[list[Tensor], Structure]:
    """Separates a nested value into its tensors and its structure.

    >>> tensors, structure = flatten({"x": torch.ones(2), "name": "a"})
    >>> len(tensors), unflatten(structure, [torch.zeros(1)])
    (1, {'x': tensor([0.]), 'name': 'a'})

    Leaves other than tensors are compared by class and value: 1, 1.0 and True give three structures. Raises
    `OpaqueValue` for a leaf that is not a number, string, dtype, device, enum member or None, and for a mapping other
    than a `dict` or an `OrderedDict`, whose class may matter to the model.
    """
    tensors: list[Tensor] = []
    return tensors, _flatten_into(tensors, tree)


def _flatten_into(tensors: list[Tensor], tree: Any) -> Structure:
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return _TENSOR
    parts = _children(tree)
    if parts is None:
        if isinstance(tree, _PLAIN):
            return Structure(None, (type(tree), tree))
        raise OpaqueValue(type(tree).__name__)
    if isinstance(tree, (tuple, list)):
        kind, keys = type(tree), len(tree)
    elif _is_dataclass(tree):
        kind, keys = type(tree), _field_names(tree)
    elif type(tree) is dict or type(tree) is OrderedDict:
        kind, keys = dict, tuple(tree)
    else:
        raise OpaqueValue(type(tree).__name__)
    return Structure(kind, keys, tuple([_flatten_into(tensors, part) for part in parts]))


def unflatten(structure: Structure, tensors: Iterable[Tensor]) -> Any:
    """Builds a value of this structure around other tensors, given in the order of `flatten`."""
    return _unflatten_from(iter(tensors), structure)


def _unflatten_from(tensors: Iterator[Tensor], structure: Structure) -> Any:
    kind, keys = structure.kind, structure.keys
    if kind is Tensor:
        return next(tensors)
    if kind is None:
        return keys[1]  # pyright: ignore[reportIndexIssue]
    parts = [_unflatten_from(tensors, child) for child in structure.children]
    if issubclass(kind, tuple | list):
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    named: Any = dict(zip(keys, parts, strict=True))  # pyright: ignore[reportArgumentType, reportCallIssue]
    return named if kind is dict else kind(**named)


def _children(tree: Any) -> Collection[Any] | None:
    """The parts of a container, or None for a leaf."""
    kind = type(tree)
    if kind in _LEAF_TYPES:
        return None
    if kind is tuple or kind is list:
        return tree
    if kind is dict:
        return tree.values()
    if isinstance(tree, Tensor):
        return None
    if isinstance(tree, (tuple, list)):
        return tree
    if _is_dataclass(tree):
        return [getattr(tree, name) for name in _field_names(tree)]
    return tree.values() if isinstance(tree, Mapping) else None


def _is_dataclass(tree: Any) -> bool:
    return hasattr(type(tree), "__dataclass_fields__")  # of an instance, not of the class itself


def _matching_children(tree: Any, other: Any) -> Collection[Any]:
    """The parts of `other` in the order of those of `tree`: two mappings may list their keys in different orders."""
    if isinstance(tree, Mapping) and not _is_dataclass(tree):
        return [other[key] for key in tree]
    return _children(other) or []


def _field_names(tree: Any) -> tuple[str, ...]:
    return tuple([field.name for field in dataclasses.fields(tree) if field.init])


def _rebuild(tree: Any, parts: list[Any]) -> Any:
    """A container like `tree` with other parts."""
    kind = type(tree)
    if kind is tuple:
        return tuple(parts)
    if kind is dict:
        return dict(zip(tree, parts, strict=True))
    if isinstance(tree, (tuple, list)):
        return kind(*parts) if is_namedtuple(tree) else kind(parts)
    if _is_dataclass(tree):
        return dataclasses.replace(tree, **dict(zip(_field_names(tree), parts, strict=True)))
    return dict(zip(tree, parts, strict=True))
