"""How each kind of source is cut into batches, and how several ranks share a batch."""

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from stoker._tree import map_leaves, map_tensors
from stoker.data._arguments import check_int
from stoker.data._batch import InProcess, PaddingBatch, RowSelection, Task
from stoker.data._rng import permutation, preserve_generators
from stoker.data._source import Selection, Stream, View, set_epoch
from stoker.data._workers import Workers
from stoker.errors import BadData, InvalidArgument, StateMismatch, WrongType


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
class NumberedBatches:
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

    def for_rank(self, share: Share) -> "Batches":
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

    def for_rank(self, share: Share) -> "Batches":
        # A copy of the builder has its own workers: batches that the original prepares are of another share.
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
class StreamBatches:
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

    def iterate(self, epoch: int, batch: int) -> Iterator[Any]:
        return self.builder.build(self._tasks(epoch, batch))

    def for_rank(self, share: Share) -> "Batches":
        if getattr(self.stream.samples, "_distributed", None) is not None:  # of a Hugging Face stream
            raise InvalidArgument(
                "this stream is split by rank already (split_dataset_by_node), and would be split a second time; pass "
                "it unsplit: every rank reads it and takes its share of each batch"
            )
        return replace(self, builder=copy.copy(self.builder), share=share)

    def describe_sharing(self) -> str:
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
            start, stop, is_padding = self.share.rows(len(samples))
            numbers = list(range(place * size + start, place * size + stop))
            yield Task(epoch, place, numbers, samples[start:stop], self.share.rank, is_padding)
            place += 1


# --- DataLoaders

Generator = Any  # a generator of torch, numpy or Python


@dataclass(frozen=True)
class DataLoaderBatches:
    """The batches of a torch DataLoader, as it gives them."""

    loader: DataLoader[Any]

    def count_samples(self) -> int:
        raise WrongType("a DataLoader does not tell its number of samples; len() is its number of batches")

    def count_batches(self) -> int:
        try:
            return len(self.loader)
        except TypeError as error:  # over an IterableDataset
            raise WrongType(f"this DataLoader has no length: {error}") from None

    def check_start(self, batch: int) -> None:
        with suppress(WrongType):  # without a length, the end is known only after reading
            check_batch_exists(batch, self.count_batches())

    def iterate(self, epoch: int, batch: int) -> Iterator[Any]:
        for target in (self.loader.dataset, *self._samplers()):
            set_epoch(target, epoch)
        if epoch:
            self._start_persistent_workers()
        batches = iter(self.loader)
        # Skipped now and not at the first `next`: the caller sets the generators for the time of this call only.
        skipped = sum(1 for _ in islice(batches, batch))
        if skipped < batch:
            raise InvalidArgument(
                f"batch {batch} of epoch {epoch} does not exist: the DataLoader ended after {skipped} batches"
            )
        return batches

    def for_rank(self, share: Share) -> "Batches":
        """Checks that the DataLoader gives this rank its own share, because it can't be cut here."""
        sampler = self._distributed_sampler()
        if sampler is None:
            raise InvalidArgument(
                f"a DataLoader can't be shared by {share.size} ranks: each of them would read all of it; pass its "
                "dataset, with the batch_size of all ranks together, or give the DataLoader a DistributedSampler"
            )
        if (sampler.rank, sampler.num_replicas) != (share.rank, share.size):
            raise InvalidArgument(
                f"the DataLoader's {type(sampler).__name__} is for rank {sampler.rank} of {sampler.num_replicas}, but "
                f"this is rank {share.rank} of {share.size}; create it with num_replicas={share.size} and "
                f"rank={share.rank}, or pass the dataset, with the batch_size of all ranks together"
            )
        return self

    def describe_sharing(self) -> str:
        sampler = self._distributed_sampler()
        ranks = "ranks" if sampler is None else f"{sampler.num_replicas} ranks"
        note = f"each of the {ranks} has its own DataLoader, with its own batches"
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
        samplers = (each for each in self._samplers() if hasattr(each, "num_replicas") and hasattr(each, "rank"))
        return next(samplers, None)

    def _samplers(self) -> list[Any]:
        inner = getattr(self.loader.batch_sampler, "sampler", None)  # of a batch sampler that the user made
        return [self.loader.sampler, self.loader.batch_sampler, inner]

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


Batches = ColumnBatches | SampleBatches | StreamBatches | DataLoaderBatches


def find_generators(root: object) -> dict[str, Generator]:
    """Finds every random generator in the attributes of a dataset or DataLoader, such as `sampler.generator`."""
    return dict(_visit(root, "", set()))


def _visit(owner: object, prefix: str, seen: set[int]) -> Iterator[tuple[str, Generator]]:
    # Looked up when needed: importing numpy.random takes some milliseconds.
    generator_types = torch.Generator, np.random.Generator, np.random.RandomState, random.Random
    attributes = vars(owner) if hasattr(owner, "__dict__") else {}
    for types in (generator_types, (Sampler, Dataset)):  # its own generators first: what it holds may share them
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
    """Sets the state of every generator; raises `StateMismatch` if one does not fit."""
    if set(generators) != set(states):
        found, expected = (", ".join(sorted(names)) or "none" for names in (generators, states))
        raise StateMismatch(
            f"the DataLoader has other generators than the saved state: expected {expected}, found {found}"
        )
    for name, generator in generators.items():
        try:
            _set_state(generator, states[name])
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
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
