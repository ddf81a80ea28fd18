"""Declare and fit: a `Learner` says what to train, `fit` on what and for how long, a `Fitted` is what came out.

The room holds no training logic. It turns what the user said into what the loop works with, and hands it over.
"""

from stoker.learner._fitted import Fitted
from stoker.learner._learner import Learner
from stoker.learner._load import load_for_inference
from stoker.learner._lr_find import LrCurve, lr_find

__all__ = ["Fitted", "Learner", "LrCurve", "load_for_inference", "lr_find"]
