"""The stations one after the other: the plan that is always right."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from stoker.program._plan import Plan
from stoker.program._stations import Stations


class Eager:
    """Runs every batch operation by operation."""

    __slots__ = ("_stations", "plan", "run")

    def __init__(self, stations: Stations, plan: Plan) -> None:
        self._stations, self.plan = stations, plan
        self.run = stations.run  # no frame of ours between the loop and the stations

    def touched(self) -> None:
        """Nothing to look at again."""

    def settle(self) -> None:
        """Nothing is under way."""

    def fitting(self) -> AbstractContextManager[None]:
        """Nothing has to surround it."""
        return nullcontext()

    def between(self) -> AbstractContextManager[Callable[[], AbstractContextManager[None]]]:
        """All memory is everybody's."""
        return nullcontext(nullcontext)
