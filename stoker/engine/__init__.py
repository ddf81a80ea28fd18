"""The engine: state, step, executors and the loop.

- `TrainState` is everything that a checkpoint saves.
- `TrainStep` is all that happens to one batch; it returns a `StepResult`.
- An executor (`stoker.engine.executors`) decides how a step runs; `plan_fit` chooses it.
- `train` is the loop over epochs and batches; `run` surrounds it with signals, rescue and the best weights.
- `Fit` holds these and the collaborators: `Checkpointer`, `Recorder`, `RankSync`, `StopSignals`, hooks.
"""

from stoker.engine._batch import Batch
from stoker.engine._checkpointer import Checkpointer
from stoker.engine._evaluate import evaluate, predict, validate
from stoker.engine._fit import Fit
from stoker.engine._planning import agree_on_plan, plan_fit
from stoker.engine._precision import PRECISIONS, LossScale, check_precision
from stoker.engine._rank_sync import RankSync, length_of
from stoker.engine._recorder import Recorder
from stoker.engine._rng import preserve_rng, seed_of_rank, seed_rng
from stoker.engine._run import Ending, run, use_best_weights
from stoker.engine._settings import Settings
from stoker.engine._signals import StopSignals
from stoker.engine._state import Progress, TrainState, upgrade_state
from stoker.engine._step import StepResult, TrainStep
from stoker.engine._totals import RunningTotals
from stoker.engine._train import train, train_epoch
from stoker.engine._weights import EMA, copy_weights, restore_weights
from stoker.engine.executors import Executor, Plan

__all__ = [
    "EMA",
    "PRECISIONS",
    "Batch",
    "Checkpointer",
    "Ending",
    "Executor",
    "Fit",
    "LossScale",
    "Plan",
    "Progress",
    "RankSync",
    "Recorder",
    "RunningTotals",
    "Settings",
    "StepResult",
    "StopSignals",
    "TrainState",
    "TrainStep",
    "agree_on_plan",
    "check_precision",
    "copy_weights",
    "evaluate",
    "length_of",
    "plan_fit",
    "predict",
    "preserve_rng",
    "restore_weights",
    "run",
    "seed_of_rank",
    "seed_rng",
    "train",
    "train_epoch",
    "upgrade_state",
    "use_best_weights",
    "validate",
]
