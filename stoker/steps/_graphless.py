"""Running a view's code without autograd: switched off by the outermost call of a view, and left alone inside it.

Inside, a forward that says `with torch.enable_grad()` means it, for the modules that it calls as well.
"""

import threading
import weakref
from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Protocol

import torch
from torch import nn


class Root(Protocol):
    """What is known of a view here: the model that it was made of, and how to tidy up after a forward."""

    root: "weakref.ref[nn.Module]"

    def settle(self) -> None: ...


class _Thread(threading.local):
    inside: Root | None = None  # the view whose code this thread runs
    last: "weakref.ref[nn.Module] | None" = None  # the model whose view ran last


_thread = _Thread()


class Graphless:
    """A context without autograd for a view's code; does nothing where this thread is already inside that view.

    The autocast cache is off as well: torch keeps casts of the weights in it, for all threads, also those made without
    a graph, and a training forward that found one of these would lose the weight's gradient.
    """

    __slots__ = ("_cached", "_no_grad", "_outer", "_view")

    def __init__(self, view: Root) -> None:
        self._view = view

    def __enter__(self) -> None:
        self._outer = _thread.inside
        if self._outer is not self._view:
            _thread.inside, _thread.last = self._view, self._view.root
            self._cached = torch.is_autocast_cache_enabled()
            torch.set_autocast_cache_enabled(False)
            self._no_grad = torch.no_grad()
            self._no_grad.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._outer is not self._view:
            self._no_grad.__exit__(None, None, None)
            torch.set_autocast_cache_enabled(self._cached)
            _thread.inside = self._outer
            if error[0] is None:
                self._view.settle()


def is_inside(view: Root) -> bool:
    """Whether this thread runs code of the view, and runs it eagerly."""
    return not torch.compiler.is_compiling() and _thread.inside is view


def inside_of() -> Root | None:
    """The view whose code this thread runs."""
    return _thread.inside


def last_viewed() -> nn.Module | None:
    """The model whose view ran last in this thread, while it lives."""
    return None if _thread.last is None else _thread.last()


def run(view: Root, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the function without autograd."""
    if torch.compiler.is_compiling():  # dynamo looks at a module's dict, which says `training`: it must stay outside
        eagerly: Any = torch.compiler.disable(run)
        return eagerly(view, function, args, kwargs)
    with Graphless(view):
        return function(*args, **kwargs)


def graphless(view: Root, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, without autograd."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(view, function, args, kwargs)

    return call


def resumed(view: Root, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """The generator, without autograd while it runs; while it waits, its caller has the caller's own grad mode."""
    sent: Any = None
    thrown: BaseException | None = None
    while True:
        try:
            with Graphless(view):
                item = generator.send(sent) if thrown is None else generator.throw(thrown)
        except StopIteration as stop:
            return stop.value
        sent = thrown = None
        try:
            sent = yield item
        except GeneratorExit:
            with Graphless(view):
                generator.close()
            raise
        except BaseException as error:
            thrown = error
