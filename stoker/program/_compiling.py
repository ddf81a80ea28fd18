"""The mark that torch's own code looks at to leave out checks that read values."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compiling() -> Iterator[None]:
    """While it is open, torch's optimizers compute with tensors where they would read a counter.

    >>> with compiling():
    ...     torch.compiler.is_compiling()
    True
    """
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before
