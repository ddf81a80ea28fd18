"""How each kind of source is cut into batches, and how several ranks share a batch."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from stoker.data._arguments import check_int
from stoker.data._batch import PaddingBatch, RowSelection
from stoker.data._build import InProcess, Task
from stoker.data._columns import Selection, View
from stoker.data._rng import permutation, preserve_generators
from stoker.data._source import Stream
from stoker.data._workers import Workers
from stoker.errors import BadData, InvalidArgument, WrongType


@dataclass(frozen=True)
class Share:
    """The rows of a batch that one rank has; the shares of all ranks, in order, are the batch.

    >>> [Share(rank, 3).rows(7) for rank in range(3)]
    [(0, 2, False), (2, 4, False), (4, 7, False)]
    >>> [Share(rank, 2).rows(1) for rank in range(2)]
    [(0, 1, True), (0, 1, False)]
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if check_int("rank", self.rank, least=0) >= check_int("size", self.size, least=1):
            raise InvalidArgument(f"rank has to be less than size={self.size}; ranks count from 0; got {self.rank}")

    def rows(self, count: int) -> tuple[int, int, bool]:
        """Returns where the share of `count` rows starts and stops; an empty one is the first row, as padding."""
        start, stop = count * self.rank // self.size, count * (self.rank + 1) // self.size
        return (start, stop, False) if start < stop else (0, 1, True)

    def cut(self, task: Task) -> Task:
        """Returns the task of building only this share of a batch."""
        start, stop, is_padding = self.rows(len(task.numbers))
        samples = None if task.samples is None else task.samples[start:stop]
        return Task(task.epoch, task.batch, task.numbers[start:stop], samples, self.rank, is_padding)


class BatchSource(ABC):
    """What a loader iterates over; there is one subclass for each kind of source."""

    @abstractmethod
    def count_samples(self) -> int:
        """Counts the samples in the source."""

    @abstractmethod
    def count_batches(self) -> int:
        """Counts the batches of an epoch."""

    @abstractmethod
    def check_start(self, batch: int) -> None:
        """Raises if an epoch is known to end before `batch`."""

    @abstractmethod
    def iterate(self, epoch: int, batch: int) -> Iterator[Any]:
        """Yields the batches of an epoch, from `batch` on."""

    @abstractmethod
    def for_rank(self, share: Share) -> "BatchSource":
        """Returns the same batches, cut to the share of one rank."""

    def describe_sharing(self) -> str | None:
        """Tells what a user has to know if several ranks share this source; None if nothing is special."""
        return None


def check_batch_exists(batch: int, batches: int) -> None:
    """Raises if `batch` is beyond the end of an epoch; the end itself is a position to continue from."""
    if batch > batches:
        raise InvalidArgument(f"batch {batch} does not exist: an epoch has {batches} batches, counted from 0")


def _count_batches(samples: int, size: int, drop_last: bool) -> int:
    return samples // size if drop_last else -(-samples // size)


@dataclass(frozen=True)
class Plan:
    """Numbered samples cut into batches, in an order that (seed, epoch) determines if there is a seed."""

    samples: int
    size: int
    drop_last: bool
    seed: int | None
    share: Share = Share()

    @property
    def batches(self) -> int:
        return _count_batches(self.samples, self.size, self.drop_last)

    def spans(self, batch: int) -> Iterator[tuple[int, int, bool]]:
        """Yields where the share of each batch starts and stops in the order, and whether it is padding."""
        samples, size, share = self.samples, self.size, self.share
        for start in range(batch * size, self.batches * size, size):
            stop = min(start + size, samples)
            if share.size == 1:
                yield start, stop, False
            else:
                low, high, is_padding = share.rows(stop - start)
                yield start + low, start + high, is_padding

    def order(self, epoch: int) -> Tensor | None:
        """Returns the sample numbers in the order of an epoch, or None for the order of the source."""
        return None if self.seed is None else permutation(self.samples, self.seed, epoch=epoch)


@dataclass(frozen=True)
class NumberedBatches(BatchSource):
    """Samples that have numbers, so that an epoch can start anywhere."""

    plan: Plan

    def count_samples(self) -> int:
        return self.plan.samples

    def count_batches(self) -> int:
        return self.plan.batches

    def check_start(self, batch: int) -> None:
        check_batch_exists(batch, self.plan.batches)


