"""Shares: of every batch each rank walks its own rows, so that all ranks together walk what one process walks."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.utils.data import DistributedSampler

from stoker.data._batches import Maker, Task
from stoker.data._feeds import Feed, Foreign, Numbered, Rows, Samples, Streamed
from stoker.data._ghost import Ghost
from stoker.data._given import whole
from stoker.data._pick import Pick
from stoker.errors import InvalidArgument


@dataclass(frozen=True)
class Share:
    """Which rows of a batch are those of one rank; the shares of all ranks, one after another, are the batch.

    >>> [Share(rank, 3).rows(7) for rank in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    >>> [(Share(rank, 2).rows(1), Share(rank, 2).is_empty(1)) for rank in range(2)]
    [((0, 1), True), ((0, 1), False)]
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if whole("rank", self.rank, least=0) >= whole("size", self.size, least=1):
            raise InvalidArgument(f"rank has to be less than size={self.size}, counted from 0; got {self.rank}")

    def rows(self, count: int) -> tuple[int, int]:
        """Where this share of so many rows starts and stops; that of the first row where it is empty."""
        return (0, 1) if self.is_empty(count) else (self._border(count, self.rank), self._border(count, self.rank + 1))

    def is_empty(self, count: int) -> bool:
        """Whether none of so many rows is in this share."""
        return self._border(count, self.rank) == self._border(count, self.rank + 1)

    def task(self, task: Task) -> Task:
        """What there is to be made of a batch for this share."""
        count = len(task.numbers)
        start, stop = self.rows(count)
        samples = None if task.samples is None else task.samples[start:stop]
        return Task(task.epoch, task.batch, task.numbers[start:stop], samples, self.rank, self.is_empty(count))

    def _border(self, count: int, rank: int) -> int:
        return count * rank // self.size


@dataclass(frozen=True)
class SharedPlan(Numbered):
    """The same batches in the same order, each cut down to one share of it."""

    share: Share

    def cuts(self, batch: int) -> Iterator[tuple[int, int]]:
        for first, last in super().cuts(batch):
            start, stop = self.share.rows(last - first)
            yield first + start, first + stop

    def ghosts(self, batch: int) -> Iterator[bool]:
        """Whether each of the `cuts` is a ghost."""
        return (self.share.is_empty(last - first) for first, last in super().cuts(batch))


@dataclass(frozen=True)
class SharedRows(Rows):
    """Columns in memory, of whose batches only one share is sliced or gathered."""

    plan: SharedPlan

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        batches = zip(super().open(epoch, batch), self.plan.ghosts(batch), strict=True)
        return (Ghost(rows) if ghost else rows for rows, ghost in batches)

    def pick(self, epoch: int, batch: int, after: Callable[..., Any] | None) -> Iterator[Pick]:
        picks = zip(super().pick(epoch, batch, after), self.plan.ghosts(batch), strict=True)
        return (replace(pick, ghost=True) if ghost else pick for pick, ghost in picks)


@dataclass(frozen=True)
class SharedMaker:
    """Makes one share of every batch, here or in workers."""

    maker: Maker
    share: Share

    def build(self, tasks: Iterable[Task], *, start: tuple[int, int] | None = None) -> Iterator[Any]:
        """The share of each batch; the samples of the other ranks are neither fetched nor transformed."""
        return self.maker.build(map(self.share.task, tasks), start=start)

    def prepare(self, tasks: Iterable[Task], *, start: tuple[int, int]) -> None:
        """Has the first shares made ahead."""
        self.maker.prepare(map(self.share.task, tasks), start=start)

    def close(self) -> None:
        """Ends the processes, if there are any."""
        self.maker.close()


def shared(feed: Feed, share: Share) -> Feed:
    """The feed of one share."""
    if isinstance(feed, Rows):
        return SharedRows(feed.view, SharedPlan(**asdict(feed.plan), share=share))
    if isinstance(feed, Streamed):
        _check_stream(feed)
    if isinstance(feed, Samples | Streamed):
        # With processes of its own: what others have prepared for (epoch, batch) is not this share of it.
        return replace(feed, maker=SharedMaker(copy.copy(feed.maker), share))
    if isinstance(feed, Foreign):
        _check_foreign(feed, share)
    return feed


def note(feed: Feed, share: Share) -> str | None:
    """What whoever trains has to know of the way in which the ranks share a feed."""
    if isinstance(feed, Streamed):
        return (
            f"each of the {share.size} ranks reads the whole stream and takes its share of every batch, so the stream "
            "has to give the same samples on all of them"
        )
    if isinstance(feed, Foreign):
        return f"each of the {share.size} ranks has a DataLoader of its own, with batches of its own{_uneven(feed)}"
    return None


def _check_stream(feed: Streamed) -> None:
    """A stream is divided here, so it can't be divided already, which one of Hugging Face's knows of itself."""
    if getattr(feed.stream.samples, "_distributed", None) is not None:
        raise InvalidArgument(
            "this stream is split by rank already (split_dataset_by_node), and would be split once more; give it "
            "unsplit: every rank reads it and takes its share of each batch"
        )


def _check_foreign(feed: Foreign, share: Share) -> None:
    """A DataLoader is taken as it is, so it has to give this rank's share by itself."""
    sampler = feed.distributed_sampler()
    if sampler is None:
        raise InvalidArgument(
            f"a DataLoader can't be shared by {share.size} ranks: each of them would walk all of it; give its dataset "
            "itself, with the batch_size of all ranks together, or give the DataLoader a DistributedSampler"
        )
    if (sampler.rank, sampler.num_replicas) != (share.rank, share.size):
        raise InvalidArgument(
            f"the DataLoader's {type(sampler).__name__} is for rank {sampler.rank} of {sampler.num_replicas}, and this "
            f"is rank {share.rank} of {share.size}; give it num_replicas={share.size} and rank={share.rank}, or give "
            "the dataset itself, with the batch_size of all ranks together"
        )


def _uneven(feed: Foreign) -> str:
    """What a sampler does with the samples that the ranks can't share evenly; nothing to say where they can."""
    sampler = feed.distributed_sampler()
    if not isinstance(sampler, DistributedSampler) or not isinstance(sampler.dataset, Sized):
        return ""
    count = len(sampler.dataset)
    more = sampler.total_size - count
    if more == 0:
        return ""
    return (
        f"; its DistributedSampler {'repeats' if more > 0 else 'leaves out'} {abs(more)} of {count} samples in every "
        "epoch, so that all ranks have as many (of a dataset given by itself, each is seen once)"
    )
