"""The four ways to batches, one for each kind of source: rows of columns, samples by number, a stream, a DataLoader."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from stoker.data._batches import Maker, Task, tasks_in_order, tasks_of_stream
from stoker.data._generators import generators_of, set_states, states_of
from stoker.data._order import own_random_numbers, permutation
from stoker.data._pick import Pick
from stoker.data._source import Stream, tell_epoch
from stoker.data._view import View
from stoker.errors import InvalidArgument, WrongType


class Feed(Protocol):
    """What a loader walks."""

    def samples(self) -> int:
        """Samples in the source."""
        ...

    def batches(self) -> int:
        """Batches in an epoch."""
        ...

    def check(self, batch: int) -> None:
        """Raises where an epoch can't start at `batch`."""
        ...

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        """The batches of an epoch, from `batch` on."""
        ...


def counted(samples: int, size: int, drop_last: bool) -> int:
    """The batches that so many samples make."""
    return samples // size if drop_last else -(-samples // size)


@dataclass(frozen=True)
class Numbered:
    """Samples that have numbers, cut into batches, in an order keyed by (seed, epoch) where there is a seed."""

    count: int
    size: int
    drop_last: bool
    shuffle: int | None

    def batches(self) -> int:
        return counted(self.count, self.size, self.drop_last)

    def check(self, batch: int) -> None:
        if batch > self.batches():  # the end itself is a place to continue from
            raise InvalidArgument(f"there is no batch {batch}: an epoch has {self.batches()}, counted from 0")

    def cuts(self, batch: int) -> Iterator[tuple[int, int]]:
        """Where each batch starts and stops in the order, from `batch` on."""
        starts = range(batch * self.size, self.batches() * self.size, self.size)
        return ((start, min(start + self.size, self.count)) for start in starts)

    def order(self, epoch: int) -> Tensor | None:
        """The numbers in this epoch's order; `None` where that is the source's own."""
        return None if self.shuffle is None else permutation(self.count, self.shuffle, epoch=epoch)


def there(order: Tensor, device: torch.device) -> Tensor:
    """An order on a device; the host does not wait for the copy to a GPU."""
    if device.type != "cuda" or order.device == device:
        return order.to(device)
    return order.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Rows:
    """Columns in memory: a batch is a slice, or one gather."""

    view: View[Any]
    plan: Numbered

    def samples(self) -> int:
        return self.plan.count

    def batches(self) -> int:
        return self.plan.batches()

    def check(self, batch: int) -> None:
        self.plan.check(batch)

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        view, order = self.view.resolve(self.plan.order(epoch))
        if order is None:
            for start, stop in self.plan.cuts(batch):
                yield view.slice(start, stop)
        else:
            order = there(order, view.device)  # once an epoch, and then no batch waits for the host
            for start, stop in self.plan.cuts(batch):
                yield view.gather(order[start:stop])

    @property
    def picks(self) -> bool:
        """Whether the gather can be left to who trains."""
        return self.view.resolve(None)[0].columns() is not None

    def pick(self, epoch: int, batch: int, after: Callable[..., Any] | None) -> Iterator[Pick]:
        """The batches of an epoch, from `batch` on, still to be gathered."""
        view, order = self.view.resolve(self.plan.order(epoch))
        order = torch.arange(self.plan.count, device=view.device) if order is None else there(order, view.device)
        return (Pick(order[start:stop], view, after) for start, stop in self.plan.cuts(batch))


@dataclass(frozen=True)
class Samples:
    """Samples by number, each fetched by itself."""

    plan: Numbered
    maker: Maker

    def samples(self) -> int:
        return self.plan.count

    def batches(self) -> int:
        return self.plan.batches()

    def check(self, batch: int) -> None:
        self.plan.check(batch)

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        return self.maker.build(self._tasks(epoch, batch), start=(epoch, batch))

    def prepare(self, epoch: int) -> None:
        """Has the first batches of an epoch made."""
        self.maker.prepare(self._tasks(epoch, 0), start=(epoch, 0))

    def _tasks(self, epoch: int, batch: int) -> Iterator[Task]:  # the order is made when the first is asked for
        yield from tasks_in_order(self.plan.cuts(batch), self.plan.order(epoch), epoch=epoch, batch=batch)


@dataclass(frozen=True)
class Streamed:
    """An iterable, read by one reader in the main process, so that workers can't change its order."""

    stream: Stream
    size: int
    drop_last: bool
    maker: Maker

    def samples(self) -> int:
        stream: Any = self.stream.samples
        try:
            return len(stream)  # an IterableDataset may say it
        except TypeError:
            name = type(stream).__name__
            raise WrongType(
                f"a stream ({name}) does not say how many samples it has, so its batches can't be counted ahead; "
                "give it a __len__ if that is known"
            ) from None

    def batches(self) -> int:
        return counted(self.samples(), self.size, self.drop_last)

    def check(self, batch: int) -> None:
        """Only reading tells where a stream ends."""

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        tasks = tasks_of_stream(self.stream, size=self.size, drop_last=self.drop_last, epoch=epoch, batch=batch)
        return self.maker.build(tasks)


@dataclass(frozen=True)
class Foreign:
    """A torch DataLoader, which batches, shuffles and draws as it does by itself."""

    loader: DataLoader[Any]

    def samples(self) -> int:
        raise WrongType("a DataLoader does not say how many samples it gives; len() is its number of batches")

    def batches(self) -> int:
        try:
            return len(self.loader)
        except TypeError as error:  # over an IterableDataset
            raise WrongType(f"this DataLoader has no length: {error}") from None

    def check(self, batch: int) -> None:
        with suppress(WrongType):  # without a length, only reading tells where it ends
            if batch > self.batches():
                raise InvalidArgument(f"there is no batch {batch}: an epoch has {self.batches()}, counted from 0")

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        for thing in (self.loader.dataset, *self._samplers()):
            tell_epoch(thing, epoch)
        if epoch:
            self._wake()
        walk = iter(self.loader)
        # Read here, and not when the first batch is asked for: its generators may stand where they stood for now only.
        read = sum(1 for _ in islice(walk, batch))
        if read < batch:
            raise InvalidArgument(f"there is no batch {batch} in epoch {epoch}: the DataLoader ended after {read}")
        return walk

    def distributed_sampler(self) -> Any:
        """The sampler that knows of ranks (torch's `DistributedSampler`, or one like it); None where none does."""
        knowing = (each for each in self._samplers() if hasattr(each, "num_replicas") and hasattr(each, "rank"))
        return next(knowing, None)

    def _samplers(self) -> list[Any]:
        inner = getattr(self.loader.batch_sampler, "sampler", None)  # of one that the user has made
        return [self.loader.sampler, self.loader.batch_sampler, inner]

    def _wake(self) -> None:
        """Starts workers that live on from epoch to epoch, where another process has walked the epochs before.

        A DataLoader draws a seed when it starts them, and no more then. So this is to leave no trace in the generators.
        """
        if self.loader.persistent_workers and self.loader._iterator is None:
            generators = generators_of(self.loader)
            before = states_of(generators)
            with own_random_numbers():
                iter(self.loader)
            set_states(generators, before)
