"""`Learner` says what to train, `fit` on which data and for how long, and `Fitted` is the result.

This package has no training logic: it turns arguments into a `stoker.engine.Fit`, opens or resumes the run, and trains.
"""

from stoker.learner._fitted import Fitted, load_for_inference
from stoker.learner._learner import Learner
from stoker.learner._lr_find import LrCurve, lr_find

__all__ = ["Fitted", "Learner", "LrCurve", "load_for_inference", "lr_find"]
