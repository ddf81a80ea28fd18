"""An ordinary object, seen with other modules in the place of those that its attributes hold."""

from abc import ABCMeta
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from types import MemberDescriptorType, MethodType
from typing import Any

Swap = Callable[[Any], Any]


class Seen:
    """The part of such an object's class that is the same for all; it stands before the user's class."""

    __slots__ = ("_stoker_back", "_stoker_see", "_stoker_value")
    _stoker_see: Swap
    _stoker_back: Swap
    _stoker_value: Any

    def __init_subclass__(cls) -> None:
        """Ends here: what a user's class does when it is inherited from is not meant for this."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in _OWN or (type(value) is MethodType and value.__self__ is self):
            return value
        return self._stoker_see(value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, self._stoker_back(value))


_OWN = frozenset({"__dict__", "__class__", *Seen.__slots__})


def seen(value: Any, see: Swap, back: Swap, most: int) -> Any:
    """The object with each attribute as `see` gives it, or the very same where none of the first `most` changes.

    It has the object's own dict, so that what its methods write (a hook that keeps an activation) is written to the
    object, through `back`; a copy would keep it to itself.
    """
    if all(see(part) is part for part in islice(vars(value).values(), most)):
        return value
    made = object.__new__(_class_for(type(value)))
    for name, part in (("_stoker_see", see), ("_stoker_back", back), ("_stoker_value", value)):
        object.__setattr__(made, name, part)
    object.__setattr__(made, "__dict__", vars(value))
    return made


class _Bare:
    pass


def is_ordinary(kind: type) -> bool:
    """Whether all that instances hold is in their dict: nothing in slots, and nothing that only C code sees.

    >>> class Helper: ...
    >>> is_ordinary(Helper), is_ordinary(int), is_ordinary(type("Slotted", (), {"__slots__": ("part",)}))
    (True, False, False)

    torch's own are left alone: FSDP's state and a graph of `torch.fx` hold modules that must stay what they are.
    """
    if kind.__module__.partition(".")[0] == "torch" or not kind.__dictoffset__:
        return False
    in_slots = any(isinstance(each, MemberDescriptorType) for base in kind.__mro__ for each in vars(base).values())
    return not in_slots and kind.__basicsize__ <= _Bare.__basicsize__


@lru_cache(maxsize=1024)
def _class_for(cls: type) -> type:
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    make = ABCMeta.__new__ if issubclass(type(cls), ABCMeta) else type.__new__
    return make(type(cls), cls.__name__, (Seen, cls), namespace)  # pyright: ignore
