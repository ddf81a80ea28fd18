"""Telling how far a phase is, a few times a second: often enough to look at, too seldom to cost anything."""

import time
from typing import Any

from stoker.loop._fit import Fit
from stoker.loop._signals import leave
from stoker.loop._tally import Tally
from stoker.record import Event

_TOLD_EVERY = 0.25  # seconds between two reports: each waits for the device once


def tell(fit: Fit, tally: Tally) -> None:
    """Progress of the phase that runs; and the limits in time, which are looked at with every batch."""
    ctx, now, minutes = fit.ctx, time.monotonic(), fit.settings.minutes
    if minutes is not None and ctx.phase == "train" and now - ctx.started > 60 * minutes:
        ctx.stop(f"Stopped after {minutes:g} minutes")
    if fit.leave_at is not None and fit.saver is not None and time.time() > fit.leave_at - fit.saver.slowest:
        leave(fit, f"Stopped before the deadline, in epoch {ctx.epoch}, batch {ctx.batch_number}")
    if now - fit.reported < _TOLD_EVERY:
        return
    fit.reported = now
    values = tally.values(ctx.set_name, losses_only=True)
    speed = tally.samples / max(now - tally.since, 1e-9)
    extra: dict[str, Any] = {"phase": ctx.phase, "batches": ctx.batches, "samples_per_second": speed}
    fit.record.append(event(fit, "progress", values, **extra))


def event(fit: Fit, kind: str, values: dict[str, float], **extra: Any) -> Event:
    """An event at the place where the fit stands."""
    ctx = fit.ctx
    return Event(kind, time.time(), ctx.epoch, ctx.batch_number, ctx.update, values, extra=extra)


def length_of(loader: Any) -> int | None:
    """The batches of an epoch, where that is known ahead."""
    try:
        return len(loader)
    except TypeError:
        return None
