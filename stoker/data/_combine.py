"""Several sources in one loader: side by side (`zip`), one after another in a random order (`mix`), and by epoch."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from numbers import Real
from typing import Any, Literal

from stoker.data._arguments import check_function, check_int
from stoker.data._batch import PaddingBatch
from stoker.data._batching import (
    Batches,
    DataLoaderBatches,
    NumberedBatches,
    Share,
    StreamBatches,
    check_start,
    length_of,
)
from stoker.data._order import apportion, draw_owners, repeat_order
from stoker.data._rng import PART, preserve_generators, random_key, seed_generators
from stoker.errors import BadData, InvalidArgument, WrongType

_END = object()


class Combination:
    """Several sources for a `Loader` or `fit`, as `zip`, `mix`, `cycle` and `by_epoch` return them."""


@dataclass(frozen=True, eq=False)
class Zip(Combination):
    """What `zip` returns: sources for a `Loader` or `fit`."""

    sources: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Mix(Combination):
    """What `mix` returns: sources for a `Loader` or `fit`."""

    sources: Mapping[str, Any]
    weights: Mapping[str, float] | None
    length: int | None
    by: Literal["batch", "sample"]


@dataclass(frozen=True, eq=False)
class Cycle(Combination):
    """What `cycle` returns: a source inside of `zip`."""

    source: Any


@dataclass(frozen=True, eq=False)
class ByEpoch(Combination):
    """What `by_epoch` returns: a source for a `Loader` or `fit`."""

    function: Callable[[int], Any]


def zip(**sources: Any) -> Zip:
    """Reads several sources side by side: a batch is a mapping from each name to a batch of that source.

    >>> import torch
    >>> from stoker.data import Loader, cycle
    >>> both = Loader(zip(labeled=cycle(torch.arange(3)), unlabeled=torch.arange(10, 18)), batch_size=4)
    >>> list(both)[1]
    {'labeled': tensor([1, 2, 0, 1]), 'unlabeled': tensor([14, 15, 16, 17])}

    A source is anything that a `Loader` takes, or a `Loader` with its own batch size, transform and workers; the
    options of the loader around them are for the others. Every source is shuffled in an order of its own.

    An epoch ends with the shortest source; `cycle` makes one repeat instead. All batches are full, so that every step
    weighs its sources alike: the samples at the end of a source that do not fill a batch are left out.
    """
    return Zip(_check_sources("zip", sources))


def cycle(source: Any) -> Cycle:
    """Repeats a source inside of `zip` for as long as the others last.

    >>> import torch
    >>> from stoker.data import Loader, zip
    >>> [batch["a"].tolist() for batch in Loader(zip(a=cycle(torch.arange(3)), b=torch.arange(4)), batch_size=2)]
    [[0, 1], [2, 0]]

    It continues where the epoch before has ended, so that no sample comes more often than another, and each pass has
    its own order. A stream and a `DataLoader` start again in each epoch.
    """
    if isinstance(source, Combination):
        raise WrongType(f"cycle repeats one source; got a {type(source).__name__.lower()} of several")
    return Cycle(source)


def mix(
    *, weights: Mapping[str, float] | None = None, length: int | None = None, by: str = "batch", **sources: Any
) -> Mix:
    """Reads several sources in turns, in a random order: each batch comes from one of them.

    >>> import torch
    >>> from stoker.data import Loader
    >>> tasks = mix(a=torch.arange(6), b=torch.arange(10, 14), weights={"a": 0.25, "b": 0.75}, length=4)
    >>> [batch["b"].tolist() if "b" in batch else "a" for batch in Loader(tasks, batch_size=2)]
    [[10, 11], 'a', [12, 13], [10, 11]]

    A batch is a mapping with one entry: the name of its source, and the batch. An epoch has `length` batches, divided
    by weight: a weight of 0.7 is 70 % of every epoch, and a source that ends before starts again in another order.
    Without `length` there are as many batches as the sources have together; without `weights` every batch of every
    source comes once. The order is a function of (seed, epoch); without `shuffle` the sources are evenly spaced.

    With `by="sample"` samples are mixed instead, and batches are plain: `length` counts samples. All sources then need
    samples of one kind, with numbers (no streams); the `transform` and `batcher` of the `Loader` are for all of them.
    """
    if by not in ("batch", "sample"):
        raise InvalidArgument(f'by is "batch" or "sample"; got {by!r}')
    names = _check_sources("mix", sources)
    if weights is not None:
        if not isinstance(weights, Mapping) or set(weights) != set(names):
            raise InvalidArgument(f"weights needs a number for each of {', '.join(names)}; got {weights!r}")
        numbers = list(weights.values())
        if not all(isinstance(each, Real) and 0 < each < float("inf") for each in numbers):
            raise InvalidArgument(f"weights are more than 0 and finite; got {dict(weights)}")
    elif by == "sample" or length is not None:
        option = 'by="sample"' if length is None else "length="
        raise InvalidArgument(f"{option} needs weights=, as in weights={dict.fromkeys(names, 1.0)}")
    return Mix(names, weights, None if length is None else check_int("length", length, least=1), by)


def by_epoch(function: Callable[[int], Any]) -> ByEpoch:
    """Calls a function of the epoch (from 0) for the source of each epoch: a curriculum, for example.

    >>> import torch
    >>> from stoker.data import Loader
    >>> loader = Loader(by_epoch(lambda epoch: torch.arange(2 + epoch)), batch_size=8)
    >>> list(loader), list(loader)
    ([tensor([0, 1])], [tensor([0, 1, 2])])

    The function returns anything that a `Loader` takes, or a `Loader`. It has to return the same for the same epoch, so
    that a resumed run can call it again. The number of batches may change, so it is not known in advance. A `batchable`
    transform is for the `Loader` around it, not for one that the function returns.
    """
    check_function("by_epoch's argument", function)
    return ByEpoch(function)


def _check_sources(name: str, sources: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(sources) < 2:
        raise InvalidArgument(f"{name} needs at least two sources with names, as in {name}(a=..., b=...)")
    for each, source in sources.items():
        if isinstance(source, Combination) and not (name == "zip" and isinstance(source, Cycle)):
            raise WrongType(f"{each!r} is a {type(source).__name__.lower()}, which can't be a source of {name}")
    return dict(sources)


# --- batches of several sources


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Composite:
    """Batches that are made of those of other sources."""

    parts: Mapping[str, Batches]

    def map_parts(self, function: Callable[[Batches], Any]) -> Any:
        """The same with other parts."""
        return replace(self, parts={name: function(part) for name, part in self.parts.items()})

    def for_rank(self, share: Share) -> Any:
        return self.map_parts(lambda part: part.for_rank(share))

    def count_samples(self) -> int:
        raise WrongType("a loader over several sources has no number of samples; len() is its number of batches")

    def count_batches(self) -> int:
        raise NotImplementedError

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        return None

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        raise NotImplementedError

    def state_at(self, epoch: int, batch: int) -> Any:
        return None


def leaves_of(batches: Any) -> list[Any]:
    """The batches of single sources that batches are made of: themselves, if there is one source."""
    if not isinstance(batches, Composite):
        return [batches]
    return [leaf for part in batches.parts.values() for leaf in leaves_of(part)]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ZipBatches(Composite):
    """A batch of every source at a time; `length` is None if a stream decides when an epoch ends."""

    length: int | None

    def count_batches(self) -> int:
        if self.length is None:
            raise WrongType("one of the sources is a stream without a length, so the batches can't be counted")
        return self.length

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        # The samples of a batch are those of the first source.
        return next(iter(self.parts.values())).sizes(batch, epoch)

    def for_rank(self, share: Share) -> "ZipBatches":
        for name, part in self.parts.items():
            leaf: Any = leaves_of(part)[0]
            if isinstance(leaf, DataLoaderBatches) or (isinstance(leaf, StreamBatches) and leaf.batched):
                continue  # each rank has batches of its own
            if leaf.size % share.size:
                raise InvalidArgument(
                    f"{name!r} has batches of {leaf.size} samples, which {share.size} ranks can't divide equally: with "
                    "sources side by side every rank needs the same part of each; choose a multiple"
                )
        return super().for_rank(share)

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[dict[str, Any]]:
        states = state or {}
        readers = {name: part.iterate(epoch, batch, states.get(name)) for name, part in self.parts.items()}
        for place in count(batch) if self.length is None else range(batch, self.length):
            found: dict[str, Any] = {}
            for name, reader in readers.items():
                value = next(reader, _END)
                if value is _END and self.length is None:
                    return
                if value is _END:
                    raise BadData(f"{name!r} ended after {place} batches in epoch {epoch}; expected {self.length}")
                found[name] = value
            yield found

    def state_at(self, epoch: int, batch: int) -> dict[str, Any] | None:
        states = {name: part.state_at(epoch, batch) for name, part in self.parts.items()}
        return {name: state for name, state in states.items() if state is not None} or None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MixBatches(Composite):
    """A batch of one source at a time; every epoch has `counts` of them."""

    counts: tuple[int, ...]
    seed: int | None

    def count_batches(self) -> int:
        return sum(self.counts)

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        owners, parts = draw_owners(self.counts, self.seed, epoch).tolist(), list(self.parts.values())
        sizes = [part.sizes(owners[:batch].count(number), epoch) for number, part in enumerate(parts)]
        known = [each for each in sizes if each is not None]
        return None if len(known) < len(sizes) else (next(known[owner]) for owner in owners[batch:])

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        owners = draw_owners(self.counts, self.seed, epoch).tolist()
        names, readers = list(self.parts), {}
        for place in range(batch, len(owners)):
            name = names[owners[place]]
            if name not in readers:
                before = owners[:place].count(owners[place])
                readers[name] = self.parts[name].iterate(epoch, before)
            value = next(readers[name], _END)
            if value is _END:
                raise BadData(
                    f"{name!r} ended before it gave the {self.counts[owners[place]]} batches of epoch {epoch}"
                )
            # Padding is not counted, whatever source it is from.
            yield PaddingBatch({name: value.batch}) if isinstance(value, PaddingBatch) else {name: value}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PassBatches(Composite):
    """One source that can't be read at any position, pass after pass if it `repeats`.

    What a `DataLoader` draws from the global generators is a function of `key`, the epoch and the batch, so that
    several of them can be read again together.
    """

    key: int
    repeats: bool
    full: int | None  # batches of a pass that have their full size, if that is known

    def count_batches(self) -> int:
        return self._part.count_batches() if self.full is None else self.full

    @property
    def _part(self) -> Batches:
        return next(iter(self.parts.values()))

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        return None

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        place = 0
        for number in count():
            key = self.key, epoch, number
            with preserve_generators():
                seed_generators(random_key(PART, *key))
                reader = self._part.iterate(self._epoch_of_pass(epoch, number), 0)
            for within in count():
                if within == self.full:
                    break
                with preserve_generators():
                    seed_generators(random_key(PART, *key, within))
                    value = next(reader, _END)
                if value is _END:
                    break
                place += 1
                if place > batch:
                    yield value
            if not self.repeats:
                return
            if place == 0:
                raise BadData(f"a source that is repeated gave no batch in epoch {epoch}")

    def _epoch_of_pass(self, epoch: int, number: int) -> int:
        if isinstance(self._part, NumberedBatches):
            return random_key(PART, epoch, number) >> 1
        return epoch + number if self.repeats else epoch


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EpochFunctionBatches(Composite):
    """The batches of the source that a function returns for an epoch; the part is that of epoch 0."""

    make: Callable[[int], Batches]
    share: Share = field(default_factory=Share)

    def count_batches(self) -> int:
        raise WrongType("the data is a function of the epoch, so the batches of an epoch can't be counted in advance")

    def for_rank(self, share: Share) -> "EpochFunctionBatches":
        return replace(super().for_rank(share), share=share)

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        made = self.make(epoch)
        if type(made) is not type(next(iter(self.parts.values()))):
            raise BadData(f"the function of the epoch returned another kind of data for epoch {epoch} than for epoch 0")
        made = made if self.share.size == 1 else made.for_rank(self.share)
        check_start(made, batch)
        return made.iterate(epoch, batch)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PaddedBatches(Composite):
    """The batches of a rank that has its own part of the data, with padding up to the rank that has the most."""

    length: int  # batches of every rank

    @property
    def _own(self) -> Batches:
        return next(iter(self.parts.values()))

    def count_batches(self) -> int:
        return self.length

    def sizes(self, batch: int, epoch: int = 0) -> Iterator[int] | None:
        start = min(batch, self._own.count_batches() - 1)
        sizes = self._own.sizes(start, epoch)
        return None if sizes is None else (size for size, _ in self._repeat_last(sizes, start, batch))

    def iterate(self, epoch: int, batch: int, state: Any = None) -> Iterator[Any]:
        start = min(batch, self._own.count_batches() - 1)
        for value, is_padding in self._repeat_last(self._own.iterate(epoch, start, state), start, batch):
            yield PaddingBatch(value) if is_padding else value

    def _repeat_last(self, values: Iterator[Any], start: int, batch: int) -> Iterator[tuple[Any, bool]]:
        """Those of the values, counted from `start`, from `batch` on; then the last one again, as padding."""
        place, last = start, None
        for last in values:
            if place >= batch:
                yield last, False
            place += 1
        for _ in range(max(batch, place), self.length):
            yield last, True

    def state_at(self, epoch: int, batch: int) -> Any:
        return self._own.state_at(epoch, batch) if batch < self._own.count_batches() else None


# --- from sources to batches


def combine_zip(parts: Mapping[str, Batches], cycled: set[str], seed: int | None) -> ZipBatches:
    """Makes the batches of a zip from those of its sources."""
    if len(cycled) == len(parts):
        raise InvalidArgument("every source of this zip is repeated, so an epoch has no end; leave out one cycle()")
    parts = {  # without batches that are not full
        name: replace(part, drop_last=True) if isinstance(part, NumberedBatches | StreamBatches) else part
        for name, part in parts.items()
    }
    full = {name: _count_full(name, part, name in cycled) for name, part in parts.items()}
    ends = [full[name] for name in parts if name not in cycled]
    known = [each for each in ends if each is not None]
    length = min(known) if len(known) == len(ends) else None
    made = {
        name: _read_passes(part, _key(seed, number), repeats=name in cycled, batches=length, full=full[name])
        for number, (name, part) in enumerate(parts.items())
    }
    return ZipBatches(parts=made, length=length)


def _key(seed: int | None, number: int) -> int:
    return random_key(PART, seed or 0, number)


def _read_passes(part: Batches, key: int, *, repeats: bool, batches: int | None, full: int | None = None) -> Batches:
    """The batches of a source among others: one pass of it, or pass after pass if it `repeats`.

    Numbered samples, of which an epoch has a known number of `batches`, continue where the epoch before has ended.
    """
    if isinstance(part, NumberedBatches) and repeats and batches is not None:
        return replace(part, order=repeat_order(part.order, batches * part.size), drop_last=False)
    if isinstance(part, DataLoaderBatches) or repeats:
        return PassBatches(parts={"source": part}, key=key, repeats=repeats, full=full)
    return part


def _count_full(name: str, part: Batches, is_cycled: bool) -> int | None:
    """The batches of a pass that have their full size; None if they can't be counted."""
    if isinstance(part, NumberedBatches):
        if part.order.length < part.size and not is_cycled:
            raise InvalidArgument(
                f"{name!r} has {part.order.length} samples, less than a batch of {part.size}, and zip leaves out "
                "batches that are not full; repeat it with data.cycle(...), or choose a smaller batch_size"
            )
        return part.order.length // part.size
    sizes = None if isinstance(part, StreamBatches) else part.sizes(0)
    if sizes is not None:
        found = list(sizes)
        return sum(size == found[0] for size in found)
    return length_of(part)


def combine_mix(parts: Mapping[str, Batches], mixture: Mix, seed: int | None) -> MixBatches:
    """Makes the batches of a mix from those of its sources."""
    try:
        own = [part.count_batches() for part in parts.values()]
    except WrongType as error:
        if mixture.length is None:
            raise InvalidArgument(f"{error}; pass length=, the batches of an epoch, and weights=") from None
        own = []
    repeats = mixture.weights is not None
    counts = count_by_weight(mixture, mixture.length or sum(own)) if repeats else own
    made = {
        name: _read_passes(part, _key(seed, number), repeats=repeats, batches=counts[number])
        for number, (name, part) in enumerate(parts.items())
    }
    return MixBatches(parts=made, counts=tuple(counts), seed=seed)


def count_by_weight(mixture: Mix, total: int) -> list[int]:
    """Divides the places of an epoch among the sources."""
    assert mixture.weights is not None
    weights = [float(mixture.weights[name]) for name in mixture.sources]
    counts = apportion(total, [weight / sum(weights) for weight in weights])
    for number, name in enumerate(mixture.sources):
        if counts[number] == 0:
            raise InvalidArgument(
                f"the weight of {name!r} is so small that an epoch of {total} never reads it; raise it, or length="
            )
    return counts
