"""When the epochs of a fit ended: one clock for all contenders, read after the device is done."""

import time
from itertools import pairwise

from benchmarks._harness import since_start


class Clock:
    """Call it at the end of every epoch, with whatever arguments a library gives its callbacks.

    `marks` are seconds since the process was asked for: Python's start and the imports are in them.
    """

    def __init__(self, device="cpu"):
        self.marks = []
        self._wait = _cuda_wait if device == "cuda" else None
        self._zero = time.perf_counter() - since_start()

    def __call__(self, *_, **__):
        if self._wait is not None:
            self._wait()
        self.marks.append(time.perf_counter() - self._zero)

    def rounds(self, warm, most=5):
        """Seconds for an epoch, in up to `most` stretches of the time after the first `warm` epochs."""
        marks = self.marks[warm - 1 :]
        stretches = min(most, len(marks) - 1)
        edges = [round(each * (len(marks) - 1) / stretches) for each in range(stretches + 1)]
        return [(marks[b] - marks[a]) / (b - a) for a, b in pairwise(edges)]


def _cuda_wait():
    import torch

    if torch.cuda.is_initialized():  # JAX's process leaves torch on the CPU, and waits by itself
        torch.cuda.synchronize()
