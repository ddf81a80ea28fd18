"""`Learner` says what to train, `fit` on which data and for how long, and `Fitted` is the result.

This package has no training logic: it turns arguments into a `stoker.engine.Fit`, opens or resumes the run, and trains.
"""

from typing import TYPE_CHECKING

from stoker._lazy import import_on_use
from stoker.learner._fitted import Fitted, load_for_inference
from stoker.learner._learner import Learner

if TYPE_CHECKING:
    from stoker.learner._lr_find import LrCurve, lr_find
else:  # what a plain fit does not use
    __getattr__, __dir__ = import_on_use(__name__, {"_lr_find": "LrCurve lr_find"})

__all__ = ["Fitted", "Learner", "LrCurve", "load_for_inference", "lr_find"]
