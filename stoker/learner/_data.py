"""Whatever holds the data, to loaders: for training shuffled, for validation in order."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, RandomSampler

from stoker.data import Loader, split
from stoker.distributed import World
from stoker.errors import InvalidArgument


@dataclass(frozen=True)
class Data:
    """The loaders of a fit, and what was decided on the way to them."""

    train: Loader
    valid: dict[str, Loader]
    notes: list[str]

    def shared(self, world: World) -> "Data":
        """The same data, of whose batches this rank has its share."""
        valid = {name: each.shared(world.rank, world.size) for name, each in self.valid.items()}
        return replace(self, train=self.train.shared(world.rank, world.size), valid=valid)


def loaders(train: Any, valid: Any, *, batch_size: int | None, seed: int, held_out: int = 0) -> Data:
    """Loaders for a fit; `valid` is data, a fraction of the training data, several sets by name, or None."""
    notes: list[str] = []
    if isinstance(valid, bool) or (isinstance(valid, int | float) and not 0 < valid < 1):
        raise InvalidArgument(f"valid is data, or a fraction between 0 and 1 of the training data; got {valid!r}")
    if isinstance(valid, float):
        if isinstance(train, Loader | DataLoader):
            raise InvalidArgument(
                f"valid={valid} is a fraction, and a {type(train).__name__} can't be split: split its source with "
                "data.split, or give the source itself"
            )
        train, valid, share = *split(train, [1 - valid, valid], seed=held_out), valid
        notes.append(f"{share:g} of the data, {len(valid)} samples, held out for validation (seed {held_out})")
    sets: Any = {} if valid is None else valid if _is_several(valid, train) else {"valid": valid}
    if valid is not None and not sets:
        raise InvalidArgument("valid is a mapping without any set; leave it out, or give it data")
    if "train" in sets:
        raise InvalidArgument("a validation set can't be called 'train': that name is the training's own")
    # The batch size is for what does not come in batches already; where all of it does, it is an error.
    ready = all(isinstance(each, Loader | DataLoader) for each in (train, *sets.values()))

    def size(source: Any) -> int | None:
        return None if isinstance(source, Loader | DataLoader) and not ready else batch_size

    return Data(
        loader(train, batch_size=size(train), shuffle=seed),
        {str(name): loader(each, batch_size=size(each)) for name, each in sets.items()},
        notes,
    )


def loader(source: Any, *, batch_size: int | None, shuffle: int | None = None) -> Loader:
    """A loader as it is, and one made of anything else; what has no length keeps its own order."""
    if isinstance(source, Loader | DataLoader):
        if batch_size is not None:
            raise InvalidArgument(
                f"batch_size={batch_size} has no use: a {type(source).__name__} gives batches of its own; set it there"
            )
        return source if isinstance(source, Loader) else Loader(source)
    sized = hasattr(source, "__len__")
    return Loader(source, batch_size=32 if batch_size is None else batch_size, shuffle=shuffle if sized else None)


def in_order(source: Any, *, batch_size: int | None) -> Loader:
    """A loader for predictions: every sample, in the order of the data, also where the given one shuffles."""
    given = source.source if isinstance(source, Loader) else source
    if isinstance(given, DataLoader) and _is_split(given):
        raise InvalidArgument(
            "this DataLoader has a DistributedSampler, so its predictions would be in another order than its data, and "
            "some of them twice: give its dataset, which is shared among the processes here"
        )
    if isinstance(source, DataLoader) and isinstance(source.sampler, RandomSampler):
        raise InvalidArgument(
            "this DataLoader shuffles, so predictions could not be told apart: give its dataset, or one that does not"
        )
    found = loader(source, batch_size=batch_size)
    if found.shuffle is None and not found.drop_last:
        return found
    kept = {name: getattr(found, name) for name in ("batch_size", "workers", "batcher", "transform", "device")}
    return Loader(found.source, **kept)


def _is_split(given: DataLoader[Any]) -> bool:
    """Whether a sampler that knows of ranks says which samples there are, and when."""
    samplers = [given.sampler, given.batch_sampler, getattr(given.batch_sampler, "sampler", None)]
    return any(hasattr(each, "num_replicas") and hasattr(each, "rank") for each in samplers)


def _is_several(valid: Any, train: Any) -> bool:
    """A mapping whose values are data sets, and not one that is a data set itself (whose values are columns)."""
    if not isinstance(valid, Mapping) or (isinstance(train, Mapping) and valid.keys() == train.keys()):
        return False
    return all(
        isinstance(each, Loader | DataLoader | tuple | list | Mapping) or _is_dataset(each) for each in valid.values()
    )


def _is_dataset(value: Any) -> bool:
    """Something that gives samples, and is no array: those have a shape."""
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "shape")
