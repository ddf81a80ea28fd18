"""A torch DataLoader as a source: it batches and shuffles by itself, and its random generators can be saved."""

import random
from collections.abc import Iterator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from stoker._tree import map_leaves, map_tensors
from stoker.data._batching import BatchSource, Share, check_batch_exists
from stoker.data._rng import preserve_generators
from stoker.data._source import set_epoch
from stoker.errors import InvalidArgument, StateMismatch, WrongType

Generator = Any  # a generator of torch, numpy or Python


@dataclass(frozen=True)
class DataLoaderBatches(BatchSource):
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

    def for_rank(self, share: Share) -> BatchSource:
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

    def describe_sharing(self) -> str | None:
        sampler = self._distributed_sampler()
        ranks = "ranks" if sampler is None else f"{sampler.num_replicas} ranks"
        note = f"each of the {ranks} has a DataLoader of its own, with batches of its own"
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
    """Sets the state of every generator; if one does not fit, all keep their states and `StateMismatch` is raised."""
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
            for each in generators:
                _set_state(generators[each], before[each])
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
