"""The engine: state, step, executors and the loop.

- `TrainState` is everything that a checkpoint saves.
- `TrainStep` is all that happens to one batch; it returns a `StepResult`.
- An executor (`stoker.engine.executors`) decides how a step runs; `plan_fit` chooses it.
- `train` is the loop over epochs and batches; `run` adds the executor, rescue and the best weights.
- `Fit` holds these and the collaborators: `Checkpointer`, `Recorder`, `StopSignals`, hooks.
"""

from stoker.engine._batch import Batch
from stoker.engine._checkpointer import Checkpointer
from stoker.engine._deterministic import check_deterministic
from stoker.engine._evaluate import check_valid_sets, evaluate, predict, validate
from stoker.engine._fit import Fit
from stoker.engine._micro_batches import split_batch
from stoker.engine._plan import Plan, agree_on_plan, plan_fit
from stoker.engine._precision import PRECISIONS, LossScale, check_precision
from stoker.engine._rank_state import gather_state, own_state
from stoker.engine._ranks import Ranks
from stoker.engine._recompute import find_recomputed
from stoker.engine._recorder import Recorder
from stoker.engine._rng import preserve_rng, seed_of_rank, seed_rng
from stoker.engine._run import Ending, run, use_best_weights
from stoker.engine._settings import Settings
from stoker.engine._signals import TERMINATED, StopSignals
from stoker.engine._state import Progress, TrainState, upgrade_state
from stoker.engine._step import StepResult, TrainStep
from stoker.engine._streams import length_of, stop_streams_together
from stoker.engine._system import SystemMetrics
from stoker.engine._totals import RunningTotals
from stoker.engine._train import train
from stoker.engine._weights import EMA, ModelWithLoss, WeightCopy, copy_weights, join_loss, restore_weights
from stoker.engine.executors import Executor

__all__ = [
    "EMA",
    "PRECISIONS",
    "TERMINATED",
    "Batch",
    "Checkpointer",
    "Ending",
    "Executor",
    "Fit",
    "LossScale",
    "ModelWithLoss",
    "Plan",
    "Progress",
    "Ranks",
    "Recorder",
    "RunningTotals",
    "Settings",
    "StepResult",
    "StopSignals",
    "SystemMetrics",
    "TrainState",
    "TrainStep",
    "WeightCopy",
    "agree_on_plan",
    "check_deterministic",
    "check_precision",
    "check_valid_sets",
    "copy_weights",
    "evaluate",
    "find_recomputed",
    "gather_state",
    "join_loss",
    "length_of",
    "own_state",
    "plan_fit",
    "predict",
    "preserve_rng",
    "restore_weights",
    "run",
    "seed_of_rank",
    "seed_rng",
    "split_batch",
    "stop_streams_together",
    "train",
    "upgrade_state",
    "use_best_weights",
    "validate",
]
