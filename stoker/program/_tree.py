"""Nested values taken apart into their tensors and everything else, and put together again."""

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.data import RowSelection

_copy_all: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


class Shape(NamedTuple):
    """A nested value without its tensors: hashable, and equal where the rest is equal."""

    kind: Any  # of the container; Tensor for a place of one; None for anything else
    names: Hashable  # of the parts; the value itself, where it is neither a container nor a tensor
    parts: tuple["Shape", ...] = ()


_PLACE = Shape(Tensor, None)


class Opaque(TypeError):
    """Something that may hide tensors, so that nobody can tell what a step depends on."""


class _Source:
    """A pick's columns; equal where the columns are the same ones."""

    __slots__ = ("pick",)

    def __init__(self, pick: RowSelection) -> None:
        self.pick = pick

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Source) and list(map(id, self.pick.columns())) == list(map(id, other.pick.columns()))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.pick.columns())))


def taken_apart(value: Any, tensors: list[Tensor]) -> Shape:
    """The shape of a value; its tensors are appended to a list, in the order of the places.

    >>> import torch
    >>> tensors = []
    >>> shape = taken_apart({"x": torch.ones(2), "name": "a"}, tensors)
    >>> len(tensors), together(shape, iter([torch.zeros(1)]))
    (1, {'x': tensor([0.]), 'name': 'a'})
    """
    if isinstance(value, Tensor):
        tensors.append(value)
        return _PLACE
    kind = type(value)
    if isinstance(value, RowSelection):
        columns = value.columns()
        tensors += [value.rows, *columns]
        return Shape(RowSelection, _Source(value), (_PLACE,) * (1 + len(columns)))
    if kind is dict or kind is OrderedDict:
        return Shape(dict, tuple(value), tuple(taken_apart(each, tensors) for each in value.values()))
    if isinstance(value, tuple | list):
        return Shape(kind, len(value), tuple(taken_apart(each, tensors) for each in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value) if field.init)
        return Shape(kind, names, tuple(taken_apart(getattr(value, name), tensors) for name in names))
    if value is None or isinstance(value, bool | int | float | str | bytes | torch.dtype | torch.device | Enum):
        return Shape(None, (kind, value))  # 1, 1.0 and True are equal, and not the same
    raise Opaque(kind.__name__)


def copied(value: Any) -> Any:
    """A value with copies of its tensors."""
    return _mapped(value, lambda tensor: tensor.detach().clone())


def detached(value: Any) -> Any:
    """A value whose tensors hold no graph of autograd."""
    return _mapped(value, Tensor.detach)


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value with other tensors; of what can't be taken apart, its own attributes are looked at."""
    tensors: list[Tensor] = []
    try:
        shape = taken_apart(value, tensors)
    except Opaque:
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(_mapped(each, change) for each in value)
        twin = copy.copy(value)
        for name, each in vars(value).items() if hasattr(value, "__dict__") else ():
            if isinstance(each, Tensor):
                setattr(twin, name, change(each))
        return twin
    return together(shape, map(change, tensors))


def together(shape: Shape, tensors: Iterator[Tensor]) -> Any:
    """A value of that shape with other tensors."""
    kind, names = shape.kind, shape.names
    if kind is Tensor:
        return next(tensors)
    if kind is None:
        return names[1]  # pyright: ignore[reportIndexIssue]
    parts = [together(part, tensors) for part in shape.parts]
    if kind is RowSelection:
        numbers, *columns = parts
        return names.pick.with_columns(columns).with_rows(numbers)  # pyright: ignore[reportAttributeAccessIssue]
    if kind is dict:
        return dict(zip(names, parts, strict=True))  # pyright: ignore[reportArgumentType, reportCallIssue]
    if issubclass(kind, tuple | list):
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return kind(**dict(zip(names, parts, strict=True)))  # pyright: ignore[reportArgumentType, reportCallIssue]


def matched(before: list[Tensor], after: list[Tensor], shapes: tuple[Shape, Shape]) -> bool:
    """Whether what a run leaves can be written over what it has read, inside of the program.

    Not where it leaves something under another name than it has read it by: a compiler may write over it too early.
    """
    read = {_memory(own): place for place, own in enumerate(before)}
    return shapes[0] == shapes[1] and all(
        (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and read.get(_memory(b), place) == place
        for place, (a, b) in enumerate(zip(before, after, strict=True))
    )


def written_back(before: list[Tensor], after: list[Tensor]) -> None:
    """Puts what a run leaves where it has read it."""
    read = {_memory(own) for own in before}
    changed = [(own, new) for own, new in zip(before, after, strict=True) if new is not own]
    with torch.no_grad():
        # What others will be written over is copied first.
        apart = [(own, new.clone() if _memory(new) in read else new) for own, new in changed]
        if torch.compiler.is_compiling():
            for own, new in apart:
                own.copy_(new)
            return
        for kind in {own.dtype for own, _ in apart}:  # one launch for all of a kind
            same = [pair for pair in apart if pair[0].dtype == kind]
            _copy_all([own for own, _ in same], [new for _, new in same])


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
