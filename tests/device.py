"""Which CUDA device the tests run on: a GPU, or the simulated one, which computes on the CPU."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
SIMULATED = bool(os.environ.get("SIMULATED_CUDA"))  # set by `python -m simulated_cuda`, for child processes too


def size(on_gpu: T, simulated: T) -> T:
    """A size of a test that is made for a GPU, and a smaller one that shows the same in the time of a CPU."""
    return simulated if SIMULATED else on_gpu


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Within it, tensors may take this many bytes more than now.

    A GPU limits what torch has reserved. The simulated device limits the sum of all tensors, which does not depend on
    how the tests before have divided the memory.
    """
    now = torch.cuda.memory_allocated()
    if SIMULATED:
        control = importlib.import_module("simulated_cuda.control")
        control.set_memory_limit(now + more)
    else:
        torch.cuda.set_per_process_memory_fraction((now + more) / torch.cuda.get_device_properties(0).total_memory)
    try:
        yield
    finally:
        if SIMULATED:
            control.set_memory_limit(None)
        else:
            torch.cuda.set_per_process_memory_fraction(1.0)
