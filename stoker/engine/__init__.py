"""The engine: state, step, executors and the loop.

- `TrainState` is everything that a checkpoint saves.
- `TrainStep` is all that happens to one batch; it returns a `StepResult`.
- An executor (`stoker.engine.executors`) decides how a step runs; `plan_fit` chooses it.
- `train` is the loop over epochs and batches; `run` adds the executor, rescue and the best weights.
- `Fit` holds these and the collaborators: `Checkpointer`, `Recorder`, `StopSignals`, hooks.
"""

from stoker.engine._batch import Batch
from stoker.engine._begin import Kept, begin, continue_, explain_bad_state, resume
from stoker.engine._checkpointer import Checkpointer
from stoker.engine._deterministic import check_deterministic
from stoker.engine._evaluate import check_valid_sets, evaluate, predict
from stoker.engine._fit import Fit
from stoker.engine._micro_batches import split_batch
from stoker.engine._plan import Plan, agree_on_plan, plan_fit
from stoker.engine._precision import LossScale, check_precision
from stoker.engine._rank_state import gather_state, own_state
from stoker.engine._ranks import Ranks
from stoker.engine._recompute import find_recomputed
from stoker.engine._recorder import Recorder
from stoker.engine._rng import preserve_rng, seed_of_rank, seed_rng
from stoker.engine._run import Ending, run, use_best_weights
from stoker.engine._settings import Settings
from stoker.engine._signals import TERMINATED, StopSignals
from stoker.engine._state import TrainState, check_state
from stoker.engine._step import TrainStep
from stoker.engine._streams import length_of, stop_streams_together
from stoker.engine._system import SystemMetrics
from stoker.engine._totals import RunningTotals
from stoker.engine._weights import EMA, ModelWithLoss, WeightCopy, copy_weights, join_loss, restore_weights, weights_of

__all__: list[str] = []
