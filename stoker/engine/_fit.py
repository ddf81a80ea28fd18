"""`Fit`: the parts of one fit, as the learner puts them together and the loop uses them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stoker.callbacks import Context, Hooks, Requests
from stoker.data import Loader
from stoker.distributed import Agreement, Parallel
from stoker.engine._checkpointer import Checkpointer
from stoker.engine._plan import Plan
from stoker.engine._ranks import Ranks
from stoker.engine._recorder import Recorder
from stoker.engine._settings import Settings
from stoker.engine._signals import StopSignals
from stoker.engine._state import TrainState
from stoker.engine._step import TrainStep
from stoker.engine._totals import RunningTotals
from stoker.metrics import Meter, Metric


@dataclass(slots=True, eq=False, repr=False)
class Fit:
    """The parts of one fit: settings, data, state, step, plan, and the collaborators of the loop."""

    settings: Settings
    device: torch.device
    train: Loader
    valid: Mapping[str, Loader]
    state: TrainState
    step: TrainStep
    learning_rates: Callable[[int, float], Any]  # (update, scale) → a learning rate, or one for each selector
    valid_metrics: Sequence[Metric]
    meters: Sequence[Meter]
    hooks: Hooks
    ctx: Context
    requests: Requests
    ranks: Ranks
    agreement: Agreement | None  # on requests of other ranks; None with one process
    parallel: Parallel
    recorder: Recorder
    signals: StopSignals
    recomputed: Sequence[nn.Module] = ()  # modules whose activations are not kept
    plan: Plan = field(default_factory=lambda: Plan("eager"))  # how the training step runs
    description: Sequence[str | Plan] = ()  # what was decided, as text
    checkpointer: Checkpointer = field(init=False)  # saves nothing, until the learner sets one for a run directory

    def __post_init__(self) -> None:
        self.checkpointer = Checkpointer(None, self.state, self.ranks, self.signals, self.requests)

    def describe(self) -> list[str]:
        """The plan of the whole fit as lines of text, as far as it is known now."""
        parts = [part.lines() if isinstance(part, Plan) else [part] for part in self.description]
        return [line for lines in parts for line in lines]

    def stop(self, reason: str) -> None:
        """Ends the fit after this batch, for a reason that every rank finds by itself; the first reason is kept.

        `ctx.stop` is for reasons of one rank: with several, it is a request, which all ranks serve together.
        """
        if self.ctx.stopping is None:
            self.ctx.stopping = reason

    def between_batches(self, totals: RunningTotals) -> None:
        """After each batch: checks time limits, reports progress, and acts on requests of people and other ranks."""
        ctx, now, minutes = self.ctx, time.monotonic(), self.settings.minutes
        if minutes is not None and ctx.phase == "train" and now - ctx.started > 60 * minutes:
            ctx.stop(f"Stopped after {minutes:g} minutes")
        if self.signals.deadline is not None:
            self.signals.check_deadline(self.checkpointer.seconds_to_save)
        self.signals.check_parent()
        request = self.recorder.report_progress(totals, now)
        if request is not None:
            by = f" by {request.by}" if request.by else ""
            if request.action == "save" and self.requests.can_save:
                ctx.save(f"requested{by}")
            elif request.action == "stop":
                self.signals.request_interrupt(f"Stop requested{by}, in epoch {ctx.epoch}, batch {ctx.batch_number}")
        self.synchronize_ranks()

    def synchronize_ranks(self, *, wait: bool = False) -> None:
        """Hands in what this rank requests, and does what any rank has requested: to stop, interrupt, save or warn.

        Every rank calls this after every batch, so that all act after the same one. With one process, does nothing.
        """
        if self.agreement is None:
            return
        own, self.requests.pending = self.requests.pending or {}, {}
        if self.ranks.world.is_first:
            own.pop("warnings", None)  # they are in the record already
        agreed = self.agreement.exchange(own, wait=wait, kind=self.ctx.set_name)
        if agreed is None:
            return
        if agreed["interrupt"]:
            self.signals.interrupt(agreed["interrupt"], terminated=bool(agreed["terminated"]))
        if agreed["stop"]:
            self.stop(agreed["stop"])
        if agreed["save"] and self.requests.can_save:
            self.requests.save_reason = agreed["save"]
        if self.ranks.world.is_first:
            known = {event.text for event in self.ctx.record.events_of("warning")}
            for rank, text in agreed["warnings"]:
                if text not in known:  # what all ranks say is recorded once
                    known.add(text)
                    self.ctx.warn(f"rank {rank}: {text}")
