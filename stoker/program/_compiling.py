"""The mark that torch's own code looks at to leave out checks that read values."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_inside = 0  # how many are inside, of all threads: torch's mark is one for the process


@contextmanager
def compiling() -> Iterator[None]:
    """While it is open, torch's optimizers compute with tensors where they would read a counter.

    >>> with compiling():
    ...     torch.compiler.is_compiling()
    True
    """
    global _inside
    with _lock:
        _inside += 1
        torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            torch.compiler._is_compiling_flag = _inside > 0
