"""The stations one after the other, and the verdict later: the host starts the next step while this one runs."""

from typing import Any

import torch

from stoker.program._plan import Plan
from stoker.program._runs import Runs, UnderWay
from stoker.program._stations import Stations


class Late(Runs):
    """Runs every batch operation by operation; whether its numbers were finite, the device decides and tells later."""

    __slots__ = ("_under_way",)

    def __init__(self, stations: Stations, plan: Plan, device: torch.device) -> None:
        super().__init__(stations, plan)
        self._under_way = UnderWay(device, by_run=True)

    def run(self, given: Any) -> None:
        """One batch; the first one is looked at, because it brings things into being."""
        stations = self._stations
        if not stations.begun:
            stations.run(given)
            return
        while self._under_way.is_full:
            self._hear(self._under_way)
        stations.ready()
        self._count(given)
        with stations.unread():
            stations.run(given)
            stations.verdict.end()
        self._under_way.send(stations.verdict.poison)
        self._under_way.started(self._number)
        stations.rest()

    def touched(self) -> None:
        """Nothing to look at again."""

    def settle(self) -> None:
        """Waits for every run that was started; raises where one was not finite."""
        while self._under_way:
            self._hear(self._under_way)

    def abandon(self) -> None:
        """Waits for every run that was started, without a word to other ranks: they may be elsewhere."""
        while self._under_way:
            number = self._under_way.ended()
            if number is None:
                self._stations.left_at(self._first_bad().place)
