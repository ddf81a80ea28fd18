"""Runs that were started, and whose verdict is to come: on a GPU the host hears of it later, and never waits."""

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.program._plan import Plan
from stoker.program._stations import Stations

_RECENT = 32  # runs whose verdict may still be to come
_AHEAD = 2  # runs that may be under way: the device never waits for the host, and a NaN is heard of soon


class Under(NamedTuple):
    """A run that was started."""

    number: int
    given: Any
    place: Any


class Runs:
    """Counts the runs of stations, so that the one that was not finite can be found."""

    __slots__ = ("_number", "_recent", "_stations", "plan")

    def __init__(self, stations: Stations, plan: Plan) -> None:
        self._stations, self.plan = stations, plan
        self._number = 0  # of runs since the verdict was last cleared
        self._recent: deque[Under] = deque(maxlen=_RECENT)

    def _count(self, given: Any) -> None:
        """A run is about to start, or as good as started."""
        self._number += 1
        self._recent.append(Under(self._number, given, self._stations.place()))

    def fitting(self) -> AbstractContextManager[None]:
        """What surrounds all runs, and what happens between them."""
        return nullcontext()

    def between(self) -> AbstractContextManager[Callable[[], AbstractContextManager[None]]]:
        """What is computed between two runs, by batch: here all memory is everybody's."""
        return nullcontext(nullcontext)

    def _hear(self, under_way: "UnderWay") -> None:
        """Waits for the oldest run's verdict; of what was fine nobody asks for the batches any more."""
        number = under_way.ended()
        if number is None:
            self._fail()
            return
        while self._recent and self._recent[0].number <= number:
            self._recent.popleft()

    def _fail(self) -> None:
        """The first run that was not finite, again and with everybody watching."""
        bad = self._first_bad()
        self._stations.fail(bad.given, bad.place)

    def _first_bad(self) -> Under:
        verdict = self._stations.verdict
        number = verdict.at
        verdict.clear()
        bad = next(run for run in self._recent if run.number == number)
        self._number = 0
        self._recent.clear()
        return bad


class UnderWay:
    """Runs that the device has not ended yet, as far as the host knows, oldest first."""

    __slots__ = ("_device", "_events", "_flags", "_runs", "_started")

    def __init__(self, device: torch.device, *, by_run: bool) -> None:
        self._device, self._started = device, 0
        self._events = [torch.cuda.Event() for _ in range(_AHEAD + 1)]
        # Verdicts, as they come over: NaN where a run was bad. A graph writes always to the same place. Of many ranks
        # each has to hear the same after the same run, so that a later one's must not be there already.
        self._flags = [torch.zeros(()).pin_memory() for _ in (self._events if by_run else self._events[:1])]
        self._runs: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def is_full(self) -> bool:
        """Whether one has to end before another may start."""
        return len(self._runs) >= _AHEAD

    def send(self, poison: Tensor) -> None:
        """The verdict of the run that is being started, on its way to the host."""
        self._flags[(self._started + 1) % len(self._flags)].copy_(poison, non_blocking=True)

    def started(self, number: int) -> None:
        """Notes that all runs up to this number have been started."""
        self._started += 1
        event = self._events[self._started % len(self._events)]
        event.record(torch.cuda.current_stream(self._device))
        self._runs.append((event, self._flags[self._started % len(self._flags)], number))

    def ended(self) -> int | None:
        """Waits for the oldest: the number up to which all was fine, None where some run was not."""
        event, flag, number = self._runs.popleft()
        event.synchronize()
        if flag.item() == 0:  # on the host: nothing is asked of the device
            return number
        for event, _, _ in self._runs:
            event.synchronize()
        self._runs.clear()
        for each in self._flags:
            each.zero_()
        return None
