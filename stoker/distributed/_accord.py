"""What one rank wishes, agreed on by all: they act on it after the same batch, and hardly wait."""

import contextlib
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from stoker.distributed._world import World, kept
from stoker.errors import InvalidArgument

Wishes = Mapping[str, Any]

_KEYS = ("stop", "leave", "terminated", "save", "said")
_RANKS_A_BATCH = 64


class Accord:
    """The agreement of all ranks after a batch.

    >>> accord = Accord(World())
    >>> accord.hand_in({"save": "asked for", "said": ["disk is nearly full"]})
    {'stop': None, 'leave': None, 'terminated': None, 'save': 'asked for', 'said': [(0, 'disk is nearly full')]}
    >>> accord.hand_in({"stop": None}) is None
    True

    A wish is a reason or True; None, False and [] are none. `said` is what a rank has to say, and comes back as
    (rank, text). Every rank calls the same methods after the same batches. What travels is one flag, while the next
    batch is computed; texts travel only when some rank has raised it.

    `every`: the flag travels after so many batches. gloo's all-reduce is a ring, 2 · 1023 hops of some 30 µs with 1024
    ranks, so by default it is given one batch per 64 ranks.
    """

    def __init__(self, world: World, *, every: int | None = None) -> None:
        self._world = world
        self._every = every or max(1, world.size // _RANKS_A_BATCH)
        self._calls = 0
        self._mine: dict[str, Any] = {}  # wishes that have not been sent
        self._sent: list[tuple[Any, torch.Tensor, Wishes]] = []  # what is under way: one, or none
        # Also at the end of the process: torch's thread must not come back to a Python that is gone.
        weakref.finalize(self, _finish, self._sent)

    def hand_in(self, wishes: Wishes) -> Wishes | None:
        """Takes this rank's wishes, and gives what all ranks wished in the call before; None where that was nothing.

        Of each wish, the first rank's is heard. Where there is one process, it is heard at once.
        """
        self._note(wishes)
        self._calls += 1
        return _filled(self._exchanged()) if self._calls % self._every == 0 else None

    def settle(self, wishes: Wishes) -> Wishes | None:
        """The same, and waits for what is handed in now: afterwards nothing is under way."""
        self._note(wishes)
        earlier = self._exchanged()
        return _filled(_joint(earlier, self._answer()))

    def _note(self, wishes: Wishes) -> None:
        for key in wishes:
            if key not in _KEYS:
                raise InvalidArgument(f"ranks agree on {', '.join(_KEYS)}, not on {key!r}")
        wished = {key: value for key, value in wishes.items() if value not in (None, False, [], ())}
        self._mine = _joint(self._mine, wished)

    def _exchanged(self) -> dict[str, Any]:
        """Sends this rank's wishes, and gives what all ranks had sent the last time."""
        mine, self._mine = self._mine, {}
        if self._world.size == 1:
            return _heard([mine])
        earlier = self._answer()
        flag = kept(torch.tensor([bool(mine)], dtype=torch.int32))
        work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._world.texts(), async_op=True)
        self._sent.append((work, flag, mine))
        return earlier

    def _answer(self) -> dict[str, Any]:
        """What all ranks have sent, once it is here."""
        if not self._sent:
            return {}
        work, flag, mine = self._sent.pop()
        work.wait()
        return _heard(self._world.gathered(mine)) if flag.item() else {}


def _joint(earlier: Wishes, later: Wishes) -> dict[str, Any]:
    """Both as one: the earlier reason is kept, and everything is said."""
    said = [*earlier.get("said", ()), *later.get("said", ())]
    return {**later, **earlier} | ({"said": said} if said else {})


def _heard(everybodys: Iterable[Wishes]) -> dict[str, Any]:
    """The wishes of all ranks as one, with the rank at what was said."""
    heard: dict[str, Any] = {}
    for rank, wishes in enumerate(everybodys):
        heard = _joint(heard, {**wishes, "said": [(rank, text) for text in wishes.get("said", ())]})
    return {key: value for key, value in heard.items() if value != []}


def _filled(heard: Wishes) -> Wishes | None:
    return {**dict.fromkeys(_KEYS), "said": [], **heard} if heard else None


def _finish(sent: list[tuple[Any, torch.Tensor, Wishes]]) -> None:
    for work, _, _ in sent:
        with contextlib.suppress(RuntimeError):  # the others may be gone
            work.wait()
