"""Learning rates as tensors that a program reads, so that another rate is no other program."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Rates:
    """One tensor for a learning rate, or one for each selector; None until they are first set.

    >>> rates = Rates(torch.device("cpu"))
    >>> rates.set(0.5)
    >>> rates.tensors
    tensor(0.5000, dtype=torch.float64)
    """

    __slots__ = ("_device", "last", "tensors")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.tensors: Any = None
        self.last: Any = None  # what they were set to

    def set(self, lr: Any) -> None:
        """This update's rates; nothing is written where they are those of the last one."""
        if lr == self.last and type(lr) is float:
            return
        if names_in(lr) != names_in(self.last):
            self.tensors = None
        self.last = dict(lr) if isinstance(lr, Mapping) else lr
        if self.tensors is None:
            # As wide as Python's numbers, which eager updates take; fused kernels of a GPU read 32 bits.
            wide = torch.float64 if self._device.type == "cpu" else torch.float32
            keys = lr if isinstance(lr, Mapping) else (None,)
            made = {key: torch.zeros((), dtype=wide, device=self._device) for key in keys}
            self.tensors = made if isinstance(lr, Mapping) else made[None]
        if isinstance(lr, Mapping):
            for key, rate in lr.items():
                self.tensors[key].fill_(rate)
        else:
            self.tensors.fill_(lr)

    def all(self) -> list[Tensor]:
        """The tensors in a row."""
        found = self.tensors.values() if isinstance(self.tensors, Mapping) else (self.tensors,)
        return [rate for rate in found if rate is not None]

    def like(self, tensors: list[Tensor]) -> Any:
        """Others in the same form: stand-ins, in a trace."""
        if self.tensors is None:
            return None
        return dict(zip(self.tensors, tensors, strict=True)) if isinstance(self.tensors, Mapping) else tensors[0]


def names_in(lr: Any) -> tuple[Any, ...] | None:
    """What learning rates are for; None for a single one."""
    return tuple(lr) if isinstance(lr, Mapping) else None
