"""The loop that wires the rooms: a `Fit` in, a trained model and a record out.

`train` and `train_epoch` are the loop itself, on one screen; `running` is what surrounds it: signals,
exceptions, and the best weights. `evaluate` and `predict` are short forms for a model that is only asked. The one type
to know is `Fit`, all that one fit works with.
"""

from stoker.loop._evaluate import evaluate
from stoker.loop._fit import Fit, Settings
from stoker.loop._in_step import in_step
from stoker.loop._precision import PRECISIONS, Scaler, check_precision
from stoker.loop._predict import predict
from stoker.loop._program import agreed, planned
from stoker.loop._progress import length_of
from stoker.loop._random import put_back, random_state, seed_of_rank, seeded, set_random_state
from stoker.loop._ranks import of_this_rank
from stoker.loop._run import running, settle, tell_end
from stoker.loop._state import state_of, take_up
from stoker.loop._train import train, train_epoch
from stoker.loop._validate import validate
from stoker.loop._weights import Average, restore, snapshot

__all__ = [
    "PRECISIONS",
    "Average",
    "Fit",
    "Scaler",
    "Settings",
    "agreed",
    "check_precision",
    "evaluate",
    "in_step",
    "length_of",
    "of_this_rank",
    "planned",
    "predict",
    "put_back",
    "random_state",
    "restore",
    "running",
    "seed_of_rank",
    "seeded",
    "set_random_state",
    "settle",
    "snapshot",
    "state_of",
    "take_up",
    "tell_end",
    "train",
    "train_epoch",
    "validate",
]
