"""A batch before it is gathered: which rows, of which columns."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from stoker.data._batchable import finished
from stoker.data._view import View


@dataclass(slots=True, eq=False)
class Pick:
    """Rows of columns that are still to be gathered: the gather itself is then a part of the training step.

    >>> import torch
    >>> from stoker.data import Loader
    >>> pick = next(Loader(torch.arange(0, 60, 10), batch_size=2).at(epoch=0, batch=1).picks())
    >>> pick.numbers, pick.batch()
    (tensor([2, 3]), tensor([20, 30]))
    """

    numbers: Tensor  # int64 [batch], on the columns' device
    _view: View[Any]
    _after: Callable[..., Any] | None = None
    ghost: bool = False  # as in `Ghost`

    @property
    def source(self) -> Any:
        """What the rows are of; the same object for all picks of a walk."""
        return self._view

    def __len__(self) -> int:
        """Samples in the batch."""
        return len(self.numbers)

    def batch(self) -> Any:
        """The batch that the loader gives, a batchable transform included."""
        return finished(self._view.gather(self.numbers), self._after)

    def of(self, numbers: Tensor) -> "Pick":
        """Other rows of the same columns: those that a CUDA graph reads out of a tensor that stays, say."""
        return replace(self, numbers=numbers)

    def columns(self) -> list[Tensor]:
        """The tensors that the rows are taken of."""
        columns = self._view.columns()
        assert columns is not None  # else there are no picks
        return columns

    def with_columns(self, columns: list[Tensor]) -> "Pick":
        """The same rows of other tensors, in the order of `columns`: of fake ones, in a trace."""
        return replace(self, _view=self._view.with_columns(columns))
