"""Callbacks at work: who listens to which milestone, and where it went wrong when one fails."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from stoker.callbacks._callback import MILESTONES, Callback
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, UnknownHook, WrongType, did_you_mean


class Hooks:
    """The callbacks of a fit, asked milestone by milestone, in the order of the list.

    >>> class Hello(Callback):
    ...     def on_fit_begin(self, ctx):
    ...         print("hello", ctx.epochs)
    >>> hooks = Hooks([Hello()])
    >>> hooks.fire("on_fit_begin", Context(model=torch.nn.Linear(2, 1), epochs=3))
    hello 3
    >>> hooks.wanted("on_train_batch_begin")
    False

    Who listens is found out once, here: firing what nobody wants is a look into a dict (0.1 µs). `wanted` is for what
    has to be prepared for a milestone, and can be asked once for a whole fit.
    """

    __slots__ = ("_callbacks", "_listeners", "_stateful")

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self._callbacks = _checked(callbacks)
        self._listeners: dict[str, list[tuple[Callback, Callable[[Context], object]]]] = {
            name: [(each, getattr(each, name)) for each in self._callbacks if _listens(each, name)]
            for name in MILESTONES
        }
        named = zip(_names(self._callbacks), self._callbacks, strict=True)
        self._stateful = {name: each for name, each in named if type(each).state_dict is not Callback.state_dict}

    def wanted(self, name: str) -> bool:
        """Whether any callback has a method for the milestone."""
        return bool(self._at(name))

    def fire(self, name: str, ctx: Context) -> None:
        """Calls every callback that listens; an exception keeps its type and gains a note with where it came from."""
        listeners = self._listeners.get(name)
        if listeners:
            with torch.no_grad():
                for callback, method in listeners:
                    try:
                        method(ctx)
                    except Exception as error:
                        where = f"epoch {ctx.epoch}, batch {ctx.batch_number}"
                        error.add_note(f"in {type(callback).__name__}.{name}, {where}")
                        raise
        elif listeners is None:
            self._at(name)

    def listens(self, callback: Callback, name: str) -> bool:
        """Whether a callback has a method for the milestone."""
        return any(each is callback for each, _ in self._at(name))

    @property
    def stateful(self) -> Mapping[str, Callback]:
        """The callbacks that have a state to keep, by the name of their class ("CSV", a second one "CSV 2")."""
        return self._stateful

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Gives each callback its state back, by name; returns the names of states that nobody takes any more."""
        for name, callback in self._stateful.items():
            if name in states:
                callback.load_state_dict(states[name])
        return [name for name in states if name not in self._stateful]

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)

    def _at(self, name: str) -> list[tuple[Callback, Callable[[Context], object]]]:
        try:
            return self._listeners[name]
        except KeyError:
            raise UnknownHook(f"{name!r} is no milestone{did_you_mean(name, MILESTONES)}") from None


def _names(callbacks: Iterable[Callback]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name} {seen[name]}"


def _listens(callback: Callback, name: str) -> bool:
    """Whether the milestone's method is not the empty one of `Callback`: the class has its own, or the object."""
    return getattr(getattr(callback, name), "__func__", None) is not getattr(Callback, name)


def _checked(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise WrongType(f"callbacks is a list, got {_called(callbacks)}; put it into brackets: callbacks=[...]")
    found = tuple(callbacks)
    for place, each in enumerate(found):
        if isinstance(each, type) and issubclass(each, Callback):
            raise WrongType(f"callbacks[{place}] is the class {each.__name__}; make one of it: {each.__name__}(...)")
        if not isinstance(each, Callback):
            advice = (
                "say when it should be called: callbacks.on(epoch_end=...)"
                if callable(each)
                else "a callback inherits from stoker.Callback"
            )
            raise WrongType(f"callbacks[{place}] is {_called(each)}, and no Callback; {advice}")
        if any(each is other for other in found[:place]):
            raise InvalidArgument(f"callbacks[{place}], {each!r}, is already in the list; it would be called twice")
    return found


def _called(value: object) -> str:
    return str(getattr(value, "__name__", type(value).__name__))
