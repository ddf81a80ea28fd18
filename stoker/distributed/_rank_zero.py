"""Work that one rank or every rank does, with one outcome for all: a failure on one rank is raised on every rank."""

import builtins
import errno
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from stoker import errors
from stoker.distributed._join import join, world
from stoker.distributed._world import World
from stoker.errors import PeerFailed, StokerError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def rank_zero(function: Callable[P, R]) -> Callable[P, R | None]:
    """Makes a function run on rank 0 only; on other ranks it returns None.

    >>> @rank_zero
    ... def greet() -> str:
    ...     return "hello"
    >>> greet()
    'hello'
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if world().is_first else None

    return wrapper


def barrier() -> None:
    """Waits until every process calls it; does nothing with one process."""
    join().barrier()


class FailedElsewhere(PeerFailed):
    """Another rank's exception, as text."""


def run_on_rank_zero(world: World, work: Callable[[], T]) -> T | None:
    """Runs the work on rank 0 and returns its result there, None elsewhere.

    >>> run_on_rank_zero(World(), lambda: 3)
    3

    The work starts when every rank has arrived, so that no rank still reads what it writes. An exception is raised on
    every rank, with the same class if it is a built-in one or stoker's.
    """
    if world.size == 1:
        return work()
    world.barrier()
    if not world.is_first:
        failure = world.broadcast_object(None)
        if failure is not None:
            raise _recreate(*failure)
        return None
    try:
        result = work()
    except Exception as error:
        world.broadcast_object((type(error).__name__, str(error)))
        raise
    world.broadcast_object(None)
    return result


def _recreate(name: str, text: str) -> Exception:
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(text)
    return StokerError(f"{name}: {text}")


def gather_results(world: World, work: Callable[[], T]) -> list[T]:
    """Runs the work on every rank and returns all results, in rank order, on every rank.

    >>> gather_results(World(), lambda: 3)
    [3]

    The work must not call collectives. A rank whose work fails raises that exception; the others raise
    `FailedElsewhere`.
    """
    if world.size == 1:
        return [work()]
    failure: Exception | None = None
    result: Any = None
    try:
        result = work()
    except Exception as error:
        failure = error
    try:
        results = world.all_gather((result, failure and describe_failure(failure)))
    except RuntimeError as error:  # torch: a closed connection, or a timeout
        raise PeerFailed("the connection to the other ranks was lost while they saved or read a checkpoint") from error
    if failure is not None:
        raise failure
    for rank, (_, text) in enumerate(results):
        if text is not None:
            raise FailedElsewhere(f"rank {rank}: {text}")
    return [each for each, _ in results]


def broadcast_result(world: World, work: Callable[[], T]) -> T:
    """Runs the work on rank 0 and returns its result on every rank; fails like `gather_results`."""
    results: list[Any] = gather_results(world, work if world.is_first else lambda: None)
    return results[0]


def describe_failure(error: Exception) -> str:
    """An exception as text, with what to do about it."""
    if isinstance(error, FailedElsewhere):
        return str(error)
    code = getattr(error, "errno", None)
    if code in (errno.ENOSPC, errno.EDQUOT):
        advice = "Free some space there"
    elif code in (errno.EACCES, errno.EPERM, errno.EROFS):
        advice = "Make it writable"
    else:
        advice = "Fix that first"
    return f"{type(error).__name__}: {error}. {advice}"
