"""Whether all processes are at the same part of the model, where a step yields a loss for each of several."""

import zlib
from collections.abc import Sequence
from functools import lru_cache

import torch

from stoker.distributed import World
from stoker.errors import InvalidArgument

_NEW = 256  # messages: afterwards it is believed, since each of them is waited for


class Parts:
    """Asks all processes, while a training is new, whether they are at the same part.

    The messages have a group of their own. So one process may go on to the next batch while another has a loss more,
    and both find out; in the group of all other messages, gloo would end them without a word.
    """

    __slots__ = ("_asked", "_world")

    def __init__(self, world: World) -> None:
        self._world, self._asked = _apart(world), 0

    def at(self, part: str | None) -> None:
        """Refuses to go on where another process is elsewhere; None is the end of a batch."""
        if self._asked < _NEW:
            self._asked += 1
            if not are_same(self._world.sum(torch.tensor(marks_of(part))).tolist(), self._world):
                check_same(part, self._world)


def marks_of(part: str | None) -> list[int]:
    """Two numbers that say which part it is, and that can be added up over processes."""
    mark = zlib.crc32(repr(part).encode()) >> 8  # 24 bits: the sum of many squares is exact
    return [mark, mark * mark]


def are_same(sums: Sequence[int], world: World) -> bool:
    """Whether all processes had the same marks: only then they have no variance."""
    marks, squares = sums
    return marks * marks == world.size * squares


def check_same(part: str | None, world: World) -> None:
    """Raises with what differs."""
    parts = [f"an objective for {each!r}" if each else "no more of them" for each in world.gathered(part)]
    for rank, other in enumerate(parts):
        if other != parts[0]:
            raise InvalidArgument(
                f"rank 0 has {parts[0]} where rank {rank} has {other}: every rank has to yield the same objectives in "
                "the same order. Where samples decide which there are, yield all of them, and multiply the loss that "
                "is not wanted by 0"
            )


@lru_cache(maxsize=1)  # a group is threads and connections
def _apart(world: World) -> World:
    return world.apart()
