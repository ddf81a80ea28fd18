"""Something for any value that differs where the value does: what was changed in place is seen as well."""

import functools
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)
CODE = (type, BuiltinFunctionType, ModuleType)
MANY = 1000  # elements of a list or mapping that are looked at; of longer ones only the length is
_LARGE = 1 << 20  # bytes of an array


class Same:
    """A value that is equal to itself alone. It is held, so that no other one can take its place in memory."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def print_of(value: Any, deep: int = 5) -> Any:
    """A print of a value: hashable, and equal as long as nothing has changed in it."""
    if isinstance(value, PLAIN):
        return type(value), value
    if isinstance(value, nn.Parameter):
        return Same(value)  # the step itself writes to it: an RNN keeps a list of them
    if isinstance(value, Tensor):
        return Same(value), None if value.is_inference() else value._version
    if isinstance(value, numpy.ndarray):
        small = value.nbytes <= _LARGE and value.dtype != object
        return Same(value), value.shape, value.tobytes() if small else None
    if not deep or isinstance(value, CODE):
        return Same(value)
    return Same(value), *((name, print_of(each, deep - 1)) for name, each in inside(value))


def inside(value: Any) -> Iterator[tuple[Any, Any]]:
    """What a value is made of, by name: elements, attributes, what a function has closed over or reads."""
    if isinstance(value, FunctionType):
        yield from function_reads(value)
    elif isinstance(value, MethodType):
        yield from (("function", value.__func__), ("self", value.__self__))
    elif isinstance(value, functools.partial):
        yield from (("function", value.func), ("arguments", value.args), ("keywords", value.keywords))
    elif isinstance(value, Mapping | tuple | list | set | frozenset):
        if len(value) > MANY:
            yield "length", len(value)
        elif isinstance(value, Mapping):
            yield from ((repr(name), each) for name, each in value.items())
        else:
            yield from enumerate(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
    else:
        yield from vars(value).items() if hasattr(value, "__dict__") else ()
        slots = [name for kind in type(value).__mro__ for name in _slots_of(kind)]
        yield from ((name, getattr(value, name)) for name in slots if hasattr(value, name))


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def function_reads(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Values that a function decides by beside its arguments: closed over, defaults, plain globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not yet filled
            continue
    yield from (("defaults", function.__defaults__), ("keywords", function.__kwdefaults__))
    for name in function.__code__.co_names:
        each = function.__globals__.get(name)
        if each is not None and isinstance(each, (*PLAIN, Tensor, list, dict, set, tuple, numpy.ndarray)):
            yield name, each


def class_reads(kind: type) -> Iterator[tuple[str, Any]]:
    """The same of a user's class of modules: plain attributes, and what its methods read."""
    for each in kind.__mro__:
        if each.__module__.split(".")[0] in ("torch", "builtins"):
            continue
        for name, value in vars(each).items():
            if isinstance(value, FunctionType):
                yield from ((f"{name}.{inner}", found) for inner, found in function_reads(value))
            elif not name.startswith("__") and isinstance(value, (*PLAIN, Tensor, list, dict, set, tuple)):
                yield name, value
