"""Modes of torch: one that watches tensor operations, and a faster `no_grad`."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_set_grad_enabled = torch._C._set_grad_enabled


class NoGrad:
    """`torch.no_grad` in a third of its time (0.4 instead of 1.4 µs), for code that runs at every update.

    >>> with NoGrad():
    ...     torch.is_grad_enabled()
    False
    """

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        _set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        _set_grad_enabled(self._before)


class WatchingMode(TorchDispatchMode):
    """Sees every operation, as any `TorchDispatchMode`; torch does not load its compiler for it.

    By default torch keeps the compiler out of the code of a mode, and imports it for that, which takes seconds.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
