"""What happens between batches besides training: progress, time limits, requests of people and of other ranks."""

import time

from stoker.engine._fit import Fit
from stoker.engine._totals import RunningTotals


def stop(fit: Fit, reason: str) -> None:
    """Ends the fit after this batch, for a reason that every rank finds without communication; the first is kept."""
    if fit.ctx.stopping is None:
        fit.ctx.stopping = reason


def report_progress(fit: Fit, totals: RunningTotals) -> None:
    """After each batch: checks time limits, reports progress, and acts on requests."""
    ctx, now, minutes = fit.ctx, time.monotonic(), fit.settings.minutes
    if minutes is not None and ctx.phase == "train" and now - ctx.started > 60 * minutes:
        ctx.stop(f"Stopped after {minutes:g} minutes")
    if fit.checkpointer is not None:
        fit.signals.check_deadline(fit.checkpointer.seconds_to_save)
    fit.signals.check_parent()
    request = fit.recorder.report_progress(totals, now)
    if request is not None:
        by = f" by {request.by}" if request.by else ""
        if request.action == "save" and fit.requests.can_save:
            ctx.save(f"requested{by}")
        elif request.action == "stop":
            fit.signals.request_interrupt(f"Stop requested{by}, in epoch {ctx.epoch}, batch {ctx.batch_number}")
    synchronize_ranks(fit)


def synchronize_ranks(fit: Fit, *, wait: bool = False) -> None:
    """Does what any rank has requested: to stop, to leave, to save, or to warn. With one process, does nothing."""
    agreed = fit.ranks.exchange(fit.requests, wait=wait)
    if agreed is None:
        return
    ctx = fit.ctx
    if agreed["leave"]:
        fit.signals.interrupt(agreed["leave"], terminated=bool(agreed["terminated"]))
    if agreed["stop"]:
        stop(fit, agreed["stop"])
    if agreed["save"] and fit.requests.can_save:
        fit.requests.save_reason = agreed["save"]
    if fit.ranks.world.is_first:
        known = {event.text for event in ctx.record.events_of("warning")}
        for rank, text in agreed["warnings"]:
            if text not in known:  # what all ranks say is recorded once
                known.add(text)
                ctx.warn(f"rank {rank}: {text}")
