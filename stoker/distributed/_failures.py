"""One outcome for all ranks: an exception on one rank ends all of them, with an error that names the rank."""

import builtins
import contextlib
import errno
import functools
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from stoker import errors
from stoker.distributed._join import join, membership, world
from stoker.distributed._world import World
from stoker.errors import PeerFailed, StokerError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_LOST = "lost"  # what a rank reports whose error is that it can't reach the others
_PATIENCE = 5.0  # seconds to wait for an answer of the store after a failure
# gloo raises plain RuntimeErrors that name one of its files, with one exception. NCCL and the store have classes.
_FROM_GLOO = re.compile(r"Application timeout caused pair closure|\[[^\]]*\bgloo[/\\][^\]]*\.(cc|h):\d+\]")


@contextlib.contextmanager
def propagate_failures(world: World) -> Iterator[None]:
    """Reports an exception of this rank to the others, and raises `PeerFailed` here if another rank failed.

    The other ranks are waiting in a collective meanwhile. They notice when the connection to the failed rank closes,
    which is when its process ends and its traceback has been printed; or when their timeout has passed.

    After an error that all ranks raised and caught, they can continue. After one that only some raised they are at
    different places, so whatever they do next with this function is refused.
    """
    if world.size == 1:
        yield
        return
    store = dist.distributed_c10d._get_default_store()
    _check_same_failures(store, world)
    failures = membership.failures + 1  # nested calls report the same failure
    try:
        yield
    except BaseException as error:
        membership.broken, membership.failures = True, failures
        if membership.ended is not None:
            raise
        is_lost = _is_lost_connection(error)
        report = _LOST if is_lost else f"{type(error).__name__}: {error}"
        _with_patience(lambda: store.set(_key(failures, world.rank), report))
        if is_lost:
            membership.ended = _with_patience(lambda: _first_report(store, world)) or _describe_lost_connection(error)
            raise PeerFailed(membership.ended) from error
        raise


def _check_same_failures(store: Any, world: World) -> None:
    """Raises if a failure was not raised by all ranks; waits for those that may still raise it."""
    if membership.failures and membership.ended is None:
        keys = [_key(membership.failures, rank) for rank in range(world.size)]
        try:
            store.wait(keys, timedelta(seconds=world.timeout))
            reports = [store.get(key).decode() for key in keys]
        except dist.DistError:
            reports = [_LOST]
        if _LOST in reports:
            membership.ended = "this rank has failed, and others have not"
    if membership.ended is not None:
        raise PeerFailed(
            f"the ranks can't continue together: {membership.ended}. That error was caught, but the ranks are at "
            "different places now. End all processes and start again; resume=True continues from the newest checkpoint"
        )


def _with_patience(ask: Callable[[], T]) -> T | None:
    """The store's answer, or None if it is gone or can't be reached: the store itself would wait much longer."""
    answers: list[T] = []

    def wait() -> None:
        with contextlib.suppress(dist.DistError, RuntimeError):
            answers.append(ask())

    thread = Thread(target=wait, name="stoker-store", daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answers[0] if answers else None


def _key(failure: int, rank: int) -> str:
    return f"stoker/failed/{failure}/{rank}"


def _is_lost_connection(error: BaseException) -> bool:
    """Whether the error says that other ranks can't be reached, or was caused by one that does."""
    if isinstance(error, PeerFailed) and error.__cause__ is not None:
        return _is_lost_connection(error.__cause__)
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and _FROM_GLOO.search(str(error)) is not None


def _first_report(store: Any, world: World) -> str | None:
    """What the first failed rank reported, if one did."""
    for rank in range(world.size):
        key = _key(membership.failures, rank)
        if rank != world.rank and store.check([key]) and (report := store.get(key).decode()) != _LOST:
            return f"rank {rank} has failed: {report}; its traceback is in its own output"
    return None


def _describe_lost_connection(error: BaseException) -> str:
    if isinstance(error, PeerFailed):
        return str(error)
    line = (str(error).splitlines() or [type(error).__name__])[0]
    line = line.removeprefix("Got the following error when running the callback: RuntimeError: ")  # from DDP
    reason = re.sub(r"^\[[^\]]*\] ", "", line).partition(". This is typically")[0]  # without gloo's file and advice
    return (
        f"the connection to the other ranks was lost ({reason}): one of them was killed or hangs, or its network is "
        "down; the output of the rank that ended first says more"
    )


# --- work of rank 0, and of every rank


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
    result: T | None = None
    failure: Exception | None = None
    if world.is_first:
        try:
            result = work()
        except Exception as error:
            failure = error
    report = world.broadcast_object(failure and (type(failure).__name__, str(failure)))
    if failure is not None:
        raise failure
    if report is not None:
        raise _recreate(*report)
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
    return [result for result, _ in results]


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
