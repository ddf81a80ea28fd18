"""The loader: batches of a source, in an order that is a pure function of (seed, epoch)."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.data._arguments import check_function, check_int, either
from stoker.data._batch import BatchTransform, InProcess, Recipe, RowSelection, move_batch, transform_batch
from stoker.data._batching import (
    Batches,
    ColumnBatches,
    DataLoaderBatches,
    Plan,
    SampleBatches,
    Share,
    StreamBatches,
    find_generators,
    get_states,
    set_states,
)
from stoker.data._source import Stream, View, as_source, is_vectorized, make_resident, resident_bytes
from stoker.data._workers import Workers
from stoker.errors import InvalidArgument, WrongType

_DEFAULT_SEED = 0  # of `shuffle=True`, and of what a transform draws without shuffling


class Loader:
    """Iterates over a source in batches; the same seed gives the same batches for any number of workers.

    >>> x, y = torch.arange(10.0)[:, None], torch.arange(10)
    >>> loader = Loader((x, y), batch_size=4, shuffle=0)
    >>> [len(targets) for inputs, targets in loader]
    [4, 4, 2]
    >>> later = loader.at(epoch=5, batch=2)
    >>> len(later), [targets.tolist() for _, targets in later] == [targets.tolist() for _, targets in later]
    (1, True)

    Each `for` over a loader is the next epoch, counted from 0. An iteration counts as an epoch as soon as it is asked
    for a second batch, or ends: `next(iter(loader))` looks at the first batch, and the next `for` starts with it again.
    `at` starts anywhere and does not change the count.

    - `source`: a tensor or array, a tuple or mapping of them, a pandas, polars or Arrow table: columns in memory, whose
      samples and batches are copies, so that a transform or a training step may write into them. A list, a torch
      Dataset, a Hugging Face dataset: read sample by sample. An iterable: read in its own order, by one reader. A torch
      `DataLoader`: used as it is; only a `DataLoader` needs no `batch_size`.
    - `shuffle`: a seed for the order, which changes in every epoch; it also seeds what a transform draws. `True` is the
      seed 0: the order is the same in every run and on every rank, whatever `torch.manual_seed` was called with. `None`
      and `False` keep the order of the source, as an iterable always does; a transform then draws with seed 0.
    - `workers` (or `num_workers`): processes that build batches in advance. Columns in memory without a transform or
      batcher need no workers, and start none.
    - `batcher` (or `collate_fn`): makes a batch, of any type, of a list of samples. Without it samples are stacked.
    - `transform`: a function of a sample (of its parts, if it is a tuple). What it draws from torch, numpy or `random`
      is a function of (seed, epoch, number of the sample in the source). One that is marked with `batchable` is a
      function of a batch instead.
    - `drop_last`: leave out a last batch that is not full.
    - `device`: where the tensors of the batches go.
    """

    def __init__(
        self,
        source: Any,
        *,
        batch_size: int | None = None,
        shuffle: int | bool | None = None,
        workers: int | None = None,
        batcher: Callable[[list[Any]], Any] | None = None,
        transform: Callable[..., Any] | None = None,
        drop_last: bool = False,
        device: torch.device | str | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        if isinstance(source, Loader):
            raise WrongType("this source is a Loader already; iterate over it, or pass its source to a new Loader")
        self.source = source
        self.batch_size = batch_size
        self.shuffle = _seed_of(shuffle)
        self.workers = check_int("workers", either("workers", workers, "num_workers", num_workers) or 0, least=0)
        self.batcher = check_function("batcher", either("batcher", batcher, "collate_fn", collate_fn))
        self.transform = check_function("transform", transform)
        self.batch_transform = transform.function if isinstance(transform, BatchTransform) else None
        self.drop_last = drop_last
        self.device = _as_device(device)
        self._batches = _make_batches(self)
        self._share = Share()
        self._next_epoch = 0

    def __iter__(self) -> Iterator[Any]:
        epoch = self._next_epoch
        return self._iterate_and_count(iter(self.at(epoch=epoch)), epoch)

    def _iterate_and_count(self, batches: Iterator[Any], epoch: int) -> Iterator[Any]:
        for batch in batches:
            yield batch
            break
        # The caller has asked for a second batch: this is more than a look at the first one.
        self._next_epoch = max(self._next_epoch, epoch + 1)
        yield from batches

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._batches.count_batches()

    @property
    def samples(self) -> int:
        """Samples in the source, including those that `drop_last` leaves out."""
        return self._batches.count_samples()

    def at(self, *, epoch: int, batch: int = 0) -> "EpochBatches":
        """Returns the batches of one epoch from `batch` on, without building those before.

        >>> loader = Loader(torch.arange(6), batch_size=2)
        >>> list(loader.at(epoch=0, batch=1))
        [tensor([2, 3]), tensor([4, 5])]

        A stream and a `DataLoader` have to be read up to there. The result can be iterated over several times and gives
        the same batches; for a `DataLoader` only if its generators are in the same state (see `needs_rng_state`).
        """
        epoch, batch = check_int("epoch", epoch, least=0), check_int("batch", batch, least=0)
        if not isinstance(self._batches, StreamBatches):  # the end of a stream is known only after reading it
            self._batches.check_start(batch)
        return EpochBatches(self._batches, epoch, batch, self.device, self.batch_transform)

    def prepare(self, epoch: int) -> None:
        """Starts to build the first batches of an epoch in the workers, for an iteration that begins later.

        >>> loader = Loader([1, 2, 3], batch_size=2, transform=float, workers=1)
        >>> loader.prepare(epoch=0)
        >>> list(loader)
        [tensor([1., 2.]), tensor([3.])]

        Does nothing without workers, and for a stream or a `DataLoader`. One epoch is prepared at a time; an iteration
        over another epoch discards it.
        """
        epoch = check_int("epoch", epoch, least=0)
        if isinstance(self._batches, SampleBatches):
            self._batches.prepare(epoch)

    def close(self) -> None:
        """Stops the worker processes and discards what was prepared; a later iteration starts new ones."""
        if isinstance(self._batches, SampleBatches | StreamBatches):
            self._batches.builder.close()

    def shared(self, rank: int, size: int) -> "Loader":
        """Returns a loader with the share of one rank; the shares of all `size` ranks, in order, are the batches.

        >>> batches = Loader(torch.arange(5), batch_size=3)
        >>> [list(batches.shared(rank, 2)) for rank in range(2)]
        [[tensor([0]), tensor([3])], [tensor([1, 2]), tensor([4])]]

        An empty share is a `PaddingBatch`. `batch_size`, `samples`, `drop_last` and the positions of `at` refer to
        whole batches. Every rank reads a stream. A `DataLoader` needs a `DistributedSampler`.
        """
        share = Share(rank, size)
        if size == 1 or share == self._share:
            return self
        if self._share.size > 1:
            raise InvalidArgument(f"{self!r} is a share already; share the loader that it was made from")
        other = copy.copy(self)
        other._batches, other._share = self._batches.for_rank(share), share
        return other

    @property
    def sharing_note(self) -> str | None:
        """What is special about sharing this source among ranks; None if training is as in a single process."""
        if self._share.size > 1 and isinstance(self._batches, StreamBatches | DataLoaderBatches):
            return self._batches.describe_sharing()
        return None

    def resident(self, device: torch.device | str) -> "Loader":
        """Returns a loader whose columns stay on a device, so that batches are gathered there.

        >>> loader = Loader(torch.arange(6), batch_size=2, shuffle=0)
        >>> on_device = loader.resident("cpu")
        >>> on_device.nbytes, [batch.tolist() for batch in on_device] == [batch.tolist() for batch in loader]
        (48, True)

        Columns that are on the device already are not copied.
        """
        if not isinstance(self._batches, ColumnBatches):
            raise InvalidArgument(
                f"a {type(self.source).__name__} can't stay on {device}: only columns in memory can, without a batcher "
                "and without a transform of single samples (batchable marks one of batches)"
            )
        other = copy.copy(self)
        other._batches = replace(self._batches, view=make_resident(self._batches.view, torch.device(device)))
        return other

    @property
    def nbytes(self) -> int | None:
        """Bytes that `resident` allocates, or None if there are no columns in memory."""
        return resident_bytes(self._batches.view) if isinstance(self._batches, ColumnBatches) else None

    # What follows is for the engine: how to get batches to a device, and what a checkpoint has to hold.

    def apply_batch_transform(self, batch: Any) -> Any:
        """Applies the batchable transform, if there is one, to a batch of `EpochBatches.raw` that was moved."""
        return transform_batch(batch, self.batch_transform)

    @property
    def has_row_selections(self) -> bool:
        """Whether `EpochBatches.row_selections` is available."""
        return isinstance(self._batches, ColumnBatches) and self._batches.has_row_selections

    @property
    def needs_main_thread(self) -> bool:
        """Whether building a batch uses the random state of this process, which belongs to the training thread."""
        in_workers = isinstance(self._batches, SampleBatches) and self.workers > 0
        return not (in_workers or isinstance(self._batches, ColumnBatches))

    @property
    def needs_rng_state(self) -> bool:
        """Whether repeating an epoch needs the state that random generators had at its start.

        >>> loaders = Loader(DataLoader(list(range(6)), shuffle=True)), Loader(torch.arange(6), batch_size=2)
        >>> [loader.needs_rng_state for loader in loaders]
        [True, False]

        So it is for a `DataLoader`: it draws from the global generators and from those of `generator_states`.
        """
        return isinstance(self._batches, DataLoaderBatches)

    def generator_states(self) -> dict[str, Any]:
        """Returns the states of the generators that a `DataLoader`, its samplers and its dataset hold.

        >>> loader = Loader(DataLoader(list(range(6)), shuffle=True, generator=torch.Generator().manual_seed(0)))
        >>> states = loader.generator_states()
        >>> first = list(loader)
        >>> loader.load_generator_states(states)
        >>> list(loader) == first
        True

        They are tensors and plain values. To start inside an epoch, load the states from the start of that epoch.
        """
        return get_states(self._generators())

    def load_generator_states(self, states: Mapping[str, Any]) -> None:
        """Restores what `generator_states` returned; raises `StateMismatch` if the generators differ."""
        set_states(self._generators(), states)

    def _generators(self) -> dict[str, Any]:
        return find_generators(self._batches.loader) if isinstance(self._batches, DataLoaderBatches) else {}

    @property
    def resume_warning(self) -> str | None:
        """Why a resumed run may get other batches than an uninterrupted one; None if it gets the same."""
        if isinstance(self._batches, DataLoaderBatches):
            if not self._batches.loader.persistent_workers:
                return None
            return (
                "the workers of this DataLoader live across epochs (persistent_workers=True), and their random state "
                "can't be saved: after resuming, their transforms draw other numbers"
            )
        generators = [] if isinstance(self._batches, ColumnBatches) else list(find_generators(self.source))
        if not generators:
            return None
        return (
            f"the {type(self.source).__name__} draws from its own generator ({', '.join(generators)}), whose state "
            "can't be restored; draw from torch's, numpy's or Python's global generator, which the Loader seeds for "
            "every sample"
        )

    def __repr__(self) -> str:
        options = {"batch_size": self.batch_size, "shuffle": self.shuffle, "workers": self.workers or None}
        texts = [f"{name}={value}" for name, value in options.items() if value is not None]
        if self._share.size > 1:
            texts.append(f"rank {self._share.rank} of {self._share.size}")
        return f"Loader({', '.join([type(self.source).__name__, *texts])})"


@dataclass(frozen=True)
class EpochBatches:
    """One epoch of a loader from a batch on, as `Loader.at` returns it.

    >>> batches = Loader(torch.arange(6), batch_size=2).at(epoch=3, batch=1)
    >>> len(batches), len(list(batches))
    (2, 2)
    """

    _batches: Batches
    epoch: int
    batch: int
    device: torch.device | None
    batch_transform: Callable[..., Any] | None = None

    def __len__(self) -> int:
        """Batches from the first one on."""
        return self._batches.count_batches() - self.batch

    def __iter__(self) -> Iterator[Any]:
        batches, device, transform = self.raw(), self.device, self.batch_transform
        if device is not None:
            batches = (move_batch(batch, device) for batch in batches)
        if transform is not None:
            batches = (transform_batch(batch, transform) for batch in batches)
        return batches

    def raw(self) -> Iterator[Any]:
        """Yields the batches as they are built: neither moved to `device` nor passed to a batchable transform."""
        return self._batches.iterate(self.epoch, self.batch)

    def row_selections(self) -> Iterator[RowSelection]:
        """Yields the row numbers of the batches, for a training step that gathers the rows itself."""
        if not isinstance(self._batches, ColumnBatches) or not self._batches.has_row_selections:
            raise InvalidArgument("row selections need columns in memory, without a transform or batcher")
        return self._batches.select_rows(self.epoch, self.batch, self.batch_transform)


def _as_device(device: torch.device | str | None) -> torch.device | None:
    try:
        return None if device is None else torch.device(device)
    except RuntimeError as error:
        raise InvalidArgument(f"device={device!r} is not a device that torch knows: {error}") from None


def _seed_of(shuffle: int | bool | None) -> int | None:
    if isinstance(shuffle, bool):
        return _DEFAULT_SEED if shuffle else None
    return None if shuffle is None else check_int("shuffle", shuffle)


def _make_batches(loader: Loader) -> Batches:
    """Chooses how batches are made from the source and the functions of a loader."""
    source = as_source(loader.source)
    if isinstance(source, DataLoader):
        _check_no_options(loader)
        return DataLoaderBatches(source)
    if loader.batch_size is None:
        raise InvalidArgument("batch_size is missing: pass the number of samples in a batch, as in batch_size=32")
    size = check_int("batch_size", loader.batch_size, least=1)
    transform = None if loader.batch_transform is not None else loader.transform
    samples = () if isinstance(source, Stream) else source
    recipe = Recipe(samples, transform, loader.batcher, _DEFAULT_SEED if loader.shuffle is None else loader.shuffle)
    builder = Workers(recipe, loader.workers) if loader.workers else InProcess(recipe)
    if isinstance(source, Stream):
        if loader.shuffle is not None:
            raise InvalidArgument(
                f"a {type(loader.source).__name__} gives its samples in its own order, which shuffle= can't change; "
                "shuffle inside it, or pass a source that has len() and indexing"
            )
        return StreamBatches(source, size, loader.drop_last, builder)
    plan = Plan(len(source), size, loader.drop_last, loader.shuffle)
    if plan.batches == 0:
        raise InvalidArgument(f"drop_last=True leaves no batch: {plan.samples} samples are less than batch_size={size}")
    if isinstance(source, View) and is_vectorized(source):
        if transform is None and loader.batcher is None:
            return ColumnBatches(plan, source)
        if loader.workers and source.device.type != "cpu":
            raise InvalidArgument(
                f"the source is on {source.device}, which worker processes can't use; keep it on the CPU and pass "
                "device= to move the batches, or use workers=0"
            )
    return SampleBatches(plan, builder)


def _check_no_options(loader: Loader) -> None:
    options = {
        "batch_size": loader.batch_size,
        "shuffle": loader.shuffle,
        "workers": loader.workers or None,
        "batcher": loader.batcher,
        "transform": None if loader.batch_transform else loader.transform,
        "drop_last": loader.drop_last or None,
    }
    passed = [name for name, value in options.items() if value is not None]
    if passed:
        raise InvalidArgument(
            f"a DataLoader is used as it is, so {', '.join(passed)} can't be combined with it; set them in the "
            "DataLoader, or pass its dataset to Loader"
        )
