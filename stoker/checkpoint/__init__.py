"""checkpoint: saves the state of a training as a directory that is complete or absent, and reads it back.

`Checkpoint` holds the user's settings. A `Store` finds, reads and writes the checkpoints of a run; a `Saver` writes
them on a thread while the training continues. `model_state` and `random_state` are what your own loop saves. Reading a
checkpoint runs no code, and damaged ones are skipped with a message.
"""

from typing import TYPE_CHECKING

from stoker._lazy import import_on_use
from stoker.checkpoint._frozen import Frozen, choose_left_out, count_bytes, fingerprint_tensors
from stoker.checkpoint._manifest import Moment, Place, Saved
from stoker.checkpoint._model_state import check_model_state, has_extra_state, load_model_state, model_state
from stoker.checkpoint._policy import Checkpoint, Policy
from stoker.checkpoint._rng import RandomWatch, random_state, set_random_state
from stoker.checkpoint._unsaved import Unsaved

if TYPE_CHECKING:
    from stoker.checkpoint._saver import Saver
    from stoker.checkpoint._store import Found, Store
else:  # what a plain fit does not use
    __getattr__, __dir__ = import_on_use(__name__, {"_saver": "Saver", "_store": "Found Store"})

__all__ = [
    "Checkpoint",
    "Found",
    "Frozen",
    "Moment",
    "Place",
    "Policy",
    "Saved",
    "Saver",
    "Store",
    "load_model_state",
    "model_state",
    "random_state",
    "set_random_state",
]
