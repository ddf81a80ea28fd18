"""checkpoint: takes the state of a training and gives a directory, whole or not there, and the other way round.

`Checkpoint` is what a user says about saving, as pure policies; a `Store` is the checkpoints of a run; a `Saver` writes
them beside the training. `model_state` and `random_state` are the values that a loop of one's own saves with them.
Reading one runs no code, and what is damaged is skipped by name.
"""

from stoker.checkpoint._checkpoint import Checkpoint, deadline
from stoker.checkpoint._model import has_extra, load_model_state, model_state
from stoker.checkpoint._place import Moment, Place, Saved
from stoker.checkpoint._policy import Action, Delete, Policy, Rule, Save, composed, every, keep_best, keep_last
from stoker.checkpoint._random import RandomWatch, random_state, set_random_state
from stoker.checkpoint._saver import Saver
from stoker.checkpoint._store import Found, Store
from stoker.checkpoint._tree import State
from stoker.checkpoint._unsaved import Unsaved

__all__ = [
    "Action",
    "Checkpoint",
    "Delete",
    "Found",
    "Moment",
    "Place",
    "Policy",
    "RandomWatch",
    "Rule",
    "Save",
    "Saved",
    "Saver",
    "State",
    "Store",
    "Unsaved",
    "composed",
    "deadline",
    "every",
    "has_extra",
    "keep_best",
    "keep_last",
    "load_model_state",
    "model_state",
    "random_state",
    "set_random_state",
]
