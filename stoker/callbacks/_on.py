"""Callbacks of one line: a function and when to call it."""

from collections.abc import Callable

from stoker.callbacks._callback import MILESTONES, Callback
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument, UnknownHook, WrongType, did_you_mean


class On(Callback):
    """Functions at milestones; `on` makes it."""

    def __init__(self, functions: dict[str, Callable[[Context], object]]) -> None:
        vars(self).update({f"on_{name}": function for name, function in functions.items()})

    def __repr__(self) -> str:
        named = [f"{key.removeprefix('on_')}={getattr(each, '__name__', each)}" for key, each in vars(self).items()]
        return f"on({', '.join(named)})"


def on(**functions: Callable[[Context], object]) -> Callback:
    """A callback out of functions, by the names of the milestones without their `on_`.

    >>> from stoker.callbacks import Context, Hooks
    >>> import torch
    >>> hooks = Hooks([on(fit_begin=lambda ctx: print("off we go"), epoch_end=lambda ctx: print("done", ctx.epoch))])
    >>> hooks.fire("on_fit_begin", Context(model=torch.nn.Linear(1, 1)))
    off we go
    """
    if not functions:
        raise InvalidArgument("on() needs a milestone and a function: on(epoch_end=lambda ctx: ...)")
    known = [name.removeprefix("on_") for name in MILESTONES]
    for name, function in functions.items():
        if name not in known:
            hint = did_you_mean(name.removeprefix("on_"), known) or f"; there are: {', '.join(known)}"
            raise UnknownHook(f"on({name}=...): {name} is no milestone{hint}")
        if not callable(function):
            raise WrongType(f"on({name}=...) takes a function of ctx, got {type(function).__name__}")
    return On(functions)
