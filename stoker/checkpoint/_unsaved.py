"""Finds values that change during training but are not part of any state, so that a resumed run would lose them."""

import random
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from stoker.checkpoint._model_state import has_extra_state, named_modules

_IGNORED = {*vars(nn.Module()), "transient"}  # attributes of every module; `training` is part of the state
_MAX_ITEMS = 100  # of a container that are compared one by one; of longer ones only the length is
_UNKNOWN = object()


class Unsaved:
    """Remembers the attributes of modules and callbacks that are not in their state, and finds those that changed.

    >>> class Counter(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.seen = 0
    >>> model = Counter()
    >>> unsaved = Unsaved(model, [])
    >>> model.seen += 1
    >>> print(*unsaved.find_changes())
    Counter changes `seen`, which is not in its state, so a resumed run starts with its first value: make it a ...

    Modules with `get_extra_state`, callbacks with a `state_dict` of their own, and everything with `transient = True`
    are skipped. Compared are plain values, tensors, random generators, and containers of plain values; values in
    closures and other objects are not seen.
    """

    __slots__ = ("_watched",)

    def __init__(self, model: nn.Module, callbacks: Iterable[object]) -> None:
        found: list[tuple[object, str]] = [
            (module, f"{type(module).__name__} ({name!r} in the model)" if name else type(module).__name__)
            for name, module in named_modules(model)
            if not has_extra_state(module)
        ]
        found += [(each, type(each).__name__) for each in callbacks if not _has_state_dict(each)]
        self._watched = [
            (weakref.ref(each), title, _fingerprints(each))
            for each, title in found
            if getattr(each, "transient", False) is not True
        ]

    def find_changes(self) -> list[str]:
        """One sentence for each module and callback with a changed attribute; each is reported once."""
        sentences: list[str] = []
        unchanged: list[Any] = []
        for reference, title, before in self._watched:
            owner = reference()
            if owner is None:
                continue
            now = _fingerprints(owner)
            names = [
                name for name in {**before, **now} if not _is_same(before.get(name, _UNKNOWN), now.get(name, _UNKNOWN))
            ]
            if names:
                sentences.append(_describe(title, names, owner))
            else:
                unchanged.append((reference, title, before))
        self._watched = unchanged
        return sentences


def _has_state_dict(callback: object) -> bool:
    """Whether the class overrides the `state_dict` that all callbacks inherit."""
    kind = type(callback)
    first = next((each for each in reversed(kind.__mro__) if "state_dict" in vars(each)), None)
    return first is not None and vars(first)["state_dict"] is not getattr(kind, "state_dict", None)


def _describe(title: str, names: list[str], owner: object) -> str:
    if isinstance(owner, nn.Module):
        advice = "make it a buffer, give the module get_extra_state and set_extra_state"
    else:
        advice = "give the callback state_dict and load_state_dict"
    return (
        f"{title} changes {', '.join(f'`{name}`' for name in names)}, which is not in its state, so a resumed run "
        f"starts with its first value: {advice}, or set transient = True in the class if that does no harm"
    )


class _TensorVersion:
    """A tensor and how often it had been written to."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = weakref.ref(tensor)  # not an id, which another tensor may get later
        self.version = None if tensor.is_inference() else tensor._version


def _fingerprints(owner: object) -> dict[str, Any]:
    skipped = _IGNORED if isinstance(owner, nn.Module) else ("transient",)
    found = {name: _fingerprint(value) for name, value in list(vars(owner).items()) if name not in skipped}
    return {name: each for name, each in found.items() if each is not _UNKNOWN}


def _fingerprint(value: Any) -> Any:
    """A value that differs if the given one has changed; `_UNKNOWN` for objects that cannot be compared."""
    if isinstance(value, Tensor):
        return _TensorVersion(value)
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().numpy())
    if isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, numpy.ndarray) and value.dtype != object:
        return value.tobytes() if value.nbytes <= 1 << 20 else value.shape
    return _plain_fingerprint(value)


def _plain_fingerprint(value: Any, depth: int = 3) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes | numpy.generic):
        return value
    if not depth or not isinstance(value, tuple | list | deque | set | frozenset | Mapping):
        return _UNKNOWN
    if len(value) > _MAX_ITEMS:
        return len(value)
    items = [*value.keys(), *value.values()] if isinstance(value, Mapping) else list(value)
    found = [_plain_fingerprint(item, depth - 1) for item in items]
    return len(value) if any(each is _UNKNOWN for each in found) else repr(found)


def _is_same(before: Any, now: Any) -> bool:
    if isinstance(before, _TensorVersion) and isinstance(now, _TensorVersion):
        return before.tensor() is now.tensor() and before.version == now.version
    return type(before) is type(now) and (before == now or (before != before and now != now))
