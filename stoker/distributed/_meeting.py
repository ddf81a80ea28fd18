"""Where in a store the ranks of one start meet: not among the addresses that an earlier start has left there."""

import secrets
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from stoker.errors import PeerFailed

_LOOK = 0.02  # seconds between two looks


def meeting_place(store: Any, rank: int, size: int, timeout: timedelta) -> str:
    """A prefix of the store that all ranks of this start have in common, and no other start.

    Rank 0 counts the starts and says the number. What another rank reads may still be of the start before: so it leaves
    a token there, and goes on only when rank 0 of that start has seen it.
    """
    deadline = time.monotonic() + timeout.total_seconds()
    if rank == 0:
        place = f"stoker/{store.add('stoker/starts', 1)}"
        store.set("stoker/start", place)
        tokens = [_awaited(store, f"{place}/here/{other}", deadline) for other in range(1, size)]
        store.set(f"{place}/seen", " ".join(tokens))
        return place
    token = secrets.token_hex(8)
    while True:
        place = _awaited(store, "stoker/start", deadline)
        store.set(f"{place}/here/{rank}", token)
        while _now(store, "stoker/start") == place:
            if token in (_now(store, f"{place}/seen") or "").split():
                return place
            _pause(deadline)


def _awaited(store: Any, key: str, deadline: float) -> str:
    while (found := _now(store, key)) is None:
        _pause(deadline)
    return found


def _now(store: Any, key: str) -> str | None:
    """What stands there, where anything does."""
    try:
        return store.get(key).decode() if store.check([key]) else None
    except dist.DistError as error:
        raise PeerFailed("the store in which ranks meet is gone: torchrun, or rank 0, has ended") from error


def _pause(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise PeerFailed("the other ranks did not come: one of them has ended before it began, or can't be reached")
    time.sleep(_LOOK)
