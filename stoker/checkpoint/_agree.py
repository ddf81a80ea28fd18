"""What every rank does its part of, with one outcome for all: a failure of one rank is a failure of each."""

import errno
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from stoker.distributed import World
from stoker.errors import PeerFailed

T = TypeVar("T")


class Elsewhere(PeerFailed):
    """A failure of another rank, in that rank's own words."""


def agreed(world: World, work: Callable[[], T]) -> list[T]:
    """What the work gave on every rank, in rank order; where it failed on one, it has failed on all.

    >>> agreed(World(), lambda: 3)
    [3]

    The work calls no collectives. The rank that failed raises its own exception, the others raise `Elsewhere`.
    """
    if world.size == 1:
        return [work()]
    failure: Exception | None = None
    made: Any = None
    try:
        made = work()
    except Exception as error:
        failure = error
    try:
        found = world.all_gather((made, failure and said(failure)))
    except RuntimeError as error:  # torch's, for a connection that has ended or a wait that was too long
        raise PeerFailed("the connection to the other ranks was lost while they saved or read a checkpoint") from error
    if failure is not None:
        raise failure
    for rank, (_, text) in enumerate(found):
        if text is not None:
            raise Elsewhere(f"rank {rank}: {text}")
    return [each for each, _ in found]


def by_first(world: World, work: Callable[[], T]) -> T:
    """What rank 0's work gave, on every rank: the others do nothing; fails as `agreed` does."""
    first: list[Any] = agreed(world, work if world.is_first else lambda: None)
    return first[0]


def said(error: Exception) -> str:
    """An exception's words, and what to do about it."""
    if isinstance(error, Elsewhere):
        return str(error)
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        advice = "Make room there"
    else:
        advice = "Make it writable" if code in (errno.EACCES, errno.EPERM, errno.EROFS) else "See to that"
    return f"{type(error).__name__}: {error}. {advice}"


@lru_cache(maxsize=1)  # a group is threads and connections, and one thread at a time writes
def apart(world: World) -> World:
    """The same ranks for a thread that writes: the training's messages don't mix with its."""
    return world.with_own_group()
