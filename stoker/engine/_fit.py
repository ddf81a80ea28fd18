"""`Fit`: the parts of one fit, as the learner puts them together and the loop uses them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.callbacks import Context, Hooks, Requests
from stoker.data import Loader
from stoker.distributed import Parallel
from stoker.engine._checkpointer import Checkpointer
from stoker.engine._rank_sync import RankSync
from stoker.engine._recorder import Recorder
from stoker.engine._settings import Settings
from stoker.engine._signals import StopSignals
from stoker.engine._state import TrainState
from stoker.engine._step import TrainStep
from stoker.engine.executors import Plan
from stoker.metrics import Meter, Metric


@dataclass(slots=True)
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
    ranks: RankSync
    parallel: Parallel
    recorder: Recorder
    signals: StopSignals
    plan: Plan = field(default_factory=lambda: Plan("eager"))  # how the training step runs
    description: Sequence[str | Plan] = ()  # what was decided, as text
    checkpointer: Checkpointer | None = None

    def describe(self) -> list[str]:
        """The plan of the whole fit as lines of text, as far as it is known now."""
        return [line for each in self.description for line in (each.lines() if isinstance(each, Plan) else [each])]
