"""How each kind of source is cut into batches, and how several ranks share a batch."""

import copy
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler

from stoker._tree import map_leaves, map_tensors, tensors_in
from stoker.data._arguments import check_int
from stoker.data._batch import PaddingBatch, Recipe, RowSelection, Task
from stoker.data._order import Order
from stoker.data._rng import LazyPermutation, preserve_generators
from stoker.data._source import EpochOfStream, Selection, Stream, View, set_epoch, snapshot
from stoker.data._stateful import PositionStates, as_source_state, find_sharding, samplers_of
from stoker.data._workers import Workers
from stoker.errors import BadData, InvalidArgument, StateMismatch, WrongType

# An order is drawn in advance from so many rows on (0.5 ms), and up to so many: it takes 8 bytes a row (256 MB).
_FEWEST_ROWS, _MOST_ROWS = 2**15, 2**25
Rows = Tensor | LazyPermutation


@dataclass(frozen=True)
class Share:
    """The rows of a batch that one rank has; the shares of all ranks, in order, are the batch."""

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if check_int("rank", self.rank, least=0) >= check_int("size", self.size, least=1):
            raise InvalidArgument(f"rank has to be less than size={self.size}; ranks count from 0; got {self.rank}")

    def rows(self, count: int) -> tuple[int, int, bool]:
        """Returns where the share of `count` rows starts and stops; an empty one is the first row, as padding."""
        start, stop = count * self.rank // self.size, count * (self.rank + 1) // self.size
        return (start, stop, False) if start < stop else (0, 1, True)


class Batches(Protocol):
    """How the batches of an epoch are made."""

    def count_samples(self) -> int:
        """Samples in the source; raises `WrongType` if that is unknown."""
        ...

    def count_batches(self) -> int:
        """Batches in an epoch; raises `WrongType` if that is unknown."""
        ...

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        """The number of samples in each batch from `batch` on; None if it is unknown."""
        ...

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        """The batches from `batch` on, from a state that `state_at` returned if there is one."""
        ...

    def state_at(self, epoch: int, batch: int) -> Any:
        """The state of the source after `batch` batches, if it has one and is being read there; None otherwise."""
        ...

    def for_rank(self, share: Share) -> "Batches":
        """The share of one rank."""
        ...


def length_of(batches: Batches) -> int | None:
    """The batches of an epoch, or None if their number is known only after reading."""
    try:
        return batches.count_batches()
    except WrongType:
        return None


def check_start(batches: Batches, batch: int) -> None:
    """Raises if `batch` is beyond the end of an epoch; the end itself is a position to continue from."""
    length = length_of(batches)
    if length is not None and batch > length:
        raise InvalidArgument(f"batch {batch} does not exist: an epoch has {length} batches, counted from 0")


def own_size(size: int, share: Share) -> int:
    """How many of the `size` samples in a batch a rank reads from a source of its own."""
    start, stop, is_padding = share.rows(size)
    if is_padding:
        raise InvalidArgument(
            f"batch_size={size} leaves no sample for some of the {share.size} ranks; choose a larger one"
        )
    return stop - start


