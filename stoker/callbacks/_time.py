"""Stopping when the time is up."""

import time
from collections.abc import Callable

from stoker.callbacks._callback import Callback
from stoker.callbacks._context import Context
from stoker.errors import InvalidArgument


class StopOnTime(Callback):
    """Stops after the first training batch that ends past the limit; the end milestones still come.

    >>> StopOnTime(minutes=90)
    StopOnTime(seconds=5400.0)

    The time runs from `on_fit_begin`, validation included, and anew in a run that is resumed or continued: it limits
    this process, and `fit(minutes=...)` the run. `clock` gives seconds that never go back.
    """

    transient = True

    def __init__(
        self,
        *,
        minutes: float | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (minutes is None) == (seconds is None):
            raise InvalidArgument("StopOnTime takes either minutes= or seconds=")
        limit = seconds if minutes is None else minutes * 60
        if limit is None or not limit > 0:
            raise InvalidArgument(f"StopOnTime needs a time above 0, got {limit!r} seconds")
        self.seconds = float(limit)
        self._clock = clock
        self._begun: float | None = None

    def on_fit_begin(self, ctx: Context) -> None:
        """Starts the clock."""
        self._begun = self._clock()

    def on_train_batch_end(self, ctx: Context) -> None:
        """Looks at the clock."""
        if self._begun is not None and self._clock() - self._begun >= self.seconds:
            limit = f"{self.seconds / 60:g} minutes" if self.seconds >= 60 else f"{self.seconds:g} seconds"
            ctx.stop(f"The time is up ({limit}) at epoch {ctx.epoch}, batch {ctx.batch_number}")
