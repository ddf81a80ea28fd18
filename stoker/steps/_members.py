"""The methods and properties of a user's class, as its shadows have them: the same code, without autograd."""

import inspect
from collections.abc import Callable, Generator
from functools import cached_property, wraps
from types import FunctionType
from typing import Any

from torch import nn

from stoker.steps._graphless import Graphless, is_inside, resumed, run


def members(cls: type, before: type) -> dict[str, Any]:
    """A namespace for a subclass of `before` and `cls`, with all that `cls` has and `torch.nn.Module` has not.

    Each looks its own name up when it is used, past `before`: a method that is patched on the class later is found.
    """
    namespace: dict[str, Any] = {}
    for name, member in _own(cls).items():
        if name in vars(before) or (name.startswith("__") and name.endswith("__")):
            continue
        if isinstance(member, cached_property):
            namespace[name] = _cached(member, name)
        elif isinstance(member, property):
            namespace[name] = _property(member, name, before)
        elif inspect.isgeneratorfunction(member):
            namespace[name] = _generator(member, name, before)
        elif hasattr(member, "_torchdynamo_orig_callable"):  # a compiled method: as it was before
            namespace[name] = _eager(member._torchdynamo_orig_callable)
        elif isinstance(member, FunctionType) and not inspect.iscoroutinefunction(member):
            namespace[name] = _method(member, name, before)
    return namespace


def _own(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base not in nn.Module.__mro__:
            found = {**vars(base), **found}
    return found


def _method(function: Callable[..., Any], name: str, before: type) -> Callable[..., Any]:
    @wraps(function)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        view = self._stoker_view
        if is_inside(view):  # the common case, and the cheap one
            return getattr(super(before, self), name)(*args, **kwargs)
        return run(view, getattr(super(before, self), name), args, kwargs)

    return method


def _eager(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return run(self._stoker_view, function, (self, *args), kwargs)

    return method


def _generator(function: Callable[..., Any], name: str, before: type) -> Callable[..., Any]:
    @wraps(function)
    def generator(self: Any, /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from resumed(self._stoker_view, getattr(super(before, self), name)(*args, **kwargs)))

    return generator


def _property(own: property, name: str, before: type) -> property:
    def read(self: Any) -> Any:
        with Graphless(self._stoker_view):
            return getattr(super(before, self), name)

    return property(read, own.fset, own.fdel, own.__doc__)


def _cached(own: "cached_property[Any]", name: str) -> property:
    """Reads what the module has cached and caches nothing: a value made in eval mode would stay for training."""

    def read(self: Any) -> Any:
        if name in self.__dict__:
            return self.__dict__[name]
        with Graphless(self._stoker_view):
            return own.func(self)

    def write(self: Any, value: Any) -> None:
        self.__dict__[name] = value

    def delete(self: Any) -> None:
        del self.__dict__[name]

    return property(read, write, delete, own.__doc__)
