"""The loader: batches of a source, in an order that is a pure function of (seed, epoch)."""

import copy
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.data._arguments import check_function, check_int, either
from stoker.data._batch import BatchTransform, Recipe, move_batch, transform_batch
from stoker.data._batching import (
    Batches,
    ColumnBatches,
    DataLoaderBatches,
    NumberedBatches,
    RowSelections,
    SampleBatches,
    Share,
    StreamBatches,
    check_start,
    find_generators,
    get_states,
    own_size,
    set_states,
)
from stoker.data._combine import (
    ByEpoch,
    Combination,
    Composite,
    Cycle,
    EpochFunctionBatches,
    Mix,
    PaddedBatches,
    Zip,
    combine_mix,
    combine_zip,
    count_by_weight,
    leaves_of,
)
from stoker.data._describe import describe_batches, warn_about_resuming
from stoker.data._options import OPTIONS, Option, find_given
from stoker.data._order import Bucketed, Drawn, Mixed, Order, as_sampling_weights, make_order, repeat_order
from stoker.data._ragged import as_padding, read_lengths
from stoker.data._rng import PART, random_key
from stoker.data._source import (
    EpochOfStream,
    Stream,
    View,
    as_indexable,
    as_source,
    is_vectorized,
    make_resident,
    resident_bytes,
    snapshot,
)
from stoker.data._stateful import PositionStates, find_sharding, gives_batches
from stoker.data._views import concat
from stoker.data._workers import Workers
from stoker.errors import InvalidArgument, WrongType

_DEFAULT_SEED = 0  # of `shuffle=True`, and of what a transform draws without shuffling

