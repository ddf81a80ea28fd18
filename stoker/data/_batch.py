"""Batches: rows that are gathered later, padding batches, transforms of whole batches, and moving to a device."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker._tree import map_leaves
from stoker.data._columns import View
from stoker.errors import WrongType


class PaddingBatch(NamedTuple):
    """A batch for a rank whose share of the samples is empty, so that it takes part in collective operations.

    >>> from stoker.data import Loader
    >>> one_sample = Loader(torch.tensor([7]), batch_size=4)
    >>> [next(iter(one_sample.shared(rank, 2))) for rank in range(2)]
    [PaddingBatch(batch=tensor([7])), tensor([7])]

    It holds one sample that another rank has too. Do not count its loss, its metrics or its sample.
    """

    batch: Any


@dataclass(slots=True, eq=False)
class RowSelection:
    """A batch that is not gathered yet: row numbers, and the columns that they index.

    >>> from stoker.data import Loader
    >>> selection = next(Loader(torch.arange(0, 60, 10), batch_size=2).at(epoch=0, batch=1).row_selections())
    >>> selection.rows, selection.gather()
    (tensor([2, 3]), tensor([20, 30]))

    The training step gathers the rows, so that the gather is part of a CUDA graph or a compiled program.
    """

    rows: Tensor  # int64 [batch], on the columns' device
    source: View  # the same object for all batches of an epoch
    _transform: Callable[..., Any] | None = None
    is_padding: bool = False  # as in `PaddingBatch`

    def __len__(self) -> int:
        """Samples in the batch."""
        return len(self.rows)

    def gather(self) -> Any:
        """Returns the batch that the loader gives, after its batchable transform."""
        return transform_batch(self.source.gather(self.rows), self._transform)

    def columns(self) -> list[Tensor]:
        """Returns the tensors that the rows index."""
        columns = self.source.columns()
        assert columns is not None  # a loader gives row selections only if there are columns
        return columns

    def with_rows(self, rows: Tensor) -> "RowSelection":
        """Returns a selection of other rows of the same columns: the static input of a CUDA graph, for example."""
        return replace(self, rows=rows)

    def with_columns(self, columns: list[Tensor]) -> "RowSelection":
        """Returns a selection of the same rows of other tensors, given in the order of `columns()`."""
        return replace(self, source=self.source.with_columns(columns))


@dataclass(frozen=True)
class BatchTransform:
    """A function that `batchable` marks as one of batches."""

    function: Callable[..., Any]

    def __call__(self, *parts: Any) -> Any:
        return self.function(*parts)


def batchable(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of a batch (of its parts, if the batch is a tuple), for the `transform=` of a loader.

    >>> from stoker.data import Loader
    >>> flip = batchable(lambda images, labels: (images.flip(-1), labels))
    >>> images, labels = torch.arange(6).view(3, 2), torch.arange(3)
    >>> next(iter(Loader((images, labels), batch_size=2, transform=flip)))
    (tensor([[1, 0],
            [3, 2]]), tensor([0, 1]))

    It is called once per batch, after the batch is collated and moved: on the device, never in a worker. Columns in
    memory then need no work per sample. Its random numbers come from torch's global generator of that device, as
    dropout's do; they are part of the random state of training and not a function of the sample.
    """
    if not callable(transform):
        raise WrongType(f"batchable marks a function of a batch; got {type(transform).__name__}")
    return transform if isinstance(transform, BatchTransform) else BatchTransform(transform)


def call_with_parts(function: Callable[..., Any], sample: Any) -> Any:
    """Calls a function of a sample or a batch; the parts of a tuple are separate arguments."""
    return function(*sample) if isinstance(sample, tuple) else function(sample)


def transform_batch(batch: Any, transform: Callable[..., Any] | None) -> Any:
    """Applies a batchable transform, if there is one; a padding batch stays a padding batch."""
    if transform is None:
        return batch
    if isinstance(batch, PaddingBatch):
        return PaddingBatch(call_with_parts(transform, batch.batch))
    return call_with_parts(transform, batch)


def map_parts(function: Callable[[Any], Any], batch: Any) -> Any:
    """Applies a function to every leaf of a batch; a container that has a `.to` method counts as a leaf."""
    return map_leaves(function, batch, is_leaf=_can_move)


def _can_move(part: Any) -> bool:
    return hasattr(part, "to")


def move_batch(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a batch, and whatever else has a `.to` method, to a device.

    >>> move_batch({"x": torch.zeros(2), "names": ["a", "b"]}, torch.device("cpu"))
    {'x': tensor([0., 0.]), 'names': ['a', 'b']}
    """

    def move(part: Any) -> Any:
        if isinstance(part, Tensor):  # copies to the host are synchronous, because they are read at once
            return part.to(device, non_blocking=device.type != "cpu")
        return part.to(device) if hasattr(part, "to") and not isinstance(part, type) else part

    return map_parts(move, batch)