def check_sharding(source: Any, share: Share) -> None:
    """Raises if a source says that it is the part of another rank."""
    found = find_sharding(source)
    if isinstance(found, tuple) and found != (share.rank, share.size):
        raise InvalidArgument(
            f"the {type(source).__name__} is for rank {found[0]} of {found[1]}, but this is rank {share.rank} of "
            f"{share.size}; create it for rank {share.rank} of {share.size}, or pass the whole dataset, with the "
            "batch_size of all ranks together"
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class NumberedBatches:
    """Numbered samples, so that an epoch can start anywhere; its order is a pure function of (seed, epoch)."""

    source: Any  # what the user passed
    snapshot: Any  # of the source, when its samples were counted
    order: Order
    size: int
    drop_last: bool
    share: Share = Share()

    def count_samples(self) -> int:
        return self.order.samples

    def count_batches(self) -> int:
        return self.order.length // self.size if self.drop_last else -(-self.order.length // self.size)

    def state_at(self, epoch: int, batch: int) -> Any:
        return None  # (epoch, batch) is enough

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        return (stop - start for start, stop, _ in self._spans(batch))

    def _check_unchanged(self, samples: int) -> None:
        """Raises if the source has changed in a way that its batches would not show."""
        known = self.order.samples
        if samples == known and (self.snapshot is None or self.snapshot == snapshot(self.source)):
            return
        name = type(self.source).__name__
        change = f"has {samples} samples now" if samples != known else "has other tensors or indices now"
        raise BadData(
            f"the {name} {change}, and was loaded with {known} samples when the loader was created; create a "
            "new loader, or use data.by_epoch(function), a dataset with its own __getitem__ and a fixed length, or an "
            "IterableDataset, which may change between epochs"
        )

    def _spans(self, batch: int) -> Iterator[tuple[int, int, bool]]:
        """Yields where the share of each batch starts and stops in the order, and whether it is padding."""
        samples, size, share = self.order.length, self.size, self.share
        for start in range(batch * size, self.count_batches() * size, size):
            stop = min(start + size, samples)
            if share.size == 1:
                yield start, stop, False
            else:
                low, high, is_padding = share.rows(stop - start)
                yield start + low, start + high, is_padding


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ColumnBatches(NumberedBatches):
    """Columns in memory: a batch is a slice or one gather."""

    view: View
    _next_order: "NextOrder" = field(init=False, repr=False, compare=False, default_factory=lambda: NextOrder())

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        self._check_unchanged(self.order.samples)
        view, read = self._base_view, self._row_reader(epoch)
        for start, stop, is_padding in self._spans(batch):
            rows = view.slice(start, stop) if read is None else view.gather(read(slice(start, stop)))
            yield PaddingBatch(rows) if is_padding else rows

    def for_rank(self, share: Share) -> "Batches":
        return replace(self, share=share)

    def select_rows(self, epoch: int, batch: int, transform: Callable[..., Any] | None) -> "RowSelections":
        """The batches of an epoch, from `batch` on, without gathering them."""
        self._check_unchanged(self.order.samples)
        view, read = self._base_view, self._row_reader(epoch)
        if read is None:
            read = torch.arange(self.order.length, device=view.device).__getitem__
        return RowSelections(self, read, batch, view, transform)

    # A selection is part of the order, so that it costs nothing per batch.

    @property
    def _base_view(self) -> View:
        return self.view.base if isinstance(self.view, Selection) else self.view

    def _row_reader(self, epoch: int) -> Callable[[slice], Tensor] | None:
        """Returns a function that gives the rows of the base view at some places of an epoch, on its device.

        None for all rows in the order of the source.
        """
        rows, device = self._next_order.take(epoch, self._draw_rows), self._base_view.device
        if rows is None:
            return None
        if isinstance(rows, Tensor):
            return _copy_order(rows, device).__getitem__  # once per epoch, so that no batch waits for the host
        numbers = self.view.numbers if isinstance(self.view, Selection) else None
        select = (lambda part: part) if numbers is None else numbers.__getitem__
        return lambda places: _copy_order(select(rows[places]), device)

    def _draw_rows(self, epoch: int) -> Rows | None:
        """Returns the rows of the base view in the order of an epoch, as far as it is drawn at once."""
        order = self.order.draw(epoch)
        if not isinstance(self.view, Selection) or isinstance(order, LazyPermutation):
            return order
        return self.view.numbers if order is None else self.view.numbers[order]


class RowSelections(Iterator[RowSelection]):
    """The batches of an epoch as row selections: one by one, or the rows of several at once."""

    def __init__(
        self,
        batches: ColumnBatches,
        read: Callable[[slice], Tensor],  # gives the rows at some places of the epoch
        batch: int,
        view: View,
        transform: Callable[..., Any] | None,
    ) -> None:
        self._batches, self._read, self._batch, self._view, self._transform = batches, read, batch, view, transform
        self._spans = batches._spans(batch)

    def __next__(self) -> RowSelection:
        start, stop, is_padding = next(self._spans)
        self._batch += 1
        return RowSelection(self._read(slice(start, stop)), self._view, self._transform, is_padding)

    def peek(self, count: int) -> RowSelection:
        """The next batches of full size, up to `count` of them, as one selection with rows [batches, size].

        They stay the next ones until `skip`. One of several ranks gets none: its shares may differ in size.
        """
        size, start = self._batches.size, self._batch * self._batches.size
        count = 0 if self._batches.share.size > 1 else min(count, (self._batches.order.length - start) // size)
        rows = self._read(slice(start, start + count * size)).view(-1, size)
        return RowSelection(rows, self._view, self._transform)

    def skip(self, count: int) -> None:
        """Continues after the next `count` batches."""
        self._batch += count
        self._spans = self._batches._spans(self._batch)


class NextOrder:
    """Draws the order of the next epoch in a thread while this one is used: 20 ms for a million rows."""

    def __init__(self) -> None:
        self._drawing: tuple[tuple[int, int], Future[Rows | None]] | None = None  # of a process and an epoch

    def take(self, epoch: int, draw: Callable[[int], Rows | None]) -> Rows | None:
        """Returns the order of an epoch, and starts to draw the one after it if that takes long enough."""
        process = os.getpid()  # a fork has no thread that would finish the order of its parent
        drawing, self._drawing = self._drawing, None
        order = drawing[1].result() if drawing is not None and drawing[0] == (process, epoch) else draw(epoch)
        if order is not None and _FEWEST_ROWS <= len(order) <= _MOST_ROWS:
            pool = ThreadPoolExecutor(1, thread_name_prefix="stoker-order")
            self._drawing = (process, epoch + 1), pool.submit(draw, epoch + 1)
            pool.shutdown(wait=False)
        return order

    def __reduce__(self) -> tuple[Any, ...]:
        return NextOrder, ()  # a copy of a loader draws its own


def _copy_order(order: Tensor, device: torch.device) -> Tensor:
    """Copies an order to a device; the host does not wait for a copy to a GPU."""
    if device.type != "cuda" or order.device == device:
        return order.to(device)
    return order.pin_memory().to(device, non_blocking=True)


def _check_dtypes(batches: Iterator[Any], recipe: Recipe) -> Iterator[Any]:
    """Raises if a part has another dtype than in the first batch: of Python numbers, for example, 0 and 0.5."""
    return batches if recipe.batcher is not None else _with_equal_dtypes(batches)


def _with_equal_dtypes(batches: Iterator[Any]) -> Iterator[Any]:
    expected: list[torch.dtype] | None = None
    for place, batch in enumerate(batches):
        dtypes = [tensor.dtype for tensor in tensors_in(batch)]
        if expected is None:
            expected = dtypes
        elif dtypes != expected:
            first, other = next(pair for pair in zip(expected, dtypes, strict=True) if pair[0] != pair[1])
            raise BadData(
                f"{other} was made of the samples of batch {place}, and {first} of those of the first one; give every "
                "sample the same type: with a transform= that converts it (float(y), for example), or a collate_fn="
            )
        yield batch
        del batch  # so that its memory can be used for the next one


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SampleBatches(NumberedBatches):
    """Samples that are read one by one, here or in workers."""

    recipe: Recipe
    workers: Workers | None

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        self._check_unchanged(len(self.recipe.source))
        tasks = self._tasks(epoch, batch)
        batches = self.recipe.build_here(tasks) if self.workers is None else self.workers.build(tasks, (epoch, batch))
        return _check_dtypes(batches, self.recipe)

    def for_rank(self, share: Share) -> "Batches":
        # A copy of the workers has no processes: what the original prepares is of another share.
        return replace(self, share=share, workers=copy.copy(self.workers))

    def prepare(self, epoch: int) -> None:
        """Starts building the first batches of an epoch; without workers, that would only delay training."""
        if self.workers is not None:
            self.workers.prepare(self._tasks(epoch, 0), (epoch, 0))

    def _tasks(self, epoch: int, batch: int) -> Iterator[Task]:
        drawn = self.order.draw(epoch)
        order = drawn.numpy() if isinstance(drawn, Tensor) else drawn  # slices of numpy take a fourth of the time
        for place, (start, stop, is_padding) in enumerate(self._spans(batch), start=batch):
            numbers = list(range(start, stop)) if order is None else order[start:stop].tolist()
            places = range(start, stop) if self.order.has_repeats else None
            yield Task(epoch, place, numbers, None, self.share.rank, is_padding, places)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StreamBatches:
    """An iterable, read by one reader in the main process, so that the order does not depend on the workers."""

    stream: Stream
    size: int
    drop_last: bool
    recipe: Recipe
    workers: Workers | None
    share: Share = Share()
    sharded: bool = False  # every rank has its own stream
    batched: bool = False  # what the stream gives are batches, and `size` is 1
    states: PositionStates

    def count_samples(self) -> int:
        if self.batched:
            raise WrongType("a stream of batches does not tell its number of samples; len() is its number of batches")
        return self._count()

    def _count(self) -> int:
        count = self.stream.count()
        if count is None:
            raise WrongType(
                f"a stream ({type(self.stream.samples).__name__}) has no length, so its batches can't be counted in "
                "advance; give it a __len__ if the number of samples is known"
            )
        return count

    def count_batches(self) -> int:
        return self._count() // self.size if self.drop_last else -(-self._count() // self.size)

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        return None

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        tasks = self._tasks(epoch, batch, state)
        batches = self.recipe.build_here(tasks) if self.workers is None else self.workers.build(tasks)
        return _check_dtypes(batches, self.recipe)

    def state_at(self, epoch: int, batch: int) -> Any:
        return self.states.find(epoch, batch)

    def for_rank(self, share: Share) -> "Batches":
        if not self.sharded:
            if self.batched:
                raise InvalidArgument(
                    f"a stream of batches can't be shared by {share.size} ranks: each of them would read all of it; "
                    "pass a stream of samples, or say with Loader(..., sharded=True) that every rank has its own"
                )
            return replace(self, share=share)
        check_sharding(self.stream.samples, share)
        return replace(self, share=share, size=1 if self.batched else own_size(self.size, share))

    def describe_sharing(self) -> str:
        if self.sharded:
            return f"each of the {self.share.size} ranks reads a stream of its own"
        return (
            f"each of the {self.share.size} ranks reads the whole stream and takes its share of every batch, so the "
            "stream has to give the same samples on all ranks"
        )

    def _tasks(self, epoch: int, batch: int, state: Any = None) -> Iterator[Task]:
        """Reads the batches of an epoch; without a state, the samples before `batch` are read and dropped."""
        size, expected, own = self.size, self.stream.count(), self.share.rank if self.sharded else 0
        start = 0 if state is None else batch * size
        reader = self.stream.read(epoch, start, None if state is None else as_source_state(state), rank=own)
        with preserve_generators():
            skipped = start + sum(1 for _ in islice(reader, batch * size - start))
        if batch and skipped <= (batch - 1) * size and state is None:
            raise InvalidArgument(
                f"batch {batch} of epoch {epoch} does not exist: the source ended after {skipped} samples"
            )
        for place in count(batch):
            with preserve_generators():
                samples = list(islice(reader, size))
            if not samples and place == 0:
                raise BadData(
                    f"the source gave no samples in epoch {epoch}; an iterable has to start again each time that "
                    "iter() is called on it"
                )
            if samples and expected is not None and place * size + len(samples) > expected:
                raise BadData(
                    f"the {type(self.stream.samples).__name__} gives more samples than its __len__ says ({expected}); "
                    "let it return the number of samples (not of batches), or remove it"
                )
            if not samples or (self.drop_last and len(samples) < size):
                return
            self.states.note(epoch, place + 1, ahead=0 if self.workers is None else self.workers.ahead)
            start, stop, is_padding = (0, len(samples), False) if self.sharded else self.share.rows(len(samples))
            numbers = list(range(place * size + start, place * size + stop))
            if own:  # other random numbers than rank 0
                numbers = [number + (own << 48) for number in numbers]
            yield Task(epoch, place, numbers, samples[start:stop], self.share.rank, is_padding)


# --- DataLoaders

Generator = Any  # a generator of torch, numpy or Python


@dataclass(frozen=True, eq=False, repr=False)
class DataLoaderBatches:
    """The batches of a torch DataLoader, as it gives them."""

    loader: DataLoader[Any]
    states: PositionStates
    sharded: bool = False  # every rank has its own DataLoader, as its user says
    ranks: int = 1

    def count_samples(self) -> int:
        raise WrongType("a DataLoader does not tell its number of samples; len() is its number of batches")

    def count_batches(self) -> int:
        try:
            return len(self.loader)
        except TypeError as error:  # over an IterableDataset
            raise WrongType(f"this DataLoader has no length: {error}") from None

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        sampler: Any = self.loader.batch_sampler
        is_plain = type(sampler) is BatchSampler or type(sampler).__module__.startswith("torchdata.")
        if isinstance(self.loader.dataset, IterableDataset) or not is_plain:
            return None
        samples, size = len(sampler.sampler), sampler.batch_size  # pyright: ignore[reportArgumentType]
        stop = samples - samples % size if sampler.drop_last else samples
        return (min(size, stop - start) for start in range(batch * size, stop, size))

    def state_at(self, epoch: int, batch: int) -> Any:
        return self.states.find(epoch, batch)

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        for target in (self.loader, self.loader.dataset, *samplers_of(self.loader)):
            set_epoch(target, epoch)
        if epoch and state is None:
            self._start_persistent_workers()
        current = EpochOfStream(epoch)
        if state is not None:
            if batch == length_of(self):  # some loaders would begin the next epoch
                return iter(())
            self.loader.load_state_dict(as_source_state(state))  # pyright: ignore[reportAttributeAccessIssue]
            return self._read(current.call(iter, self.loader), current, batch)
        batches = current.call(iter, self.loader)
        # Skipped now and not at the first `next`: the caller sets the generators for the time of this call only.
        skipped = sum(1 for _ in islice(self._read(batches, current, 0), batch))
        if skipped < batch:
            raise InvalidArgument(
                f"batch {batch} of epoch {epoch} does not exist: the DataLoader ended after {skipped} batches"
            )
        return self._read(batches, current, batch)

    def _read(self, batches: Iterator[Any], current: EpochOfStream, batch: int) -> Iterator[Any]:
        """Yields the remaining batches; raises if there are more than the DataLoader tells."""
        known = length_of(self)
        expected = math.inf if known is None else known
        for place in count(batch):
            try:
                value = current.call(next, batches)
            except StopIteration:
                return
            if place >= expected:
                raise BadData(
                    f"the DataLoader gives more batches than len() of it says ({expected}); correct the __len__ of its "
                    "dataset, sampler or batch_sampler, or remove it"
                )
            self.states.note(current.epoch, place + 1)
            yield value

    def for_rank(self, share: Share) -> "Batches":
        """Checks that the DataLoader gives this rank its own share, because it can't be cut here."""
        if not self.sharded:
            raise InvalidArgument(
                f"a DataLoader can't be shared by {share.size} ranks: each of them would read all of it; pass its "
                "dataset, with the batch_size of all ranks together, or give the DataLoader a DistributedSampler; one "
                "that reads only this rank's part of the data is accepted with Loader(..., sharded=True)"
            )
        check_sharding(self.loader, share)
        return replace(self, ranks=share.size)

    def describe_sharing(self) -> str:
        sampler = self._distributed_sampler()
        note = f"each of the {self.ranks} ranks has its own DataLoader, with its own batches"
        if not isinstance(sampler, DistributedSampler) or not isinstance(sampler.dataset, Sized):
            return note
        count = len(sampler.dataset)
        extra = sampler.total_size - count
        if extra == 0:
            return note
        return (
            f"{note}; its DistributedSampler {'repeats' if extra > 0 else 'leaves out'} {abs(extra)} of {count} "
            "samples in every epoch, so that all ranks have the same number (pass the dataset to use each sample once)"
        )

    def _distributed_sampler(self) -> Any:
        """The sampler that knows about ranks (torch's `DistributedSampler`, or one like it), or None."""
        samplers = (
            each for each in samplers_of(self.loader) if hasattr(each, "num_replicas") and hasattr(each, "rank")
        )
        return next(samplers, None)

    def _start_persistent_workers(self) -> None:
        """Starts workers that live across epochs, if another process iterated over the epochs before.

        A DataLoader draws a seed when it starts such workers, and only then. A resumed run has to start them without
        changing the state of any generator.
        """
        if self.loader.persistent_workers and self.loader._iterator is None:
            generators = find_generators(self.loader)
            states = get_states(generators)
            with preserve_generators():
                iter(self.loader)
            set_states(generators, states)


def find_generators(root: object) -> dict[str, Generator]:
    """Finds every random generator in the attributes of a dataset or DataLoader, such as `sampler.generator`."""
    return dict(_visit(root, "", set()))


def _visit(owner: object, prefix: str, seen: set[int]) -> Iterator[tuple[str, Generator]]:
    # Looked up when needed: importing numpy.random takes some milliseconds.
    generator_types = torch.Generator, np.random.Generator, np.random.RandomState, random.Random
    attributes = vars(owner) if hasattr(owner, "__dict__") else {}
    for types in (generator_types, (Sampler, Dataset, DataLoader)):  # its own generators first: others may share them
        for name, value in attributes.items():
            if not isinstance(value, types) or id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, generator_types):
                yield f"{prefix}{name}", value
            else:
                yield from _visit(value, f"{prefix}{name}.", seen)


def get_states(generators: Mapping[str, Generator]) -> dict[str, Any]:
    """Returns the state of each generator as tensors and plain values."""
    return {name: _get_state(generator) for name, generator in generators.items()}


def set_states(generators: Mapping[str, Generator], states: Mapping[str, Any]) -> None:
    """Sets the state of every generator; raises `StateMismatch` and changes none if one does not fit."""
    if set(generators) != set(states):
        found, expected = (", ".join(sorted(names)) or "none" for names in (generators, states))
        raise StateMismatch(
            f"the DataLoader has other generators than the saved state: expected {expected}, found {found}"
        )
    before = get_states(generators)
    for name, generator in generators.items():
        try:
            _set_state(generator, states[name])
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            for changed in generators:
                _set_state(generators[changed], before[changed])
            raise StateMismatch(
                f"the saved state of the DataLoader's generator {name!r} can't be loaded: {error}"
            ) from error


def _get_state(generator: Generator) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"version": version, "words": torch.tensor(words), "gauss": gauss}
    is_legacy = isinstance(generator, np.random.RandomState)
    state = generator.get_state(legacy=False) if is_legacy else generator.bit_generator.state
    return map_leaves(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, state)


def _set_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(map_tensors(Tensor.numpy, state))
    else:
        generator.bit_generator.state = map_tensors(Tensor.numpy, state)
