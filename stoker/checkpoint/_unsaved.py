"""What changes during a training and is in no state: a run that goes on would start it anew, without a word."""

import random
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from stoker.checkpoint._model import has_extra
from stoker.checkpoint._places import named_modules

_OF_TORCH = {*vars(nn.Module()), "transient"}  # attributes that every module has; `training` is part of the state
_FEW = 100  # elements of a list or mapping that are looked at one by one; of longer ones only the length is
_GONE = object()


class Unsaved:
    """Remembers what modules and callbacks keep beside their state, and tells what of it has changed since.

    >>> class Counter(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.seen = 0
    >>> model = Counter()
    >>> unsaved = Unsaved(model, [])
    >>> model.seen += 1
    >>> print(*unsaved.changed())
    Counter keeps `seen` outside its state, so a run that is resumed starts it anew: make it a buffer, give the ...

    A module with `get_extra_state` and a callback with a `state_dict` of its own answer for themselves, and so does
    anything with `transient = True`. Looked at are plain values, tensors, random generators, and lists, mappings and
    sets of plain values; what a closure or another object holds is not seen.
    """

    __slots__ = ("_watched",)

    def __init__(self, model: nn.Module, callbacks: Iterable[object]) -> None:
        found: list[tuple[object, str]] = [
            (module, f"{type(module).__name__} ({name!r} in the model)" if name else type(module).__name__)
            for name, module in named_modules(model)
            if not has_extra(module)
        ]
        found += [(each, type(each).__name__) for each in callbacks if not _has_state(each)]
        self._watched = [
            (weakref.ref(each), title, _prints(each))
            for each, title in found
            if getattr(each, "transient", False) is not True
        ]

    def changed(self) -> list[str]:
        """A sentence for each module and callback of which something has changed; each is told once."""
        told: list[str] = []
        left: list[Any] = []
        for reference, title, before in self._watched:
            here = reference()
            now = {} if here is None else _prints(here)
            names = [name for name in {**before, **now} if not _same(before.get(name, _GONE), now.get(name, _GONE))]
            if here is not None and names:
                told.append(_sentence(title, names, here))
            elif here is not None:
                left.append((reference, title, before))
        self._watched = left
        return told


def _has_state(callback: object) -> bool:
    """Whether the class has a `state_dict` other than the one that all callbacks have."""
    kind = type(callback)
    first = next((each for each in reversed(kind.__mro__) if "state_dict" in vars(each)), None)
    return first is not None and vars(first)["state_dict"] is not getattr(kind, "state_dict", None)


def _sentence(title: str, names: list[str], here: object) -> str:
    kept = ", ".join(f"`{name}`" for name in names)
    if isinstance(here, nn.Module):
        advice = "make it a buffer, give the module get_extra_state and set_extra_state"
    else:
        advice = "give the callback state_dict and load_state_dict"
    return (
        f"{title} keeps {kept} outside its state, so a run that is resumed starts it anew: {advice}, "
        "or say transient = True in the class where that does no harm"
    )


# --- what is compared: a print of every attribute that can be looked at


class _Held:
    """A tensor as it was: the object, and how often it had been written to."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)  # an id may be given to another tensor later
        self.version = None if tensor.is_inference() else tensor._version


def _prints(thing: object) -> dict[str, Any]:
    skipped = _OF_TORCH if isinstance(thing, nn.Module) else ("transient",)
    found = ((name, _print(value)) for name, value in list(vars(thing).items()) if name not in skipped)
    return {name: each for name, each in found if each is not _GONE}


def _print(value: Any) -> Any:
    """Something that differs when the value has changed; `_GONE` for what can't be looked at."""
    if isinstance(value, Tensor):
        return _Held(value)
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, numpy.random.RandomState):
        return repr(value.get_state())
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, numpy.ndarray) and value.dtype != object:
        return value.tobytes() if value.nbytes <= 1 << 20 else value.shape
    return _plain(value)


def _plain(value: Any, depth: int = 3) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | numpy.generic):
        return value
    if not depth:
        return _GONE
    if isinstance(value, tuple | list | deque | set | frozenset | Mapping):
        if len(value) > _FEW:
            return len(value)
        parts = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
        prints = [_plain(part, depth - 1) for part in parts]
        return len(value) if any(each is _GONE for each in prints) else repr(prints)
    return _GONE


def _same(before: Any, now: Any) -> bool:
    if isinstance(before, _Held) and isinstance(now, _Held):
        return before.tensor() is now.tensor() and before.version == now.version
    return type(before) is type(now) and (before == now or (before != before and now != now))
