"""From the data that a user gives to loaders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, RandomSampler

from stoker.data import Loader, split
from stoker.distributed import World
from stoker.errors import InvalidArgument


class Loaders(NamedTuple):
    """The loaders of a fit; `notes` says what was decided about them."""

    train: Loader
    valid: dict[str, Loader]
    notes: list[str]

    def share(self, world: World) -> "Loaders":
        """The loaders of this rank, which has its share of every batch."""
        valid = {name: each.shared(world.rank, world.size) for name, each in self.valid.items()}
        return self._replace(train=self.train.shared(world.rank, world.size), valid=valid)


def make_loaders(train: Any, valid: Any, *, batch_size: int | None, seed: int, split_seed: int = 0) -> Loaders:
    """Creates a shuffled loader for training, and loaders in order for validation.

    `valid` is data, a fraction of the training data, a mapping of names to data, or None.
    """
    notes: list[str] = []
    if isinstance(valid, bool) or (isinstance(valid, int | float) and not 0 < valid < 1):
        raise InvalidArgument(f"valid is data, or a fraction of the training data between 0 and 1; got {valid!r}")
    if isinstance(valid, float):
        fraction = valid
        if isinstance(train, Loader | DataLoader):
            raise InvalidArgument(
                f"valid={fraction} is a fraction, but a {type(train).__name__} cannot be split: give the data that it "
                "loads, or split that with data.split"
            )
        train, valid = split(train, [1 - fraction, fraction], seed=split_seed)
        notes.append(f"{fraction:g} of the data, {len(valid)} samples, held out for validation (seed {split_seed})")
    sets: Any = {} if valid is None else valid if _is_mapping_of_sets(valid, train) else {"valid": valid}
    if valid is not None and not sets:
        raise InvalidArgument("valid is an empty mapping; leave it out, or give it data")
    if "train" in sets:
        raise InvalidArgument("a validation set cannot be called 'train', which is the name of the training data")
    # batch_size is for data that are not batched yet; if all of them are, it is an error.
    all_batched = all(_is_batched(each) for each in (train, *sets.values()))

    def size_for(source: Any) -> int | None:
        return None if _is_batched(source) and not all_batched else batch_size

    return Loaders(
        as_loader(train, batch_size=size_for(train), shuffle=seed),
        {str(name): as_loader(each, batch_size=size_for(each)) for name, each in sets.items()},
        notes,
    )


def as_loader(source: Any, *, batch_size: int | None, shuffle: int | None = None) -> Loader:
    """Returns a loader unchanged, and creates one for anything else; a stream keeps its own order."""
    if _is_batched(source):
        if batch_size is not None:
            raise InvalidArgument(
                f"batch_size={batch_size} has no effect on a {type(source).__name__}, which has its own; set it there"
            )
        return source if isinstance(source, Loader) else Loader(source)
    has_length = hasattr(source, "__len__")
    return Loader(source, batch_size=32 if batch_size is None else batch_size, shuffle=shuffle if has_length else None)


def as_ordered_loader(source: Any, *, batch_size: int | None) -> Loader:
    """Returns a loader for predictions: every sample in the order of the data, also if the given loader shuffles."""
    given = source.source if isinstance(source, Loader) else source
    if isinstance(given, DataLoader) and _has_distributed_sampler(given):
        raise InvalidArgument(
            "this DataLoader has a DistributedSampler, so predictions would be in another order than its data, and "
            "some of them twice: give its dataset, which stoker divides among the processes"
        )
    if isinstance(source, DataLoader) and isinstance(source.sampler, RandomSampler):
        raise InvalidArgument(
            "this DataLoader shuffles, so predictions could not be matched with its data: give its dataset, or a "
            "DataLoader that does not shuffle"
        )
    loader = as_loader(source, batch_size=batch_size)
    if loader.shuffle is None and not loader.drop_last:
        return loader
    settings = {name: getattr(loader, name) for name in ("batch_size", "workers", "batcher", "transform", "device")}
    return Loader(loader.source, **settings)


def _is_batched(source: Any) -> bool:
    return isinstance(source, Loader | DataLoader)


def _has_distributed_sampler(given: DataLoader[Any]) -> bool:
    samplers = [given.sampler, given.batch_sampler, getattr(given.batch_sampler, "sampler", None)]
    return any(hasattr(each, "num_replicas") and hasattr(each, "rank") for each in samplers)


def _is_mapping_of_sets(valid: Any, train: Any) -> bool:
    """Whether the values of a mapping are data sets; otherwise they are the columns of one."""
    if not isinstance(valid, Mapping) or (isinstance(train, Mapping) and valid.keys() == train.keys()):
        return False
    kinds = Loader | DataLoader | tuple | list | Mapping
    return all(isinstance(each, kinds) or _is_dataset(each) for each in valid.values())


def _is_dataset(value: Any) -> bool:
    """Whether a value has samples and is not an array."""
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "shape")
