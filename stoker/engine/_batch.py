"""`Batch`: what the engine knows of a batch, whatever the loader returned."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from stoker.data import RowSelection
from stoker.steps import count_samples


@dataclass(slots=True, eq=False, repr=False)
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
    size: int | None = None  # the number of samples that the loader put into it, if it is known
    is_padding: bool = False  # this rank has no sample of the global batch: it takes part with others that do not count
    parts: int | None = None  # the number of micro-batches, if this is one; 1 if other ranks may split their share
    mix: tuple[Any, Tensor] | None = (
        None  # of `ctx.loss_mix`: other targets, and how much the own ones count, [samples]
    )

    def gather(self) -> Any:
        """The batch as the model sees it."""
        return self.value.gather() if isinstance(self.value, RowSelection) else self.value

    @property
    def samples(self) -> int:
        """The number of samples in it."""
        return len(self.value) if isinstance(self.value, RowSelection) else count_samples(self.value, self.size)

    def later(self, rows: Tensor, count: int) -> "Batch":
        """The batch that comes so many batches later in a span, with these rows of the same columns."""
        return replace(self, value=self.value.with_rows(rows), number=self.number + count)

    @property
    def position(self) -> tuple[int, int]:
        """Epoch and number."""
        return self.epoch, self.number
