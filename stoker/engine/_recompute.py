"""Activation checkpointing: modules whose activations are computed again in the backward pass instead of being kept."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stoker._dispatch import WatchingMode
from stoker.engine._buffers import BufferValues
from stoker.engine._replayable import CannotReplay
from stoker.errors import InvalidArgument, WrongType, did_you_mean

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)  # they have no forward of their own


def find_recomputed(model: nn.Module, wanted: Any) -> list[nn.Module]:
    """The outermost modules below a model that are of a class, have a name, or are given themselves.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    >>> find_recomputed(model, (nn.Linear, nn.Tanh)) == find_recomputed(model, ["0", "1.*"])
    True

    `wanted` is a class, a module, a dotted name, a glob, or a list or tuple of these.
    """
    named = {module: name for name, module in model.named_modules() if name}
    found: set[nn.Module] = set()
    for each in wanted if isinstance(wanted, list | tuple) else (wanted,):
        matched = [module for module, name in named.items() if _matches(each, module, name)]
        if not matched:
            names = sorted({type(module).__name__ for module in named} if isinstance(each, type) else named.values())
            given = each.__name__ if isinstance(each, type) else repr(each) if isinstance(each, str) else "this module"
            hint = did_you_mean(each, names) if isinstance(each, str) else ""
            known = f"; it has {', '.join(names[:12]) or 'no modules'}"
            raise InvalidArgument(f"recompute: nothing below the model matches {given}{hint or known}")
        found.update(matched)
    inner = {part for module in found for part in module.modules() if part is not module}
    outermost = [module for module in named if module in found and module not in inner]
    for module in outermost:
        _check_forward(module, named[module])
    return outermost


def _matches(wanted: Any, module: nn.Module, name: str) -> bool:
    if isinstance(wanted, type) and issubclass(wanted, nn.Module):
        return isinstance(module, wanted)
    if isinstance(wanted, nn.Module):
        return module is wanted
    if isinstance(wanted, str):
        return fnmatchcase(name, wanted)
    raise WrongType(
        "recompute takes classes of modules such as nn.TransformerEncoderLayer, modules, or their names; got "
        f"{wanted!r}"
    )


def _check_forward(module: nn.Module, name: str) -> None:
    if isinstance(module, _CONTAINERS):
        raise InvalidArgument(f'recompute: {name!r} has no forward of its own; for what it contains, use "{name}.*"')
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidArgument(f"recompute: {name!r} is TorchScript, whose activations can't be recomputed")
    if "forward" in vars(module):
        raise InvalidArgument(
            f"recompute: the forward of {name!r} was replaced on the module itself, not in its class, and can't be "
            "wrapped again; select modules inside or outside of it"
        )


@contextmanager
def recompute_activations(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Recomputes the activations of these modules inside; afterwards they are as before.

    For this time they get a class that inherits from their own. Unlike a hook or a new `forward` of the module, that
    is right for views and copies of the model as well, and the names of parameters stay.
    """
    classes = [type(module) for module in modules]
    try:
        for module, kind in zip(modules, classes, strict=True):
            module.__class__ = _recomputed_class(kind)
        yield
    finally:
        for module, kind in zip(modules, classes, strict=True):
            module.__class__ = kind


@cache
def _recomputed_class(kind: type[nn.Module]) -> type[nn.Module]:
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    metaclass: Any = type(kind)
    return metaclass(kind.__name__, (_Recomputed, kind), names)


class _Recomputed:
    """Comes before a module's own class: its `forward` keeps the inputs only."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles have the module's own class."""
        # Protocol 1 names the class as a plain argument. Later ones demand that it is the class of the object.
        function, arguments, *state = super().__reduce_ex__(1)
        own = type(self).__bases__[1]
        return function, tuple(own if each is type(self) else each for each in arguments), *state

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The forward pass of the module's own class, twice if there is a backward pass."""
        run: Callable[..., Any] = super().forward  # pyright: ignore[reportAttributeAccessIssue]
        if not (self.training and torch.is_grad_enabled()):
            return run(*args, **kwargs)
        repeat = _explain_second_call(_with_same_buffers(self, run))
        is_recorded = torch.compiler.is_compiling() or (
            torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        )
        if not is_recorded:
            return checkpoint(repeat, *args, use_reentrant=False, **kwargs)
        with _RandomSearch() as search:
            result = checkpoint(repeat, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
        if search.found:
            raise CannotReplay(
                f"recompute= has to draw the random numbers of {type(self).__name__} twice ({search.found}), and only "
                "Python can go back to their first state"
            )
        return result


class _RandomSearch(WatchingMode):
    """Finds an operation that draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and not _has_no_dropout(func, args, kwargs or {}):
            self.found = self.found or func.name().removeprefix("aten::")
        return func(*args, **(kwargs or {}))


def _has_no_dropout(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether it is an attention or a recurrent layer that could drop out, and does not."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            return (args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)) == 0
    return False


def _explain_second_call(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose errors from the second call on say what can make it fail where the first one did not."""
    has_run = False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_run
        if not has_run:
            has_run = True
            return run(*args, **kwargs)
        try:
            return run(*args, **kwargs)
        except Exception as error:
            error.add_note(
                "in the second forward pass of a module of recompute=; the first one may have changed an object that "
                "the module is given, such as a cache of keys and values (use_cache=False in the model's config)"
            )
            raise

    return call


def _with_same_buffers(module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose repetitions start with the buffers of the first call, and leave them as they were.

    Otherwise the running statistics of a batch norm would see every batch twice.
    """
    if next(module.buffers(), None) is None:
        return run
    first: BufferValues | None = None

    def repeat(*args: Any, **kwargs: Any) -> Any:
        nonlocal first
        now = BufferValues(module)
        if first is None:
            first = now
            return run(*args, **kwargs)
        first.restore()
        try:
            return run(*args, **kwargs)
        finally:
            now.restore()

    return repeat
