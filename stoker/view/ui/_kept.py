"""What is kept for the next time, and no more of it than there is room for."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by key, up to a total weight; those that were not asked for the longest go first.

    >>> kept = Kept[str, bytes](most=10, weigh=len)
    >>> for key in "abc":
    ...     kept.put(key, b"1234")
    >>> kept.get("a"), kept.get("c")
    (None, b'1234')

    The newest stays, however heavy it is.
    """

    def __init__(self, *, most: int, weigh: Callable[[V], int]) -> None:
        self._most = most
        self._weigh = weigh
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """A value, which counts as asked for now."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Adds a value; weights are taken anew, since what is kept may grow."""
        self._values[key] = value
        self._values.move_to_end(key)
        self.trim()

    def trim(self) -> None:
        """Lets go of what there is no room for."""
        weight = sum(map(self._weigh, self._values.values()))
        while weight > self._most and len(self._values) > 1:
            _, gone = self._values.popitem(last=False)
            weight -= self._weigh(gone)

    def drop(self, wanted: Callable[[K, V], bool]) -> None:
        """Lets go of everything that is not wanted."""
        for key in [key for key, value in self._values.items() if not wanted(key, value)]:
            del self._values[key]

    def __len__(self) -> int:
        return len(self._values)