# A forked process, such as a worker, must not collect its parent's garbage: freeing a CUDA graph there aborts it.
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=gc.freeze)


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
    `at` starts anywhere and does not change the count. A loader that an `IterableDataset` reads starts with its epoch.

    - `source`: a tensor or array, a tuple or mapping of them, a pandas, polars or Arrow table: columns in memory, whose
      samples and batches are copies, so that a transform or a training step may write into them. A list, a torch
      Dataset, a Hugging Face dataset: read sample by sample. An iterable: read in its own order, by one reader. A torch
      `DataLoader`: used as it is; only a `DataLoader` needs no `batch_size`.
    - `shuffle`: a seed for the order, which changes in every epoch; it also seeds what a transform draws. `True` is the
      seed 0: the order is the same in every run and on every rank, whatever `torch.manual_seed` was called with. `None`
      and `False` keep the order of the source, as an iterable always does; a transform then draws with seed 0.
    - `workers` (or `num_workers`): processes that build batches in advance. Every iteration starts its own, which see
      the source as it is then. Columns in memory without a transform or batcher start none.
    - `batcher` (or `collate_fn`): makes a batch, of any type, of a list of samples. Without it samples are stacked.
    - `transform`: a function of a sample (of its parts, if it is a tuple). What it draws from torch, numpy or `random`
      is a function of (seed, epoch, number of the sample in the source), and so is what a Dataset draws. A generator
      is seeded from the first sample on that draws from it; so code that puts the state of a generator back after
      drawing from it has to seed it. A transform that is marked with `batchable` is a function of a batch instead.
    - `drop_last`: leave out a last batch that is not full.
    - `device`: where the tensors of the batches go.
    - `sampling_weights`: one for each sample. An epoch then draws as many samples as there are, with replacement, in
      proportion to them (as torch's `WeightedRandomSampler`); the draws are a function of (`shuffle`, epoch).
    - `bucket_by`: puts samples of similar length into a batch. A function of a sample (of its parts, if it is a tuple)
      that returns its length, the name of a column, whose lengths or numbers count, or one length for each sample. The
      first two read every sample once, when the loader is created. Every sample still comes once in an epoch, in
      batches whose order is random; all of it is a function of (`shuffle`, epoch).
    - `pad_to`: pads the sequences of a sample (lists of numbers, the first dimension of tensors and arrays) so that
      those of a batch are equally long: to the shortest of a list of lengths, to a multiple of a number, or to a
      `"power of two"`. `pad_to=1` pads to the longest sample of the batch. A `collate_fn` gets padded samples.
    - `pad_value`: what all sequences are padded with (0), or a mapping that names the sequences to pad (places, in a
      tuple), each with its value. A single value leaves `labels` at -100, `attention_mask` and `token_type_ids` at 0.
    - `pad_mask`: the name of a new column with 1 for each element and 0 for padding, for samples that are mappings.
    - `sharded`: the source holds only the samples of this rank, on which other ranks have others. `batch_size` is still
      that of all ranks together. A `DistributedSampler`, a Hugging Face stream after `split_dataset_by_node`, and the
      data sets of litdata and Mosaic Streaming are recognised.

    - `batched`: the source is an iterable of ready batches, used as they are. A `WebLoader` of webdataset and nodes of
      torchdata with a `Batcher` are recognised.

    A stream or `DataLoader` with `state_dict` and `load_state_dict` (torchdata's `StatefulDataLoader`, Hugging Face's
    `IterableDataset`) saves its own position: see `source_state`. `zip`, `mix` and `by_epoch` are sources too; options
    are then for those of their sources that are not a `Loader` or `DataLoader`.
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
        sampling_weights: Any = None,
        sharded: bool = False,
        batched: bool | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        bucket_by: Any = None,
        pad_to: Any = None,
        pad_value: Any = 0,
        pad_mask: str | None = None,
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
        self.sampling_weights = sampling_weights
        self.bucket_by, self.pad_to = bucket_by, as_padding(pad_to, pad_value, pad_mask)
        self.sharded = bool(sharded) or bool(find_sharding(source))
        self.batched = gives_batches(source) if batched is None else bool(batched)
        if batched is None and not self.batched:
            _check_gives_samples(source)
        if drop_last not in (True, False):
            raise WrongType(f"drop_last is True or False; got {drop_last!r}")
        self.drop_last = bool(drop_last)
        self.device = None if device is None else _as_device(device)
        self._batches = _make_batches(self)
        self._share = Share()
        self._next_epoch = 0
        self._outer: EpochOfStream | None = None

    def __iter__(self) -> Iterator[Any]:
        outer = EpochOfStream.current.get()
        if outer is not None and outer is not self._outer:  # inside a stream, each of its epochs determines ours
            self._outer, self._next_epoch = outer, outer.epoch
        epoch = self._next_epoch
        return self._iterate_and_count(iter(self.at(epoch=epoch)), epoch)

    def _iterate_and_count(self, batches: Iterator[Any], epoch: int) -> Iterator[Any]:
        yield from islice(batches, 1)
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

    def at(self, *, epoch: int, batch: int = 0, state: Any = None) -> "EpochBatches":
        """Returns the batches of one epoch from `batch` on, without building those before.

        >>> loader = Loader(torch.arange(6), batch_size=2)
        >>> list(loader.at(epoch=0, batch=1))
        [tensor([2, 3]), tensor([4, 5])]

        A stream and a `DataLoader` have to be read up to there, unless `state` is what `source_state` returned there.
        The result can be iterated over several times and gives the same batches; for a `DataLoader` only if its
        generators are in the same state (see `needs_rng_state`).
        """
        epoch, batch = check_int("epoch", epoch, least=0), check_int("batch", batch, least=0)
        check_start(self._batches, batch)
        return EpochBatches(self._batches, epoch, batch, self.device, self.batch_transform, state)

    def source_state(self, *, epoch: int, batch: int) -> Any:
        """Returns the source's own state after `batch` batches of an epoch, for the `state` of `at`; or None.

        >>> loader = Loader(DataLoader(list(range(6)), batch_size=2))
        >>> first = next(iter(loader))
        >>> loader.source_state(epoch=0, batch=1) is None  # a torchdata StatefulDataLoader has one
        True

        It holds tensors and plain values. It is None if the source has no `state_dict`, if that holds other values or
        is known to be incomplete (samples in a shuffle buffer of Hugging Face), and if this is not where it is being
        read: a position that is read again from the start of its epoch is exact too.
        """
        leaves = leaves_of(self._batches)
        return (
            None if all(isinstance(leaf, NumberedBatches) for leaf in leaves) else self._batches.state_at(epoch, batch)
        )

    def prepare(self, epoch: int) -> None:
        """Starts the workers of an epoch and their first batches, for an iteration that begins later.

        >>> loader = Loader([1, 2, 3], batch_size=2, transform=float, workers=1)
        >>> loader.prepare(epoch=0)
        >>> list(loader)
        [tensor([1., 2.]), tensor([3.])]

        The workers see the source as it is now. Does nothing without workers, and for a stream or a `DataLoader`. One
        epoch is prepared at a time; an iteration over another epoch discards it.
        """
        epoch = check_int("epoch", epoch, least=0)
        if isinstance(self._batches, SampleBatches):
            self._batches.prepare(epoch)

    def close(self) -> None:
        """Discards what was prepared; an iteration stops its worker processes itself when it ends or is dropped."""
        for leaf in leaves_of(self._batches):
            if isinstance(leaf, SampleBatches) and leaf.workers is not None:
                leaf.workers.close()

    def shared(self, rank: int, size: int) -> "Loader":
        """Returns a loader with the share of one rank; the shares of all `size` ranks, in order, are the batches.

        >>> batches = Loader(torch.arange(5), batch_size=3)
        >>> [list(batches.shared(rank, 2)) for rank in range(2)]
        [[tensor([0]), tensor([3])], [tensor([1, 2]), tensor([4])]]

        An empty share is a `PaddingBatch`. `batch_size`, `samples`, `drop_last` and the positions of `at` refer to
        whole batches. Every rank reads a stream. A `DataLoader` needs a `DistributedSampler`. Of a source that is
        `sharded` a rank gets all samples, in batches of its share of `batch_size`.
        """
        share = Share(rank, size)
        if size == 1 or share == self._share:
            return self
        if self._share.size > 1:
            raise InvalidArgument(f"{self!r} is a share already; share the loader that it was made from")
        other = copy.copy(self)
        if self.sharded and isinstance(self._batches, NumberedBatches):
            other.batch_size = own_size(self._batches.size, share)
            other.shuffle = self.shuffle if self.shuffle is None else random_key(PART, self.shuffle, rank)
            other._batches = _make_batches(other)
            other.batch_size, other.shuffle = self.batch_size, self.shuffle
        else:
            other._batches = self._batches.for_rank(share)
        other._share = share
        return other

    def padded(self, batches: int) -> "Loader":
        """Returns a loader with this many batches, at least its own; `PaddingBatch`es follow its own.

        >>> list(Loader(torch.arange(3), batch_size=2).padded(3))
        [tensor([0, 1]), tensor([2]), PaddingBatch(batch=tensor([2]))]

        So ranks whose parts of the data differ in size take equally many steps.
        """
        if batches == len(self):
            return self
        other = copy.copy(self)
        other._batches = PaddedBatches(parts={"own": self._batches}, length=batches)
        return other

    @property
    def sharing_note(self) -> str | None:
        """What is special about sharing this source among ranks; None if training is as in a single process."""
        if self._share.size == 1:
            return None
        leaves = leaves_of(self._batches)
        notes = [leaf.describe_sharing() for leaf in leaves if isinstance(leaf, StreamBatches | DataLoaderBatches)]
        if self.sharded and not notes:
            notes = [f"each of the {self._share.size} ranks has its own samples"]
        return "; ".join(dict.fromkeys(notes)) or None

    def resident(self, device: torch.device | str) -> "Loader":
        """Returns a loader whose columns stay on a device, so that batches are gathered there.

        >>> loader = Loader(torch.arange(6), batch_size=2, shuffle=0)
        >>> on_device = loader.resident("cpu")
        >>> on_device.nbytes, [batch.tolist() for batch in on_device] == [batch.tolist() for batch in loader]
        (48, True)

        Columns that are on the device already are not copied.
        """
        if self.nbytes is None:
            raise InvalidArgument(
                f"a {type(self.source).__name__} can't stay on {device}: only columns in memory can, without a batcher "
                "and without a transform of single samples (batchable marks one of batches)"
            )
        other = copy.copy(self)
        other._batches = _make_columns_resident(self._batches, _as_device(device))
        return other

    @property
    def nbytes(self) -> int | None:
        """Bytes that `resident` allocates, or None without columns in memory."""
        columns = [leaf for leaf in leaves_of(self._batches) if isinstance(leaf, ColumnBatches)]
        is_fixed = not isinstance(self._batches, EpochFunctionBatches)
        return sum(resident_bytes(leaf.view) for leaf in columns) if columns and is_fixed else None

    # What follows is for the engine: how to get batches to a device, and what a checkpoint has to hold.

    def apply_batch_transform(self, batch: Any) -> Any:
        """Applies the batchable transform, if there is one, to a batch of `EpochBatches.raw` that was moved."""
        return transform_batch(batch, self.batch_transform)

    @property
    def has_row_selections(self) -> bool:
        """Whether `EpochBatches.row_selections` is available."""
        return isinstance(self._batches, ColumnBatches) and self._batches.view.traceable

    @property
    def needs_main_thread(self) -> bool:
        """Whether building a batch uses the random state of this process, which belongs to the training thread."""
        return not all(
            isinstance(leaf, ColumnBatches)
            or (isinstance(leaf, SampleBatches) and (leaf.workers is not None or not leaf.recipe.calls_user_code))
            for leaf in leaves_of(self._batches)
        )

    @property
    def needs_rng_state(self) -> bool:
        """Whether repeating an epoch needs the state that random generators had at its start.

        >>> loaders = Loader(DataLoader(list(range(6)), shuffle=True)), Loader(torch.arange(6), batch_size=2)
        >>> [loader.needs_rng_state for loader in loaders]
        [True, False]

        So it is for a `DataLoader`: it draws from the global generators and from those of `generator_states`.
        """
        return any(isinstance(leaf, DataLoaderBatches) for leaf in leaves_of(self._batches))

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
        found = {}
        for number, leaf in enumerate(leaves_of(self._batches)):
            if isinstance(leaf, DataLoaderBatches):
                prefix = f"{number}." if isinstance(self._batches, Composite) else ""
                found |= {f"{prefix}{name}": each for name, each in find_generators(leaf.loader).items()}
        return found

    @property
    def resume_warning(self) -> str | None:
        """Why a resumed run may get other batches than an uninterrupted one; None if it gets the same."""
        warnings = [warn_about_resuming(leaf) for leaf in leaves_of(self._batches)]
        return next((warning for warning in warnings if warning is not None), None)

    def describe(self) -> str:
        """How much an epoch reads, and in what order.

        >>> Loader(torch.arange(6), batch_size=4, shuffle=0).describe()
        '6 samples in 2 batches, shuffled by (seed 0, epoch)'
        """
        text = describe_batches(self._batches, self.shuffle)
        return f"{text}{f', {self.workers} workers' if self.workers else ''}"

    @property
    def orders(self) -> str:
        """The orders of its sources that have numbered samples, as text: they are the same if this is."""
        return repr([leaf.order for leaf in leaves_of(self._batches) if isinstance(leaf, NumberedBatches)])

    def __repr__(self) -> str:
        options = {"batch_size": self.batch_size, "shuffle": self.shuffle, "workers": self.workers or None}
        texts = [f"{name}={value}" for name, value in options.items() if value is not None]
        if self._share.size > 1:
            texts.append(f"rank {self._share.rank} of {self._share.size}")
        return f"Loader({', '.join([type(self.source).__name__, *texts])})"


@dataclass(frozen=True, eq=False, repr=False)
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
    state: Any = None  # of the source, at `batch`

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
        return self._batches.iterate(self.epoch, self.batch, self.state)

    def sizes(self) -> Iterator[int] | None:
        """Yields the number of samples in each batch; None if that is known only after reading."""
        return self._batches.sizes(self.batch, self.epoch)

    def row_selections(self) -> RowSelections:
        """The row numbers of the batches, for a training step that gathers the rows itself."""
        if not isinstance(self._batches, ColumnBatches) or not self._batches.view.traceable:
            raise InvalidArgument("row selections need columns in memory, without a transform or batcher")
        return self._batches.select_rows(self.epoch, self.batch, self.batch_transform)


def is_batched(source: Any) -> bool:
    """Whether a source gives batches already, so that a batch size has no effect on it."""
    if isinstance(source, Zip | Mix):
        return all(is_batched(each) for each in source.sources.values())
    if isinstance(source, Cycle):
        return is_batched(source.source)
    return isinstance(source, Loader | DataLoader) or gives_batches(source)


def _as_device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise InvalidArgument(f"device={device!r} is not a device that torch knows: {error}") from None


def _seed_of(shuffle: int | bool | None) -> int | None:
    if isinstance(shuffle, bool):
        return _DEFAULT_SEED if shuffle else None
    return None if shuffle is None else check_int("shuffle", shuffle)


def _make_batches(loader: Loader) -> Batches:
    """Chooses how batches are made from the source and the functions of a loader."""
    if isinstance(loader.source, Combination):
        return _combine(loader, loader.source)
    return _make_single(loader, as_source(loader.source))


def _make_single(loader: Loader, source: Any, order: Order | None = None) -> Batches:
    if isinstance(source, DataLoader):
        _check_no_options(loader)
        return DataLoaderBatches(source, PositionStates(source), sharded=loader.sharded)
    if loader.batched:
        return _make_ready_batches(loader, source)
    if loader.batch_size is None:
        raise InvalidArgument("batch_size is missing: pass the number of samples in a batch, as in batch_size=32")
    size = check_int("batch_size", loader.batch_size, least=1)
    transform = None if loader.batch_transform is not None else loader.transform
    samples = () if isinstance(source, Stream) else source
    seed, pad = _DEFAULT_SEED if loader.shuffle is None else loader.shuffle, loader.pad_to and loader.pad_to.apply
    recipe = Recipe(samples, transform, loader.batcher, seed, pad)
    workers = Workers(recipe, loader.workers) if loader.workers else None
    if isinstance(source, Stream):
        for option in find_given(loader):
            if option.why_not_for_streams:
                raise InvalidArgument(option.why_not_for_streams.format(source=type(loader.source).__name__))
        return StreamBatches(
            stream=source,
            size=size,
            drop_last=loader.drop_last,
            recipe=recipe,
            workers=workers,
            sharded=loader.sharded,
            states=PositionStates(source.samples),
        )
    order = _choose_order(loader, len(source)) if order is None else order
    if loader.drop_last and order.length < size:
        raise InvalidArgument(f"drop_last=True leaves no batch: {order.length} samples are less than batch_size={size}")
    if loader.bucket_by is not None:
        order = _bucket(loader, source, order, size)
    plan: Any = {
        "source": loader.source,
        "snapshot": snapshot(loader.source) if isinstance(source, View) else None,
        "order": order,
        "size": size,
        "drop_last": loader.drop_last,
    }
    if isinstance(source, View) and is_vectorized(source):
        if transform is None and loader.batcher is None:
            if loader.pad_to is not None:
                raise InvalidArgument(
                    "pad_to is for samples of different lengths, and the rows of columns in memory have one length; "
                    "pass a list of samples, or a transform= that cuts them"
                )
            return ColumnBatches(**plan, view=source)
        if loader.workers and source.device.type != "cpu":
            raise InvalidArgument(
                f"the source is on {source.device}, which worker processes can't use; keep it on the CPU and pass "
                "device= to move the batches, or use workers=0"
            )
    return SampleBatches(**plan, recipe=recipe, workers=workers)


def _check_gives_samples(source: Any) -> None:
    """Raises if an iterable looks like a loader of another library: its batches would be taken for samples."""
    size = getattr(source, "batch_size", None)
    if isinstance(size, int) and not isinstance(source, DataLoader) and not hasattr(source, "__getitem__"):
        raise InvalidArgument(
            f"a {type(source).__name__} has a batch_size of {size}: if it gives batches, pass "
            "data.Loader(source, batched=True); if it gives samples, data.Loader(source, batched=False, batch_size=...)"
        )


def _make_ready_batches(loader: Loader, source: Any) -> StreamBatches:
    """A stream of batches is read as one of samples, of which each batch has one."""
    if not isinstance(source, Stream):
        raise InvalidArgument(
            f"batched=True is for an iterable of batches; a {type(loader.source).__name__} has samples"
        )
    _check_no_options(loader)
    recipe = Recipe((), None, itemgetter(0), _DEFAULT_SEED)
    states = PositionStates(source.samples)
    return StreamBatches(
        stream=source,
        size=1,
        drop_last=False,
        recipe=recipe,
        workers=None,
        sharded=loader.sharded,
        batched=True,
        states=states,
    )


def _choose_order(loader: Loader, samples: int) -> Order:
    if loader.sampling_weights is None:
        return make_order(samples, loader.shuffle)
    if loader.shuffle is None:
        raise InvalidArgument("sampling_weights draw samples at random: pass shuffle=True, or a seed, as well")
    return Drawn(samples, loader.shuffle, as_sampling_weights(loader.sampling_weights, samples))


def _bucket(loader: Loader, source: Any, order: Order, size: int) -> Bucketed:
    lengths, padding = read_lengths(source, loader.bucket_by), loader.pad_to
    rounded = lengths if padding is None else padding.round(lengths)
    few = padding is not None and len(rounded.unique()) * 4 <= order.length // size
    return Bucketed(order.samples, loader.shuffle, order, size, rounded, few)


def _combine(loader: Loader, source: Combination) -> Batches:
    """Makes the batches of several sources, each of which becomes a loader of its own."""
    if isinstance(source, Cycle):
        raise InvalidArgument(
            "cycle is for a source of data.zip, whose other sources decide when an epoch ends; alone it has no end"
        )
    passed = [option.name for option in find_given(loader) if option.is_for_samples]
    if loader.sharded:
        raise InvalidArgument("sharded=True is for one source; several are divided among the ranks by the loader")
    if isinstance(source, ByEpoch):
        return _combine_epochs(loader, source, passed)
    if isinstance(source, Mix) and source.by == "sample":
        return _mix_samples(loader, source)
    if passed:
        raise InvalidArgument(
            f"{passed[0]} is for the samples of one source: pass it to a Loader for that source, as in "
            f"data.{type(source).__name__.lower()}(a=Loader(x, batch_size=32, shuffle=0, {passed[0]}=...), b=...)"
        )
    assert isinstance(source, Zip | Mix)
    given = {name: each.source if isinstance(each, Cycle) else each for name, each in source.sources.items()}
    if is_batched(source):
        _check_has_effect(loader)
    # Each part gets an order of its own.
    options = _options_of(loader, lambda option: not option.is_for_samples and option.name != "shuffle")
    numbered = enumerate(given.items())
    parts = {name: _check_part(_as_part(each, loader.shuffle, number, options)) for number, (name, each) in numbered}
    loader.batch_transform = _join_transforms(parts, loader.batch_transform)
    devices = {part.device for part in parts.values() if part.device is not None}
    if loader.device is None and len(devices) == 1:
        loader.device = devices.pop()
    batches = {name: part._batches for name, part in parts.items()}
    if isinstance(source, Mix):
        return combine_mix(batches, source, loader.shuffle)
    cycled = {name for name, each in source.sources.items() if isinstance(each, Cycle)}
    return combine_zip(batches, cycled, loader.shuffle)


def _check_has_effect(loader: Loader) -> None:
    used = [option.name for option in find_given(loader) if option.name != "shuffle"]
    if used:
        raise InvalidArgument(
            f"{used[0]} has no effect: every source is a Loader or DataLoader with its own; set it there"
        )


def _options_of(loader: Loader, accepts: Callable[[Option], bool]) -> dict[str, Any]:
    return {option.name: getattr(loader, option.name) for option in OPTIONS if accepts(option)}


def change_options(loader: Loader, source: Any, **changes: Any) -> Loader:
    """A loader of this source with the options of another loader, but for `changes`."""
    options = _options_of(loader, lambda option: True)
    return Loader(source, **{**options, "device": loader.device, "sharded": loader.sharded, **changes})


def _as_part(source: Any, seed: int | None, number: int, options: Mapping[str, Any]) -> Loader:
    """The loader of one source; unless it is one already, it gets the options, and an order of its own."""
    if isinstance(source, Loader):
        return source
    if is_batched(source):
        return Loader(source)
    is_stream = isinstance(as_source(source), Stream)
    return Loader(source, shuffle=None if is_stream else _seed_of_part(seed, number), **options)


def _seed_of_part(seed: int | None, number: int) -> int | None:
    return None if seed is None else random_key(PART, seed, number) >> 1


def _check_part(loader: Loader) -> Loader:
    if loader.sharded and isinstance(loader._batches, NumberedBatches):
        raise InvalidArgument(
            f"{loader!r} is sharded, and among several sources a rank can't have samples of its own; give every rank "
            "all of them, or use a stream or DataLoader that is divided already"
        )
    return loader


def _join_transforms(parts: Mapping[str, Loader], own: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The batchable transforms of the parts as one of their common batch, followed by its own."""
    transforms = {name: part.batch_transform for name, part in parts.items() if part.batch_transform is not None}
    if not transforms:
        return own

    def transform(batch: Mapping[str, Any]) -> Any:
        made = {name: transform_batch(part, transforms.get(name)) for name, part in batch.items()}
        return made if own is None else own(made)

    return transform


def _mix_samples(loader: Loader, source: Mix) -> Batches:
    if loader.sampling_weights is not None:
        raise InvalidArgument(
            'mix(by="sample") draws samples by the weights of their sources, so sampling_weights can\'t be combined '
            "with it; use one of the two (data.concat joins sources for sampling_weights)"
        )
    views = {}
    for name, each in source.sources.items():
        if isinstance(each, Loader | DataLoader):
            raise InvalidArgument(
                f'{name!r} gives batches, and by="sample" mixes samples: pass its source, and its transform or batcher '
                "to the Loader around the mix, which uses them for all samples (data.mapped is for those of one source)"
            )
        views[name] = as_indexable(each, f'mix(by="sample") with {name!r}')
    sizes = [len(view) for view in views.values()]
    counts = count_by_weight(source, source.length or sum(sizes))
    seed = loader.shuffle
    orders = [make_order(size, _seed_of_part(seed, number)) for number, size in enumerate(sizes)]
    parts = [repeat_order(order, count) for order, count in zip(orders, counts, strict=True)]
    return _make_single(loader, concat(*views.values()), Mixed(sum(sizes), seed, tuple(parts)))


def _combine_epochs(loader: Loader, source: ByEpoch, for_samples: list[str]) -> EpochFunctionBatches:
    options = _options_of(loader, lambda option: option.name != "shuffle")

    def make_loader(given: Any) -> Loader:
        if for_samples and is_batched(given):
            raise InvalidArgument(
                f"{for_samples[0]} has no effect: the function of the epoch returned batches of a Loader or "
                "DataLoader; set it there"
            )
        if isinstance(given, Loader):
            return given
        if is_batched(given):
            return Loader(given, shuffle=loader.shuffle if isinstance(given, Combination) else None)
        is_fixed = isinstance(given, Combination) or not isinstance(as_source(given), Stream)
        return Loader(given, shuffle=loader.shuffle if is_fixed else None, **options)

    def make(epoch: int) -> Batches:
        given = _check_part(make_loader(source.function(epoch)))
        if given.batch_transform not in (None, loader.batch_transform):
            raise InvalidArgument(
                f"the function of the epoch returned a Loader with a batchable transform for epoch {epoch}, which has "
                "to be the same in every epoch: pass it to the Loader around it, as in "
                "Loader(data.by_epoch(function), transform=...)"
            )
        return given._batches

    return EpochFunctionBatches(parts={"first": make(0)}, make=make)


def _make_columns_resident(batches: Any, device: torch.device) -> Any:
    if isinstance(batches, Composite):
        return batches.map_parts(lambda part: _make_columns_resident(part, device))
    if isinstance(batches, ColumnBatches):
        return replace(batches, view=make_resident(batches.view, device))
    return batches


def _check_no_options(loader: Loader) -> None:
    passed = [option.name for option in find_given(loader)]
    if passed:
        kind, other = ("stream of batches", "stream") if loader.batched else ("DataLoader", "dataset")
        raise InvalidArgument(
            f"a {kind} is used as it is, so {', '.join(passed)} can't be combined with it; set them in the {kind}, or "
            f"pass its {other} to Loader"
        )
