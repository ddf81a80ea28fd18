"""What one rank wishes, all of them do, after the same batch: to stop, to leave, to save; and what it says is told."""

from collections.abc import Mapping
from typing import Any

from stoker.loop._fit import Fit

_NOTHING: dict[str, Any] = {"stop": None, "leave": None, "terminated": False, "save": None, "warnings": []}


def agree(fit: Fit, *, now: bool = False) -> None:
    """Hands in what this rank wishes, and does what all wished a batch ago; `now`: waits, and does all of it.

    Every rank comes here after every batch, so that none of them acts alone. With one process there is nothing to do.
    """
    if fit.accord is None:
        return
    wishes, fit.ctx._requests.pending = fit.ctx._requests.pending or {}, {}
    if fit.world.is_first:
        wishes.pop("warnings", None)  # it is in the record already
    handed = {**_NOTHING, **wishes}
    agreed = fit.accord.settle(handed) if now else fit.accord.hand_in(handed)
    if agreed is not None:
        _act(fit, agreed)


def stop(fit: Fit, reason: str) -> None:
    """Ends the fit after this batch, for a reason that every rank knows by itself; the first one is kept."""
    if fit.ctx.stopping is None:
        fit.ctx.stopping = reason


def depart(fit: Fit, reason: str) -> None:
    """Ends the fit after this batch, to be gone on with later."""
    fit.interrupted = True
    if fit.ctx.stopping is None:  # of several reasons the first one is kept
        fit.left = fit.ctx.stopping = reason


def _act(fit: Fit, agreed: Mapping[str, Any]) -> None:
    ctx = fit.ctx
    if agreed["leave"]:
        fit.terminated = fit.terminated or agreed["terminated"]
        depart(fit, agreed["leave"])
    if agreed["stop"]:
        stop(fit, agreed["stop"])
    if agreed["save"] and ctx._requests.can_save:
        ctx._requests.save_reason = agreed["save"]
    if fit.world.is_first:
        said = {event.text for event in fit.record.events_of("warning")}
        for rank, text in agreed["warnings"]:
            if text not in said:  # what all of them say is said once
                said.add(text)
                ctx.warn(f"rank {rank}: {text}")
