"""`Recorder`: writes the events of a fit, its curves, and its progress a few times a second."""

import math
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from stoker.callbacks import Context
from stoker.engine._curve import Curve
from stoker.engine._system import SystemMetrics
from stoker.engine._totals import RunningTotals, TotalsReading
from stoker.record import Control, Event, Record, Request

_SECONDS_BETWEEN_REPORTS = 0.25
_SECONDS_BETWEEN_FLUSHES = 1.0  # of the points of curves


class Recorder:
    """Writes to the record of a fit. Of several ranks, the first reports progress, of its own samples."""

    def __init__(self, ctx: Context, *, reports: bool = True, ranks: int = 1) -> None:
        self._ctx, self._reports, self._ranks = ctx, reports, ranks
        self.control: Control | None = None  # requests of people who watch the run
        self.update_facts: Callable[[Mapping[str, Any]], None] | None = None  # adds facts to `run.json`
        self.system: SystemMetrics | None = None  # of a fit with a run directory
        self._curve = Curve()
        self._reported = self._flushed = 0.0  # the last time, on the monotonic clock
        self._pending: tuple[Event, TotalsReading] | None = None  # progress whose losses are not on the host yet

    @property
    def record(self) -> Record:
        """The record that events go to."""
        return self._ctx.record

    def event(self, kind: str, values: dict[str, float] | None = None, *, text: str = "", **extra: Any) -> Event:
        """Returns an event at the current position, which is not recorded yet."""
        ctx = self._ctx
        return Event(kind, time.time(), ctx.epoch, ctx.batch_number, ctx.update, values or {}, text=text, extra=extra)

    def write(self, kind: str, values: dict[str, float] | None = None, *, text: str = "", **extra: Any) -> None:
        """Appends an event to the record."""
        self.record.append(self.event(kind, values, text=text, **extra))

    def write_error(self, error: BaseException) -> None:
        """Records the exception that ends the fit."""
        trace = "".join(traceback.format_exception(error))
        self.write("error", text=f"{type(error).__name__}: {error}", traceback=trace)

    def write_end(self, seconds: float, skipped: int, *, interrupted: bool = False) -> None:
        """Writes the last two events: why the fit stopped, and how far it came. `interrupted`: by a signal or user."""
        ctx, best = self._ctx, self._ctx.best
        points: dict[str, Any] = {}
        if self._reports:
            with suppress(RuntimeError):  # a device that has failed
                self._curve.end(ctx.update, ctx.lr)
                points = self._curve.take()
        found = None if best is None else {"epoch": best.epoch, "value": best.value, "monitor": best.name}
        self.write("stop", text=ctx.stopping or "")
        extra = {"best": found, "skipped": skipped, "interrupted": interrupted, "points": points}
        self.write("end", epochs=ctx.epoch, updates=ctx.update, seconds=seconds, **extra)

    def report_progress(self, totals: RunningTotals, now: float) -> Request | None:
        """Records the losses so far, a few times a second, without waiting for the device.

        Returns a request from a viewer of the run, to save or to stop, if there is one.
        """
        if not self._reports:
            return None
        ctx = self._ctx
        is_due = now - self._reported >= _SECONDS_BETWEEN_REPORTS
        if ctx.phase == "train" and (is_due or totals.can_be_read_often):
            self._curve.add_if_due(totals, ctx.update, ctx.lr)
        if self._pending is not None and self._pending[1].has_arrived():
            self._append_progress(*self._pending)
            self._pending = None
        if not is_due or self._pending is not None:
            return None
        self._reported = now
        request = None if self.control is None else self.control.poll()
        if self.system is not None and (values := self.system.read_if_due(now)):
            self.write("system", values)
        event, reading = self._progress_event(totals, now), TotalsReading(totals)
        if reading.has_arrived():
            self._append_progress(event, reading)
        else:
            self._pending = event, reading
        return request

    def count_updates_until_point(self, update: int) -> float:
        """After how many more updates the curve gets a point."""
        return max(1, self._curve.next_point - update) if self._reports else math.inf

    def flush(self, totals: RunningTotals) -> None:
        """Records all points so far, before a checkpoint saves the number of events; waits for the device."""
        if self._reports and self._ctx.phase == "train" and (points := self._curve.take(wait=True)):
            ctx = self._ctx
            extra = {"phase": "train", "set": "train", "batches": ctx.batches, "points": points}
            extra |= {"so_far": _means(TotalsReading(totals), "train"), "window": self._curve.state()}
            self.record.append(self.event("progress", self._curve.latest, **extra))

    def write_training(self, totals: RunningTotals, values: dict[str, float], losses: list[str]) -> None:
        """After the last batch of an epoch: records its final values, of all ranks, and the rest of its curve.

        `totals` are those of this rank, which the curve is made of.
        """
        self._pending = None  # progress would follow the final values
        extra: dict[str, Any] = {}
        if self._reports:
            self._curve.end_epoch(totals)
            extra = {"points": self._curve.take(), "window": self._curve.state()}
        self.write("train", values, losses=losses, **extra)

    def resume(self, totals: RunningTotals) -> None:
        """Continues the curve of a resumed record, whose events say where its open window began."""
        found = (event.extra["window"] for event in reversed(self.record.events) if "window" in event.extra)
        self._curve = Curve()
        try:
            self._curve.restore(next(found))
        except (StopIteration, LookupError, TypeError, ValueError, AttributeError):  # none yet, or a damaged one
            self._curve.begin_window(totals, self._ctx.update)

    def _progress_event(self, totals: RunningTotals, now: float) -> Event:
        ctx = self._ctx
        speed = totals.samples * self._ranks / max(now - totals.started, 1e-9)
        place = {"phase": ctx.phase, "set": ctx.set_name, "batches": ctx.batches, "samples_per_second": speed}
        return self.event("progress", **place)

    def _append_progress(self, event: Event, reading: TotalsReading) -> None:
        """Records a progress event; about once a second it also gets the points that are new."""
        training = event.extra["phase"] == "train"
        extra = {**event.extra, "so_far": _means(reading, event.extra["set"]), "points": {}}
        if training and self._reported - self._flushed >= _SECONDS_BETWEEN_FLUSHES:
            self._flushed = self._reported
            extra |= {"points": self._curve.take(), "window": self._curve.state()}
        self.record.append(replace(event, values=self._curve.latest if training else {}, extra=extra))


def _means(reading: TotalsReading, set_name: str) -> dict[str, float]:
    return {f"{set_name}/{name}": total / weight for name, (total, weight) in reading.sums().items() if weight > 0}
