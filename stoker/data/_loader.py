"""The loader: batches of a source, in an order that is a pure function of (seed, epoch)."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.data._batchable import Batchable, finished
from stoker.data._batches import Here, Recipe
from stoker.data._feeds import Feed, Foreign, Numbered, Rows, Samples, Streamed
from stoker.data._generators import generators_in, generators_of, set_states, states_of
from stoker.data._given import device_or_none, whole
from stoker.data._order import seed_of
from stoker.data._resident import resident, resident_bytes
from stoker.data._share import Share, note, shared
from stoker.data._source import Stream, as_source
from stoker.data._view import View
from stoker.data._walk import Walk
from stoker.data._workers import Workers
from stoker.errors import InvalidArgument, WrongType


class Loader:
    """Walks a source in batches; the same seed gives the same batches, whatever the number of workers.

    >>> x, y = torch.arange(10.0)[:, None], torch.arange(10)
    >>> loader = Loader((x, y), batch_size=4, shuffle=0)
    >>> [len(targets) for inputs, targets in loader]
    [4, 4, 2]
    >>> later = loader.at(epoch=5, batch=2)
    >>> len(later), [targets.tolist() for _, targets in later] == [targets.tolist() for _, targets in later]
    (1, True)

    Each `for` over a loader walks its next epoch, counted from 0, and so does each `next(iter(loader))`, which uses up
    an epoch for one batch; `at` starts anywhere and leaves the count alone.

    - `source`: a tensor or array, a tuple or mapping of them, a pandas, polars or Arrow table: columns in memory, whose
      samples and batches are copies, so that a transform or a training step may write into them. A list, a torch
      Dataset, a Hugging Face dataset: sample by sample, each as the source gives it. An iterable: in the order that it
      gives, by one reader. A torch `DataLoader`: as it is, and alone in needing no `batch_size`.
    - `shuffle`: a seed for the order, which changes with every epoch; it also seeds what a transform draws. Without it
      that seed is 0, and so it always is for an iterable, which can't be shuffled.
    - `workers`: processes that load ahead; columns in memory need none without a transform or batcher, and use none.
    - `batcher`: makes a batch, of any type, out of a list of samples; without one samples are stacked.
    - `transform`: a function of a sample (of its parts, where it is a tuple). What it draws from torch, numpy or
      `random` is a function of (seed, epoch, number of the sample in the source). One that is marked with `batchable`
      is a function of a batch instead.
    - `device`: where the batches' tensors go.
    """

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int | None = None,
        shuffle: int | None = None,
        workers: int = 0,
        batcher: Callable[[list[Any]], Any] | None = None,
        transform: Callable[..., Any] | None = None,
        drop_last: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        if isinstance(source, Loader):
            raise WrongType("this source is a Loader already; walk it as it is, or give its source to a new one")
        for name, function in (("batcher", batcher), ("transform", transform)):
            if function is not None and not callable(function):
                raise WrongType(f"{name} has to be a function; got {type(function).__name__}")
        self.source = source
        self.batch_size = batch_size
        self.shuffle = None if shuffle is None else seed_of("shuffle", shuffle)
        self.workers = whole("workers", workers, least=0)
        self.batcher, self.transform = batcher, transform
        self.drop_last = drop_last
        self.after = transform.function if isinstance(transform, Batchable) else None  # for `finished`
        self.device = device_or_none(device)
        self._feed = _feed(self)
        self._share = Share()
        self._next_epoch = 0

    def __iter__(self) -> Iterator[Any]:
        walk = self.at(epoch=self._next_epoch)
        self._next_epoch += 1
        return iter(walk)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._feed.batches()

    @property
    def samples(self) -> int:
        """Samples in the source, those included that `drop_last` leaves out."""
        return self._feed.samples()

    def at(self, *, epoch: int, batch: int = 0) -> "Walk":
        """The batches of one epoch from `batch` on, without making those before.

        >>> loader = Loader(torch.arange(6), batch_size=2)
        >>> list(loader.at(epoch=0, batch=1))
        [tensor([2, 3]), tensor([4, 5])]

        A stream and a `DataLoader` have to be read up to there, which takes the time that reading takes. A walk can be
        walked again, and gives the same batches; that of a `DataLoader` where its generators stand as they did before
        (see `replays`).
        """
        self._feed.check(whole("batch", batch, least=0))
        return Walk(self._feed, whole("epoch", epoch, least=0), batch, self.device, self.after)

    def finished(self, batch: Any) -> Any:
        """A batch of `Walk.raw`, moved to where training runs, through the batchable transform if there is one."""
        return finished(batch, self.after)

    def prepare(self, epoch: int) -> None:
        """Has the first batches of an epoch made in the background, for a walk that begins later; changes no batch.

        >>> with_workers = Loader([1, 2, 3], batch_size=2, transform=float, workers=1)
        >>> with_workers.prepare(epoch=0)
        >>> list(with_workers)
        [tensor([1., 2.]), tensor([3.])]

        Only workers have a background; without them, and for streams and a `DataLoader`, nothing happens. One epoch is
        prepared at a time, and a walk of any other gives it up.
        """
        epoch = whole("epoch", epoch, least=0)
        if isinstance(self._feed, Samples):
            self._feed.prepare(epoch)

    def close(self) -> None:
        """Ends the worker processes, and gives up what was prepared; a later walk starts others."""
        if isinstance(self._feed, Samples | Streamed):
            self._feed.maker.close()

    @property
    def draws_here(self) -> bool:
        """Whether batches are made with this process's random numbers, and so only on the thread that trains."""
        return not isinstance(self._feed, Rows) and not (isinstance(self._feed, Samples) and self.workers)

    @property
    def nbytes(self) -> int | None:
        """Bytes that `resident` takes: those of the columns' rows; None where there are no columns to keep."""
        return resident_bytes(self._feed.view) if isinstance(self._feed, Rows) else None

    def resident(self, device: torch.device | str) -> "Loader":
        """The same loader, whose columns stay on a device, so that its batches are made there.

        >>> loader = Loader(torch.arange(6), batch_size=2, shuffle=0)
        >>> there = loader.resident("cpu")
        >>> there.nbytes, [batch.tolist() for batch in there] == [batch.tolist() for batch in loader]
        (48, True)

        What is there already isn't copied. On the host the columns stay as they are.
        """
        if not isinstance(self._feed, Rows):
            raise InvalidArgument(
                f"a {type(self.source).__name__} can't stay on {device}: only columns in memory can, without a batcher "
                "and without a transform of single samples (batchable marks one of batches)"
            )
        twin = copy.copy(self)
        twin._feed = replace(self._feed, view=resident(self._feed.view, torch.device(device)))
        return twin

    def shared(self, rank: int, size: int) -> "Loader":
        """The same batches, of which this one of `size` ranks has its share; they joined in order are the batches.

        >>> batches = Loader(torch.arange(5), batch_size=3)
        >>> [list(batches.shared(rank, 2)) for rank in range(2)]
        [[tensor([0]), tensor([3])], [tensor([1, 2]), tensor([4])]]

        A share without a sample is a `Ghost`. `batch_size`, `samples`, `drop_last` and the places of `at` are those of
        whole batches. A stream is read by every rank. A `DataLoader` is taken with a `DistributedSampler` only.
        """
        share = Share(rank, size)
        if size == 1 or share == self._share:
            return self
        if self._share.size > 1:
            raise InvalidArgument(f"{self!r} is a share already; share the loader that it came from")
        twin = copy.copy(self)
        twin._feed, twin._share = shared(self._feed, share), share
        return twin

    @property
    def note_shared(self) -> str | None:
        """What is to be known of the way in which the ranks share it; None where all is as with one process."""
        return None if self._share.size == 1 else note(self._feed, self._share)

    @property
    def picks(self) -> bool:
        """Whether walks have `picks`: batches whose gathering is left to who trains."""
        return isinstance(self._feed, Rows) and self._feed.picks

    @property
    def replays(self) -> bool:
        """Whether the order comes from generators, so that these have to stand where they stood when the epoch began.

        >>> Loader(DataLoader(list(range(6)), shuffle=True)).replays, Loader(torch.arange(6), batch_size=2).replays
        (True, False)

        So it is for a torch `DataLoader`: the global generators, and those of `generators_state`.
        """
        return isinstance(self._feed, Foreign)

    @property
    def unrepeatable(self) -> str | None:
        """Why a run that is resumed may get other batches than one that was not; None where it gets the same."""
        if isinstance(self._feed, Foreign) and self._feed.loader.persistent_workers:
            return (
                "the workers of this DataLoader live on from epoch to epoch (persistent_workers=True), and where their "
                "random numbers stand can't be saved; what a transform draws there is not what it would have drawn"
            )
        own = [] if isinstance(self._feed, Foreign | Rows) else generators_in(self.source)
        if own:
            return (
                f"the {type(self.source).__name__} draws from a generator of its own ({', '.join(own)}), which can't "
                "be put back; draw from torch's, numpy's or Python's global one, which a Loader seeds for every sample"
            )
        return None

    def generators_state(self) -> dict[str, Any]:
        """Where a `DataLoader`'s generators stand beside the global ones: its own, its samplers', its dataset's.

        >>> loader = Loader(DataLoader(list(range(6)), shuffle=True, generator=torch.Generator().manual_seed(0)))
        >>> before = loader.generators_state()
        >>> first = list(loader)
        >>> loader.load_generators_state(before)
        >>> list(loader) == first
        True

        Tensors and plain values. To start inside an epoch, it is the state when the epoch began that is needed.
        """
        return states_of(generators_of(self._feed.loader)) if isinstance(self._feed, Foreign) else {}

    def load_generators_state(self, state: Mapping[str, Any]) -> None:
        """Puts the generators where they stood; a `StateMismatch` where there are others."""
        set_states(generators_of(self._feed.loader) if isinstance(self._feed, Foreign) else {}, state)

    def __repr__(self) -> str:
        said = {"batch_size": self.batch_size, "shuffle": self.shuffle, "workers": self.workers or None}
        settings = [f"{name}={value}" for name, value in said.items() if value is not None]
        if self._share.size > 1:
            settings.append(f"rank {self._share.rank} of {self._share.size}")
        return f"Loader({', '.join([type(self.source).__name__, *settings])})"


