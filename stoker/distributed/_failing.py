"""One rank's exception ends all of them: the others say which rank it was, and what it said."""

import contextlib
import re
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any, TypeVar

import torch.distributed as dist

from stoker.distributed._join import broken
from stoker.distributed._world import World
from stoker.errors import PeerFailed

T = TypeVar("T")
_PATIENCE = 5.0  # seconds that an answer of the store is waited for, when something has failed
# How gloo's plain RuntimeErrors can be told from others; NCCL's and the store's have classes.
_LOST = ("gloo/transport", "Application timeout", "Connection closed by peer", "Connection reset by peer", "Timed out")


@contextlib.contextmanager
def failing(world: World) -> Iterator[None]:
    """Tells the others when this rank fails, and raises `PeerFailed` here when it was another one.

    The other ranks wait in a collective meanwhile. They find out when the connection to the rank that failed ends,
    which is when its process ends and its traceback has been printed; or when they have waited too long.
    """
    if world.size == 1:
        yield
        return
    store = dist.distributed_c10d._get_default_store()
    store.delete_key(_key(world.rank))  # an earlier failure of this rank that somebody has caught
    try:
        yield
    except PeerFailed:
        raise
    except BaseException as error:
        broken()
        if _is_lost(error):
            raise PeerFailed(_soon(lambda: _said(store, world)) or _unknown(error)) from error
        text = f"{type(error).__name__}: {error}"
        _soon(lambda: store.set(_key(world.rank), text))
        raise


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


def _key(rank: int) -> str:
    return f"stoker/failed/{rank}"


def _is_lost(error: BaseException) -> bool:
    """Whether torch says that the other ranks can't be reached."""
    said = str(error)
    return isinstance(error, dist.DistError) or (type(error) is RuntimeError and any(part in said for part in _LOST))


def _said(store: Any, world: World) -> str | None:
    """What the first rank that failed has told, where one has."""
    for rank in range(world.size):
        if rank != world.rank and store.check([_key(rank)]):
            said = store.get(_key(rank)).decode()
            return f"rank {rank} has failed: {said}; its traceback is in its own output"
    return None


def _unknown(error: BaseException) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    reason = re.sub(r"^\[[^\]]*\] ", "", line).partition(". This is typically")[0]  # without gloo's file and advice
    return (
        f"the connection to the other ranks was lost ({reason}): one of them was killed, is stuck, or its network is "
        "gone; the output of the rank that ended first says more"
    )
