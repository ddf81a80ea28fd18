"""Requests of single ranks (to stop, to save), which all ranks act on after the same batch, almost without waiting."""

import contextlib
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from stoker.distributed._world import World, keep_alive

Requests = Mapping[str, Any]

_KEYS = ("stop", "interrupt", "terminated", "save", "warnings")
_RANKS_PER_BATCH = 64


class RequestFlag:
    """One bit that travels with the gradients: whether a rank has a request. It needs no message of its own."""

    __slots__ = ("found", "own")

    def __init__(self) -> None:
        self.own = False  # whether this rank has a request
        self.found: bool | None = None  # whether any rank has one; None as long as it was not sent

    def offer(self, own: bool) -> None:
        """Sets what the next gradients take along."""
        self.own, self.found = own, None

    def receive(self, found: bool) -> None:
        """Takes what has come with gradients; one batch may have several."""
        self.found = found or bool(self.found)


class Agreement:
    """Exchanges the requests of all ranks after every batch.

    >>> agreement = Agreement(World())
    >>> agreement.exchange({"save": "requested", "warnings": ["disk is nearly full"]})
    {'stop': None, 'interrupt': None, 'terminated': None, 'save': 'requested', 'warnings': [(0, 'disk is nearly full')]}
    >>> agreement.exchange({"stop": None}) is None
    True

    A request is a reason or True; None, False and [] mean no request. `warnings` are texts, and are returned as
    (rank, text). Every rank calls the same methods after the same batches. One flag per rank is sent while the next
    batch is computed; the requests themselves are sent only if some rank has set its flag.

    `every`: the flag is sent after so many batches. gloo's all-reduce is a ring, with 2 · 1023 hops of about 30 µs for
    1024 ranks, so the default is one batch per 64 ranks.

    `flag`: a `GradientReducer` can send it with the gradients of a batch; then it needs no message of its own. If those
    of the last batch have brought one, the next ones are expected to.
    """

    def __init__(self, world: World, *, every: int | None = None) -> None:
        self._world = world
        self.flag = RequestFlag()
        self._offered: dict[str, Any] | None = None  # the requests whose flag the next gradients take along
        self._every = every or max(1, world.size // _RANKS_PER_BATCH)
        self._calls = 0
        self._own: dict[str, Any] = {}  # this rank's requests that were not sent yet
        self._pending: list[tuple[Any, torch.Tensor, Requests]] = []  # the exchange in flight: one or none
        # Also at the end of the process: torch's thread must not return to an interpreter that has shut down.
        weakref.finalize(self, _wait_for_pending, self._pending)

    def exchange(self, requests: Requests, *, wait: bool = False) -> Requests | None:
        """Sends this rank's requests, and returns those that all ranks sent in the call before; None if there are none.

        Of each kind of request, the lowest rank's counts. With one process, requests are returned at once. With `wait`
        those that are sent now are returned too, and afterwards nothing is in flight.
        """
        made = {key: value for key, value in requests.items() if value not in (None, False, [], ())}
        self._own = _merge(self._own, made)
        if wait:
            return _complete(_merge(self._send_and_receive(wait=True), self._receive()))
        self._calls += 1
        is_due = self._calls % self._every == 0 or self.flag.found is not None
        return _complete(self._send_and_receive()) if is_due else None

    def _send_and_receive(self, *, wait: bool = False) -> dict[str, Any]:
        """Sends this rank's requests, and returns those that all ranks sent the last time.

        With `wait` they are sent by `_receive`, which follows.
        """
        own, self._own = self._own, {}
        if self._world.size == 1:
            return _merge_ranks([own])
        travels_with_gradients = self.flag.found is not None
        earlier = self._receive()
        self.flag.offer(bool(own))
        if travels_with_gradients or wait:
            self._offered = own
            return earlier
        flag = keep_alive(torch.tensor([bool(own)], dtype=torch.int32))
        work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._world.cpu_group(), async_op=True)
        self._pending.append((work, flag, own))
        return earlier

    def _receive(self) -> dict[str, Any]:
        """Waits for the exchange in flight, and returns the requests of all ranks."""
        if self._offered is not None:
            own, self._offered = self._offered, None
            found = self.flag.found
            if found is None:  # this batch had no gradients, or nothing was sent yet
                found = self._world.any(bool(own))
            return _merge_ranks(self._world.all_gather(own)) if found else {}
        if not self._pending:
            return {}
        work, flag, own = self._pending.pop()
        work.wait()
        return _merge_ranks(self._world.all_gather(own)) if flag.item() else {}


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


def _wait_for_pending(pending: list[tuple[Any, torch.Tensor, Requests]]) -> None:
    for work, _, _ in pending:
        with contextlib.suppress(RuntimeError):  # the others may have ended
            work.wait()