@dataclass(frozen=True)
class ColumnBatches(NumberedBatches):
    """Columns in memory: a batch is a slice or one gather."""

    view: View

    def iterate(self, epoch: int, batch: int) -> Iterator[Any]:
        view, order = self._resolve(epoch)
        if order is not None:
            order = _copy_order(order, view.device)  # once per epoch, so that no batch waits for the host
        for start, stop, is_padding in self.plan.spans(batch):
            rows = view.slice(start, stop) if order is None else view.gather(order[start:stop])
            yield PaddingBatch(rows) if is_padding else rows

    def for_rank(self, share: Share) -> BatchSource:
        return replace(self, plan=replace(self.plan, share=share))

    @property
    def has_row_selections(self) -> bool:
        """Whether the training step can gather the rows."""
        view = self.view.base if isinstance(self.view, Selection) else self.view
        return view.columns() is not None

    def select_rows(self, epoch: int, batch: int, transform: Callable[..., Any] | None) -> Iterator[RowSelection]:
        """Yields the batches of an epoch, from `batch` on, without gathering them."""
        view, order = self._resolve(epoch)
        if order is None:
            order = torch.arange(self.plan.samples, device=view.device)
        order = _copy_order(order, view.device)
        for start, stop, is_padding in self.plan.spans(batch):
            yield RowSelection(order[start:stop], view, transform, is_padding)

    def _resolve(self, epoch: int) -> tuple[View, Tensor | None]:
        """Returns the view and the order of its rows; a selection is part of the order and costs nothing per batch."""
        order = self.plan.order(epoch)
        if not isinstance(self.view, Selection):
            return self.view, order
        return self.view.base, self.view.numbers if order is None else self.view.numbers[order]


def _copy_order(order: Tensor, device: torch.device) -> Tensor:
    """Copies an order to a device; the host does not wait for a copy to a GPU."""
    if device.type != "cuda" or order.device == device:
        return order.to(device)
    return order.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class SampleBatches(NumberedBatches):
    """Samples that are read one by one, here or in workers."""

    builder: InProcess | Workers

    def iterate(self, epoch: int, batch: int) -> Iterator[Any]:
        return self.builder.build(self._tasks(epoch, batch), start=(epoch, batch))

    def for_rank(self, share: Share) -> BatchSource:
        # A copy of the builder has workers of its own: what the others prepare for an epoch is not this share.
        return SampleBatches(replace(self.plan, share=share), copy.copy(self.builder))

    def prepare(self, epoch: int) -> None:
        """Starts building the first batches of an epoch."""
        self.builder.prepare(self._tasks(epoch, 0), start=(epoch, 0))

    def _tasks(self, epoch: int, batch: int) -> Iterator[Task]:
        order, rank = self.plan.order(epoch), self.plan.share.rank
        for place, (start, stop, is_padding) in enumerate(self.plan.spans(batch), start=batch):
            numbers = list(range(start, stop)) if order is None else order[start:stop].tolist()
            yield Task(epoch, place, numbers, None, rank, is_padding)


@dataclass(frozen=True)
class StreamBatches(BatchSource):
    """An iterable, read by one reader in the main process, so that the order does not depend on the workers."""

    stream: Stream
    size: int
    drop_last: bool
    builder: InProcess | Workers
    share: Share = Share()

    def count_samples(self) -> int:
        stream: Any = self.stream.samples
        try:
            return len(stream)  # an IterableDataset may have a length
        except TypeError:
            raise WrongType(
                f"a stream ({type(stream).__name__}) has no length, so its batches can't be counted in advance; "
                "give it a __len__ if the number of samples is known"
            ) from None

    def count_batches(self) -> int:
        return _count_batches(self.count_samples(), self.size, self.drop_last)

    def check_start(self, batch: int) -> None:
        """Does nothing: the end of a stream is known only after reading it."""

    def iterate(self, epoch: int, batch: int) -> Iterator[Any]:
        return self.builder.build(self._tasks(epoch, batch))

    def for_rank(self, share: Share) -> BatchSource:
        if getattr(self.stream.samples, "_distributed", None) is not None:  # of a Hugging Face stream
            raise InvalidArgument(
                "this stream is split by rank already (split_dataset_by_node), and would be split a second time; pass "
                "it unsplit: every rank reads it and takes its share of each batch"
            )
        return replace(self, builder=copy.copy(self.builder), share=share)

    def describe_sharing(self) -> str | None:
        return (
            f"each of the {self.share.size} ranks reads the whole stream and takes its share of every batch, so the "
            "stream has to give the same samples on all ranks"
        )

    def _tasks(self, epoch: int, batch: int) -> Iterator[Task]:
        """Reads the batches of an epoch; the samples before `batch` are read and dropped."""
        reader, size = self.stream.read(epoch), self.size
        with preserve_generators():
            skipped = sum(1 for _ in islice(reader, batch * size))
        if batch and skipped <= (batch - 1) * size:
            raise InvalidArgument(
                f"batch {batch} of epoch {epoch} does not exist: the source ended after {skipped} samples"
            )
        place = batch
        while True:
            with preserve_generators():
                samples = list(islice(reader, size))
            if not samples and place == 0:
                raise BadData(
                    f"the source gave no samples in epoch {epoch}; an iterable has to start again each time that "
                    "iter() is called on it"
                )
            if not samples or (self.drop_last and len(samples) < size):
                return
            numbers = list(range(place * size, place * size + len(samples)))
            yield self.share.cut(Task(epoch, place, numbers, samples))
            place += 1
