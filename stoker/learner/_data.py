"""From the data that a user gives to loaders."""

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from stoker.data import Combination, Loader, change_options, is_batched, split
from stoker.errors import InvalidArgument


class Loaders(NamedTuple):
    """The loaders of a fit; `notes` says what was decided about them."""

    train: Loader
    valid: dict[str, Loader]
    notes: list[str]


def make_loaders(train: Any, valid: Any, *, batch_size: int | None, seed: int, split_seed: int = 0) -> Loaders:
    """Creates a shuffled loader for training, and loaders in order for validation.

    `valid` is data, a fraction of the training data, a mapping of names to data, or None.
    """
    notes: list[str] = []
    if isinstance(valid, bool) or (isinstance(valid, int | float) and not 0 < valid < 1):
        raise InvalidArgument(f"valid is data, or a fraction of the training data between 0 and 1; got {valid!r}")
    if isinstance(valid, float):
        fraction = valid
        if is_batched(train) or isinstance(train, Combination):
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
    all_batched = all(is_batched(source) for source in (train, *sets.values()))

    def load(source: Any, shuffle: int | None = None) -> Loader:
        size = None if is_batched(source) and not all_batched else batch_size
        return as_loader(source, batch_size=size, shuffle=shuffle)

    return Loaders(load(train, seed), {str(name): load(source) for name, source in sets.items()}, notes)


def as_loader(source: Any, *, batch_size: int | None, shuffle: int | None = None) -> Loader:
    """Returns a loader unchanged, and creates one for anything else; a stream keeps its own order."""
    if is_batched(source):
        if batch_size is not None:
            raise InvalidArgument(
                f"batch_size={batch_size} has no effect on a {type(source).__name__}, which has its own; set it there"
            )
        if isinstance(source, Combination):
            return Loader(source, shuffle=shuffle)
        return source if isinstance(source, Loader) else Loader(source)
    # What has a length but no numbered samples is a stream too.
    is_stream = isinstance(source, IterableDataset) or not (
        (hasattr(source, "__len__") and hasattr(source, "__getitem__")) or isinstance(source, Combination)
    )
    return Loader(source, batch_size=32 if batch_size is None else batch_size, shuffle=None if is_stream else shuffle)


def as_complete_loader(source: Any, *, batch_size: int | None) -> Loader:
    """Returns a loader that leaves out no sample, for evaluations: `drop_last` is for training."""
    loader = as_loader(source, batch_size=batch_size)
    given = loader.source
    if isinstance(given, DataLoader):
        drops_last = given.drop_last or (type(given.batch_sampler) is BatchSampler and given.batch_sampler.drop_last)
        return change_options(loader, _without_drop_last(given)) if drops_last else loader
    is_partial = loader.drop_last or loader.sampling_weights is not None
    if not is_partial:
        return loader
    return change_options(loader, given, drop_last=False, sampling_weights=None)


def as_ordered_loader(source: Any, *, batch_size: int | None) -> Loader:
    """Returns a loader for predictions: every sample in the order of the data, also if the given loader shuffles."""
    loader = as_complete_loader(source, batch_size=batch_size)
    if isinstance(loader.source, Combination):
        raise InvalidArgument("several sources have no common order for predictions: predict on each of them")
    if isinstance(loader.source, DataLoader):
        _check_order(loader.source)
    elif loader.sharded:
        raise InvalidArgument("every process has its own part of this data, so predictions would have no common order")
    is_ordered = loader.shuffle is None and loader.bucket_by is None
    return loader if is_ordered else change_options(loader, loader.source, shuffle=None, bucket_by=None)


def _without_drop_last(given: DataLoader[Any]) -> DataLoader[Any]:
    other = copy.copy(given)
    # A DataLoader forbids to set these after its creation, because its workers may be running; the copy has none.
    settings: dict[str, Any] = {"drop_last": False, "_iterator": None}
    if type(given.batch_sampler) is BatchSampler:
        settings["batch_sampler"] = BatchSampler(given.batch_sampler.sampler, given.batch_sampler.batch_size, False)
    for name, value in settings.items():
        object.__setattr__(other, name, value)
    return other


def _check_order(given: DataLoader[Any]) -> None:
    """Raises unless a DataLoader is known to read its data in order."""
    if isinstance(given.dataset, IterableDataset):
        return
    batches, sampler = given.batch_sampler, given.sampler
    if batches is not None:
        sampler = batches.sampler if type(batches) is BatchSampler else batches
    if type(sampler) is SequentialSampler:
        return
    if hasattr(sampler, "num_replicas") and hasattr(sampler, "rank"):
        raise InvalidArgument(
            "this DataLoader has a DistributedSampler, so predictions would be in another order than its data, and "
            "some of them twice: give its dataset, which stoker divides among the processes"
        )
    reason = "shuffles" if type(sampler) is RandomSampler else f"reads its data in the order of a {_name(sampler)}"
    raise InvalidArgument(
        f"this DataLoader {reason}, so predictions could not be matched with its data: give its dataset (of chosen "
        "samples torch.utils.data.Subset(dataset, indices)), or a DataLoader without shuffle, sampler and batch_sampler"
    )


def _name(value: Any) -> str:
    return type(value).__name__


def _is_mapping_of_sets(valid: Any, train: Any) -> bool:
    """Whether the values of a mapping are data sets; otherwise they are the columns of one."""
    if not isinstance(valid, Mapping) or (isinstance(train, Mapping) and valid.keys() == train.keys()):
        return False
    return all(
        isinstance(value, Loader | DataLoader | Combination | tuple | list | Mapping)
        or (hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "shape"))
        for value in valid.values()
    )
