"""`Recorder`: writes the events of a fit, and its progress a few times a second."""

import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from stoker.callbacks import Context
from stoker.engine._totals import PendingProgress, RunningTotals
from stoker.record import Control, Event, Record, Request

_SECONDS_BETWEEN_REPORTS = 0.25


class Recorder:
    """Writes to the record of a fit. Of several ranks, the first reports progress, of its own samples."""

    def __init__(self, ctx: Context, *, reports: bool = True, ranks: int = 1) -> None:
        self._ctx, self._reports, self._ranks = ctx, reports, ranks
        self.control: Control | None = None  # requests of people who watch the run
        self.update_facts: Callable[[Mapping[str, Any]], None] | None = None  # in `run.json`
        self._reported = 0.0  # on the monotonic clock
        self._pending: PendingProgress | None = None

    @property
    def record(self) -> Record:
        """The record that events go to."""
        return self._ctx.record

    def event(self, kind: str, values: dict[str, float] | None = None, *, text: str = "", **extra: Any) -> Event:
        """An event at the current position."""
        ctx = self._ctx
        return Event(kind, time.time(), ctx.epoch, ctx.batch_number, ctx.update, values or {}, text=text, extra=extra)

    def write(self, kind: str, values: dict[str, float] | None = None, *, text: str = "", **extra: Any) -> None:
        """Appends an event to the record."""
        self.record.append(self.event(kind, values, text=text, **extra))

    def write_error(self, error: BaseException) -> None:
        """Records the exception that ends the fit."""
        trace = "".join(traceback.format_exception(error))
        self.write("error", text=f"{type(error).__name__}: {error}", traceback=trace)

    def write_end(self, seconds: float, skipped: int) -> None:
        """The last two events: why the fit stopped, and how far it came."""
        ctx, best = self._ctx, self._ctx.best
        found = None if best is None else {"epoch": best.epoch, "value": best.value, "monitor": best.name}
        self.write("stop", text=ctx.stopping or "")
        self.write("end", epochs=ctx.epoch, updates=ctx.update, seconds=seconds, best=found, skipped=skipped)

    def report_progress(self, totals: RunningTotals, now: float) -> Request | None:
        """Records the losses so far, a few times a second, without waiting for the device.

        Returns a request from a viewer of the run, to save or to stop, if there is one.
        """
        if self._pending is not None and self._pending.has_arrived():
            self.record.append(self._pending.complete())
            self._pending = None
        if now - self._reported < _SECONDS_BETWEEN_REPORTS or self._pending is not None or not self._reports:
            return None
        self._reported = now
        request = None if self.control is None else self.control.poll()
        ctx = self._ctx
        speed = totals.samples * self._ranks / max(now - totals.started, 1e-9)
        event = self.event("progress", phase=ctx.phase, batches=ctx.batches, samples_per_second=speed)
        pending = PendingProgress(event, totals, ctx.set_name)
        if pending.has_arrived():
            self.record.append(pending.complete())
        else:
            self._pending = pending
        return request

    def drop_pending(self) -> None:
        """Drops a progress report whose values have not arrived when its phase ends."""
        self._pending = None
