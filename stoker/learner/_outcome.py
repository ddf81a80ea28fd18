"""What came out of a fit, whether it ran just now or lies in a run's directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from stoker.distributed import World
from stoker.learner._prepare import Prepared
from stoker.metrics import Metric
from stoker.record import Best, Record
from stoker.steps import Supervised


@dataclass(frozen=True)
class Outcome:
    """The model with its kept weights, how the fit went, and how to judge it on other data."""

    model: nn.Module | None  # None for a run that was opened without its code
    record: Record
    best: Best | None
    epochs: int
    updates: int
    stopped: str
    supervised: Supervised | None
    metrics: Sequence[Metric]
    precision: str
    device: torch.device
    home: torch.device
    run: Path | None = None  # its directory, where it has one
    split: World | None = None  # among whom a device mesh splits batches; None: all processes that there are


def outcome_of(prepared: Prepared) -> Outcome:
    """The outcome of a fit that has ended."""
    fit = prepared.fit
    ctx, events = fit.ctx, fit.ctx.record.path
    return Outcome(
        model=fit.state.model,
        record=fit.ctx.record,
        best=ctx.best,
        epochs=ctx.epoch,
        updates=ctx.update,
        stopped=ctx.stopping or "",
        supervised=fit.step.supervised,
        metrics=fit.valid_metrics,
        precision=fit.settings.precision,
        device=fit.device,
        home=prepared.home,
        run=events.parent if events is not None else None,
        split=None if fit.parallel.mesh is None else fit.ranks.split,
    )
