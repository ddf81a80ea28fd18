"""One rank's exception ends all of them: the others say which rank it was, and what it said."""

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Thread
from typing import Any, TypeVar

import torch.distributed as dist

from stoker.distributed._join import membership
from stoker.distributed._world import World
from stoker.errors import PeerFailed

T = TypeVar("T")
_LOST = "lost"  # the word of a rank whose error is that it can't reach the others
_PATIENCE = 5.0  # seconds that an answer of the store is waited for, when something has failed
# gloo's errors are plain RuntimeErrors that name a file of its own, but for one; NCCL's and the store's have classes.
_OF_GLOO = re.compile(r"Application timeout caused pair closure|\[[^\]]*\bgloo[/\\][^\]]*\.(cc|h):\d+\]")


@contextlib.contextmanager
def failing(world: World) -> Iterator[None]:
    """Tells the others when this rank fails, and raises `PeerFailed` here when it was another one.

    The other ranks wait in a collective meanwhile. They find out when the connection to the rank that failed ends,
    which is when its process ends and its traceback has been printed; or when they have waited too long.

    After an error that all ranks have had, and caught, they go on. After one that only some have had, they are not at
    the same place any more: whatever comes next is refused.
    """
    if world.size == 1:
        yield
        return
    store = dist.distributed_c10d._get_default_store()
    _check_together(store, world)
    failures = membership.failures + 1  # inside of another `failing`, both see the same failure
    try:
        yield
    except BaseException as error:
        membership.broken, membership.failures = True, failures
        if membership.over is not None:
            raise
        lost = _is_lost(error)
        word = _LOST if lost else f"{type(error).__name__}: {error}"
        _soon(lambda: store.set(_key(failures, world.rank), word))
        if lost:
            membership.over = _soon(lambda: _said(store, world)) or _unknown(error)
            raise PeerFailed(membership.over) from error
        raise


def _check_together(store: Any, world: World) -> None:
    """Refuses to go on after a failure that not all ranks have had; waits for those that may still have it."""
    if membership.failures and membership.over is None:
        keys = [_key(membership.failures, rank) for rank in range(world.size)]
        try:
            store.wait(keys, timedelta(seconds=world.timeout))
            words = [store.get(key).decode() for key in keys]
        except dist.DistError:
            words = [_LOST]
        if _LOST in words:
            membership.over = "this rank has failed, and others have not"
    if membership.over is not None:
        raise PeerFailed(
            f"ranks can't go on together: {membership.over}. That error was caught, but ranks are no longer at the "
            "same place. End all of them and start anew; resume=True goes on from the newest checkpoint"
        )


def _soon(ask: Callable[[], T]) -> T | None:
    """The answer of the store; None where it is gone, or is on a host whose network is: that would be waited for."""
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


def _is_lost(error: BaseException) -> bool:
    """Whether torch says that the other ranks can't be reached, or somebody who has heard it from torch."""
    if isinstance(error, PeerFailed) and error.__cause__ is not None:
        return _is_lost(error.__cause__)
    if isinstance(error, dist.DistError):
        return True
    return type(error) is RuntimeError and _OF_GLOO.search(str(error)) is not None


def _said(store: Any, world: World) -> str | None:
    """What the first rank that failed has told, where one has."""
    for rank in range(world.size):
        key = _key(membership.failures, rank)
        if rank != world.rank and store.check([key]) and (said := store.get(key).decode()) != _LOST:
            return f"rank {rank} has failed: {said}; its traceback is in its own output"
    return None


def _unknown(error: BaseException) -> str:
    if isinstance(error, PeerFailed):
        return str(error)
    line = (str(error).splitlines() or [type(error).__name__])[0]
    line = line.removeprefix("Got the following error when running the callback: RuntimeError: ")  # DDP's words
    reason = re.sub(r"^\[[^\]]*\] ", "", line).partition(". This is typically")[0]  # without gloo's file and advice
    return (
        f"the connection to the other ranks was lost ({reason}): one of them was killed, is stuck, or its network is "
        "gone; the output of the rank that ended first says more"
    )