def _feed(loader: Loader) -> Feed:
    """The way to batches that the source and the functions allow."""
    source = as_source(loader.source)
    if isinstance(source, DataLoader):
        return _foreign(loader, source)
    if loader.batch_size is None:
        raise InvalidArgument("batch_size is missing: say how many samples a batch has, as in batch_size=32")
    size = whole("batch_size", loader.batch_size, least=1)
    samples = () if isinstance(source, Stream) else source
    transform = None if loader.after is not None else loader.transform
    recipe = Recipe(samples, transform, loader.batcher, loader.shuffle or 0)
    maker = Workers(recipe, loader.workers) if loader.workers else Here(recipe)
    if isinstance(source, Stream):
        if loader.shuffle is not None:
            raise InvalidArgument(
                f"a {type(loader.source).__name__} gives its samples in its own order, which shuffle= can't change; "
                "shuffle inside it, or give a source that has len() and indexing"
            )
        return Streamed(source, size, loader.drop_last, maker)
    plan = Numbered(len(source), size, loader.drop_last, loader.shuffle)
    if plan.batches() == 0:
        raise InvalidArgument(f"drop_last=True leaves no batch: {plan.count} samples are less than batch_size={size}")
    if not isinstance(source, View) or not source.vectorised:
        return Samples(plan, maker)
    if transform is None and loader.batcher is None:
        return Rows(source, plan)
    if loader.workers and source.device.type != "cpu":
        raise InvalidArgument(
            f"the source is on {source.device}, which worker processes can't use; keep it on the CPU and pass device= "
            "to move the batches, or use workers=0"
        )
    return Samples(plan, maker)


def _foreign(loader: Loader, source: DataLoader[Any]) -> Foreign:
    given = {
        "batch_size": loader.batch_size is not None,
        "shuffle": loader.shuffle is not None,
        "workers": loader.workers > 0,
        "batcher": loader.batcher is not None,
        "transform": loader.transform is not None and loader.after is None,
        "drop_last": loader.drop_last,
    }
    refused = [name for name, is_given in given.items() if is_given]
    if refused:
        raise InvalidArgument(
            f"a DataLoader is used as it is, so {', '.join(refused)} can't be given with it; set them in the "
            "DataLoader, or give its dataset to Loader"
        )
    return Foreign(source)
