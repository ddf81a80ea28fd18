"""From a loss and a model to gradients, as a value: take, clip, scale, add, accumulate, reduce over processes.

`Gradients` is the type to know. This package uses autograd and, during a call, `.grad`; it never writes a parameter.
"""

from stoker.gradients._accumulator import Accumulator
from stoker.gradients._backward import Differentiator, backward, needs_backward
from stoker.gradients._gradients import Gradients
from stoker.gradients._reducer import GradientReducer
from stoker.gradients._split import split_for_capture

__all__ = [
    "Accumulator",
    "GradientReducer",
    "Gradients",
    "backward",
]
