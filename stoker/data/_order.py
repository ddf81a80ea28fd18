"""The order in which an epoch reads numbered samples: a pure function of (seed, epoch)."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.data._rng import BUCKET, DRAW, MIX, ORDER, LazyPermutation, permutation, random_key
from stoker.errors import InvalidArgument, WrongType


@dataclass(frozen=True, eq=False)
class Order:
    """Every sample once: in the order of the source, or with a seed in another order in each epoch."""

    samples: int  # in the source
    seed: int | None

    @property
    def length(self) -> int:
        """Samples that an epoch reads."""
        return self.samples

    @property
    def has_repeats(self) -> bool:
        """Whether an epoch may read a sample more than once."""
        return False

    def draw(self, epoch: int) -> Tensor | LazyPermutation | None:
        """Returns the sample numbers of an epoch (int64, on the CPU), or None for all of them in their own order."""
        return None if self.seed is None else permutation(self.samples, self.seed, epoch=epoch)

    def draw_all(self, epoch: int) -> Tensor:
        """Returns the sample numbers of an epoch as a tensor."""
        order = self.draw(epoch)
        if order is None:
            return torch.arange(self.length, device="cpu")
        return order if isinstance(order, Tensor) else order[:]


# Of more samples no rank holds the whole order: a tensor of 10⁹ would take 8 GB and minutes in each process.
_MOST_IN_A_TENSOR = 2**25


@dataclass(frozen=True, eq=False)
class LazyOrder(Order):
    """Every sample once in another order in each epoch, of which a rank computes what it reads."""

    def draw(self, epoch: int) -> LazyPermutation:
        assert self.seed is not None
        return LazyPermutation(self.samples, random_key(ORDER, self.seed, epoch))


def make_order(samples: int, seed: int | None) -> Order:
    """Every sample once; the order of many samples is computed while it is read."""
    return Order(samples, seed) if seed is None or samples <= _MOST_IN_A_TENSOR else LazyOrder(samples, seed)


@dataclass(frozen=True, eq=False)
class Cycled(Order):
    """The epochs of another order one after the other, cut into epochs of `count` samples.

    >>> order = repeat_order(Order(3, None), 4)
    >>> order.draw(0).tolist(), order.draw(1).tolist()
    ([0, 1, 2, 0], [1, 2, 0, 1])
    """

    count: int
    passes: Order

    @property
    def length(self) -> int:
        return self.count

    @property
    def has_repeats(self) -> bool:
        return True

    def draw(self, epoch: int) -> Tensor:
        length = self.passes.length
        start, stop = epoch * self.count, (epoch + 1) * self.count
        parts: list[Tensor] = []
        for number in range(start // length, -(-stop // length)):
            first, last = max(start - number * length, 0), min(stop - number * length, length)
            order = self.passes.draw(number)
            parts.append(torch.arange(first, last, device="cpu") if order is None else order[first:last])
        return torch.cat(parts)


def repeat_order(order: Order, count: int) -> Cycled:
    """Repeats an order, in epochs of `count` samples; of one with every sample once, none comes more often."""
    return Cycled(order.samples, order.seed, count, order)


@dataclass(frozen=True, eq=False)
class Drawn(Order):
    """As many samples as the source has, each drawn with replacement in proportion to its weight."""

    weights: Tensor = field(repr=False)  # float64 [samples], on the CPU
    checksum: int = field(init=False)  # of the weights, for `Loader.orders`

    def __post_init__(self) -> None:
        object.__setattr__(self, "checksum", zlib.crc32(self.weights.numpy().tobytes()))

    @property
    def has_repeats(self) -> bool:
        return True

    def draw(self, epoch: int) -> Tensor:
        assert self.seed is not None
        generator = torch.Generator("cpu").manual_seed(random_key(DRAW, self.seed, epoch))
        ends = self.weights.cumsum(0)
        places = torch.rand(self.samples, generator=generator, dtype=torch.float64, device="cpu") * ends[-1]
        last = self.weights.nonzero()[-1, 0]  # a place that was rounded up to the end belongs to it
        return torch.searchsorted(ends, places, right=True).clamp(max=last)


_CHUNK = 64  # batches whose samples are sorted together, if there are many different lengths


@dataclass(frozen=True, eq=False)
class Bucketed(Order):
    """The samples of another order in batches of similar length, which come in a random order.

    >>> lengths = torch.tensor([5, 1, 5, 1])
    >>> Bucketed(4, None, Order(4, None), 2, lengths, is_rounded=True).draw(0).tolist()
    [1, 3, 0, 2]

    A last batch that is not full has the samples that would be last without buckets, so that `drop_last` leaves out any
    samples and not the longest.
    """

    base: Order
    size: int  # of a batch
    lengths: Tensor = field(repr=False)  # int64 [samples], on the CPU
    is_rounded: bool  # whether there are so few lengths that all samples can be sorted at once: equal ones stay mixed
    checksum: int = field(init=False)  # of the lengths, for `Loader.orders`

    def __post_init__(self) -> None:
        object.__setattr__(self, "checksum", zlib.crc32(self.lengths.numpy().tobytes()))

    @property
    def length(self) -> int:
        return self.base.length

    @property
    def has_repeats(self) -> bool:
        return self.base.has_repeats

    def draw(self, epoch: int) -> Tensor:
        order = self.base.draw_all(epoch)
        full = self.length // self.size * self.size
        chunk = full if self.is_rounded or self.seed is None else _CHUNK * self.size
        parts = [part[self.lengths[part].argsort(stable=True)] for part in order[:full].split(max(chunk, 1))]
        batches = torch.cat(parts).view(full // self.size, self.size)
        if self.seed is not None:
            batches = batches[permutation(len(batches), self.seed, epoch=epoch, purpose=BUCKET)]
        return torch.cat([batches.flatten(), order[full:]])


@dataclass(frozen=True, eq=False)
class Mixed(Order):
    """Samples of several joined sources, each with its own number of samples in every epoch, in a random order."""

    parts: tuple[Cycled, ...]

    @property
    def length(self) -> int:
        return sum(part.length for part in self.parts)

    @property
    def has_repeats(self) -> bool:
        return True

    def draw(self, epoch: int) -> Tensor:
        owners = draw_owners([part.length for part in self.parts], self.seed, epoch)
        order = torch.empty_like(owners)
        starts = accumulate((part.samples for part in self.parts), initial=0)
        for number, (part, start) in enumerate(zip(self.parts, starts, strict=False)):
            order[owners == number] = part.draw(epoch) + start
        return order


def draw_owners(counts: Sequence[int], seed: int | None, epoch: int) -> Tensor:
    """Returns which source each place of an epoch belongs to, each as often as its count says: int64, on the CPU.

    The places are in random order, or without a seed as evenly spaced as the counts allow.
    """
    if seed is None:
        return interleave(counts)
    owners = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), torch.tensor(counts, device="cpu"))
    return owners[permutation(len(owners), seed, epoch=epoch, purpose=MIX)]


def interleave(counts: Sequence[int]) -> Tensor:
    """Assigns places to parts as evenly as their counts allow: [4, 2] gives 0, 1, 0, 0, 1, 0."""
    total = sum(counts)
    ideal = np.concatenate([(np.arange(count) + 0.5) * total / max(count, 1) for count in counts])
    owner = np.repeat(np.arange(len(counts)), counts)
    return torch.from_numpy(owner[ideal.argsort(stable=True)])


def apportion(total: int, fractions: Sequence[float]) -> list[int]:
    """Divides a total in proportion to fractions that sum to 1, rounded by the largest remainder."""
    exact = [each * total for each in fractions]
    counts = [int(each) for each in exact]
    by_remainder = sorted(range(len(counts)), key=lambda part: counts[part] - exact[part])
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    return counts


def as_sampling_weights(weights: Any, samples: int) -> Tensor:
    """Checks the weights for drawing samples: one for each, none negative, not all zero."""
    try:
        found = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise WrongType(f"sampling_weights are numbers, one for each sample; got {type(weights).__name__}") from None
    if found.shape != (samples,):
        raise InvalidArgument(
            f"sampling_weights need one weight for each of the {samples} samples; got shape {list(found.shape)}"
            + "; of class weights use class_weights[labels]" * (found.ndim == 1)
        )
    if not found.isfinite().all() or bool((found < 0).any()) or not bool(found.any()):
        raise InvalidArgument("sampling_weights are at least 0 and finite, and one of them is more than 0")
    return found
