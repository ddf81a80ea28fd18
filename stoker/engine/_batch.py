"""The one kind of batch inside the engine."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stoker._tree import first_tensor
from stoker.data import RowSelection


@dataclass(slots=True)
class Batch:
    """A batch of training data, and what the training step has to know about it.

    >>> import torch
    >>> Batch((torch.ones(4, 2), torch.ones(4))).samples
    4
    """

    value: Any  # what the loader returned; or a `RowSelection`, whose rows the training step gathers itself
    epoch: int = 0
    number: int = 0  # from 1 in its epoch
    closes_window: bool = True  # the last micro-batch of an update
    is_padding: bool = False  # this rank has no sample of the global batch: it takes part with one that does not count
    mix: tuple[Any, Tensor] | None = None  # other targets, and how much the batch's own targets count, [samples]

    def gather(self) -> Any:
        """The batch as the model sees it."""
        return self.value.gather() if isinstance(self.value, RowSelection) else self.value

    @property
    def samples(self) -> int:
        """The number of samples in it."""
        return len(self.value) if isinstance(self.value, RowSelection) else count_samples(self.value)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number."""
        return self.epoch, self.number


def count_samples(value: Any) -> int:
    """The length of the first tensor in a batch; 1 if it has none."""
    found = first_tensor(value)
    return len(found) if found is not None and found.dim() else 1
