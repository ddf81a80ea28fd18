"""A shadow's `_modules`: shadows to who reads it, modules to who writes."""

from collections.abc import Callable, Iterator, MutableMapping

from torch import nn

Change = Callable[[nn.Module], nn.Module]


class Children(MutableMapping[str, nn.Module | None]):
    """A module's own `_modules`, looked at through `see`; what is written goes to the module, through `back`."""

    __slots__ = ("_back", "_own", "_see")

    def __init__(self, own: dict[str, nn.Module | None], see: Change, back: Change) -> None:
        self._own, self._see, self._back = own, see, back

    def __getitem__(self, name: str) -> nn.Module | None:
        child = self._own[name]
        return None if child is None else self._see(child)

    def __setitem__(self, name: str, child: nn.Module | None) -> None:
        self._own[name] = None if child is None else self._back(child)

    def __delitem__(self, name: str) -> None:
        del self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)
