"""A loss and a model in, gradients out, as a value: take, clip, scale, add, accumulate.

The one type to know is `Gradients`. The room touches autograd and, for the length of a call, `.grad`; it never
writes a parameter.
"""

from stoker.gradients._accumulate import Accumulator
from stoker.gradients._backward import backward, needs_backward
from stoker.gradients._differentiator import Differentiator
from stoker.gradients._gradients import Gradients
from stoker.gradients._shared import Shared
from stoker.gradients._spread import spread

__all__ = [
    "Accumulator",
    "Differentiator",
    "Gradients",
    "Shared",
    "backward",
    "needs_backward",
    "spread",
]
GradientReducer = Shared
split_long = spread
