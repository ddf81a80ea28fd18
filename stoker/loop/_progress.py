"""Telling how far a phase is, a few times a second: often enough to look at, too seldom to cost anything."""

import os
import time
from dataclasses import replace
from typing import Any

from stoker.loop._agree import agree
from stoker.loop._fit import Fit
from stoker.loop._signals import leave
from stoker.loop._tally import Tally
from stoker.record import Event

_TOLD_EVERY = 0.25  # seconds between two reports: each waits for the device once


def tell(fit: Fit, tally: Tally) -> None:
    """Progress of the phase that runs; limits in time, and what other ranks wish, are looked at with every batch."""
    ctx, now, minutes = fit.ctx, time.monotonic(), fit.settings.minutes
    if minutes is not None and ctx.phase == "train" and now - ctx.started > 60 * minutes:
        ctx.stop(f"Stopped after {minutes:g} minutes")
    if fit.leave_at is not None and fit.saver is not None and time.time() > fit.leave_at - fit.saver.slowest:
        leave(fit, f"Stopped before the deadline, in epoch {ctx.epoch}, batch {ctx.batch_number}")
    if fit.parent is not None and os.getppid() != fit.parent:
        fit.parent = None  # said once
        where = f"in epoch {ctx.epoch}, batch {ctx.batch_number}"
        leave(fit, f"torchrun is gone, which had started this process, {where}", terminated=True)
    _report(fit, tally, now)
    agree(fit)


def _report(fit: Fit, tally: Tally, now: float) -> None:
    """A few times a second, where somebody may look at it; of several ranks the first tells of its own samples."""
    ctx = fit.ctx
    if fit.coming is not None and fit.coming[1].is_here():
        told, later = fit.coming
        fit.coming = None
        fit.record.append(replace(told, values=later.values()))
    if now - fit.reported < _TOLD_EVERY or fit.coming is not None or not fit.world.is_first:
        return
    fit.reported = now
    _obey(fit)
    speed = tally.samples * fit.split.size / max(now - tally.since, 1e-9)
    extra: dict[str, Any] = {"phase": ctx.phase, "batches": ctx.batches, "samples_per_second": speed}
    later = tally.later(ctx.set_name)
    told = event(fit, "progress", {}, **extra)
    if later.is_here():
        fit.record.append(replace(told, values=later.values()))
    else:
        fit.coming = told, later  # told with one of the next batches: nobody waits for the device


def _obey(fit: Fit) -> None:
    """What somebody who watches has asked for, through the control file."""
    request = None if fit.control is None else fit.control.poll()
    if request is None:
        return
    by = f" by {request.by}" if request.by else ""
    if request.action == "save" and fit.ctx._requests.can_save:
        fit.ctx.save(f"asked for{by}")
    elif request.action == "stop":
        leave(fit, f"Asked to stop{by}, in epoch {fit.ctx.epoch}, batch {fit.ctx.batch_number}")


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
