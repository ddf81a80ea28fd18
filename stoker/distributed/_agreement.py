"""Requests of single ranks (to stop, to save), which all ranks act on after the same batch, almost without waiting."""

import contextlib
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from stoker.distributed._world import World, keep_alive

Requests = Mapping[str, Any]

_KEYS = ("stop", "interrupt", "terminated", "save", "warnings")
_RANKS_PER_BATCH = 64
_SECONDS = 0.02  # of training between two exchanges, in fits with short batches
_MOST = 16  # batches between two exchanges: the next ones may take longer than those before


class _Exchange(NamedTuple):
    """An exchange in flight."""

    work: Any
    message: torch.Tensor  # [2]: whether any rank has a request; minus the smallest interval, in batches
    own: Requests
    kind: str | None


class Agreement:
    """Exchanges the requests of all ranks between batches.

    >>> agreement = Agreement(World())
    >>> agreement.exchange({"save": "requested", "warnings": ["disk is nearly full"]})
    {'stop': None, 'interrupt': None, 'terminated': None, 'save': 'requested', 'warnings': [(0, 'disk is nearly full')]}
    >>> agreement.exchange({"stop": None}) is None
    True

    A request is a reason or True; None, False and [] mean no request. `warnings` are texts, and are returned as
    (rank, text). Every rank calls the same methods after the same batches. A flag, whether a rank has a request, is
    sent while the next batches are computed; the requests themselves are sent only if some rank has set its flag.

    The flag takes longer than a short batch, so it is not sent after every one: the ranks agree on an interval, with
    the flag. Each proposes as many batches as it computes in 20 ms, at most 16, and the smallest number counts; with
    `every_batch` a rank proposes 1, because its requests depend on batches, and not on a clock or a person.
    gloo's all-reduce is a ring, with 2 · 1023 hops of about 30 µs for 1024 ranks, so that there are at least as many
    batches as there are 64 ranks.
    """

    def __init__(self, world: World, *, every_batch: bool = False) -> None:
        self._world = world
        self._least = max(1, world.size // _RANKS_PER_BATCH)
        self._most = self._least if every_batch else max(_MOST, self._least)
        self._interval = self._remaining = self._least  # batches between two exchanges, and until the next one
        self._kind: str | None = None
        self._batches, self._since = 0, None  # since this time, in seconds
        self._own: dict[str, Any] = {}  # this rank's requests that were not sent yet
        self._pending: list[_Exchange] = []  # one or none
        # Also at the end of the process: torch's thread must not return to an interpreter that has shut down.
        weakref.finalize(self, _wait_for_pending, self._pending)

    def exchange(self, requests: Requests, *, wait: bool = False, kind: str | None = None) -> Requests | None:
        """Hands in this rank's requests, and returns those that all ranks sent the last time; None if there are none.

        Of each kind of request, the lowest rank's counts. With one process, requests are returned at once. With `wait`
        those that are handed in now are returned too, and afterwards nothing is in flight. `kind` says what batches
        these are: the interval of others does not count for them.
        """
        made = {key: value for key, value in requests.items() if value not in (None, False, [], ())}
        self._own = _merge(self._own, made)
        if self._world.size == 1:
            own, self._own = self._own, {}
            return _complete(_merge_ranks([own]))
        if wait:
            earlier = self._receive()
            own, self._own = self._own, {}
            found = _merge_ranks(self._world.all_gather(own)) if self._world.any(bool(own)) else {}
            self._restart(kind)
            return _complete(_merge(earlier, found))
        if kind != self._kind:
            self._restart(kind)
        self._batches += 1
        self._remaining -= 1
        if self._remaining:
            return None
        earlier = self._receive()
        self._send()
        self._remaining = self._interval
        return _complete(earlier)

    def _restart(self, kind: str | None) -> None:
        """The next batches may take another time."""
        self._kind, self._interval, self._remaining, self._since = kind, self._least, self._least, None

    def _send(self) -> None:
        """Starts an exchange of flags."""
        own, self._own = self._own, {}
        now, proposed = time.monotonic(), self._least
        if self._since is not None:
            proposed = int(_SECONDS * self._batches / max(now - self._since, 1e-9))
        self._since, self._batches = now, 0
        proposed = min(max(proposed, self._least), self._most)
        message = keep_alive(torch.tensor([bool(own), -proposed], dtype=torch.int32))
        work = dist.all_reduce(message, op=dist.ReduceOp.MAX, group=self._world.cpu_group(), async_op=True)
        self._pending.append(_Exchange(work, message, own, self._kind))

    def _receive(self) -> dict[str, Any]:
        """Waits for the exchange in flight, and returns the requests of all ranks."""
        if not self._pending:
            return {}
        work, message, own, kind = self._pending.pop()
        work.wait()
        found, interval = message.tolist()
        if kind == self._kind:
            self._interval = -interval
        return _merge_ranks(self._world.all_gather(own)) if found else {}


def _merge(earlier: Requests, later: Requests) -> dict[str, Any]:
    """Both as one: the earlier reason counts, and all warnings are kept."""
    warnings = [*earlier.get("warnings", ()), *later.get("warnings", ())]
    return {**later, **earlier} | ({"warnings": warnings} if warnings else {})


def _merge_ranks(requests_of_ranks: Iterable[Requests]) -> dict[str, Any]:
    """The requests of all ranks as one, with the rank beside each warning."""
    merged: dict[str, Any] = {}
    for rank, requests in enumerate(requests_of_ranks):
        merged = _merge(merged, {**requests, "warnings": [(rank, text) for text in requests.get("warnings", ())]})
    return {key: value for key, value in merged.items() if value != []}


def _complete(requests: Requests) -> Requests | None:
    return {**dict.fromkeys(_KEYS), "warnings": [], **requests} if requests else None


def _wait_for_pending(pending: list[_Exchange]) -> None:
    for each in pending:
        with contextlib.suppress(RuntimeError):  # the others may have ended
            each.work.wait()
