"""Which CUDA device the tests run on: a GPU, or the simulated one, which computes on the CPU."""

import os
from typing import TypeVar

T = TypeVar("T")
SIMULATED = bool(os.environ.get("SIMULATED_CUDA"))  # set by `python -m simulated_cuda`, for child processes too


def size(on_gpu: T, simulated: T) -> T:
    """A size of a test that is made for a GPU, and a smaller one that shows the same in the time of a CPU."""
    return simulated if SIMULATED else on_gpu
