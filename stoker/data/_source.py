"""What a loader reads from: columns in memory, samples by number, a stream, or a torch DataLoader."""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from stoker.data._columns import Selection, View, as_columns, is_vectorized, table_columns
from stoker.data._rng import STREAM, random_key, seed_generators
from stoker.errors import BadData, WrongType

T_co = TypeVar("T_co", covariant=True)

_EXPECTED = (
    "a source is a tensor or array, a tuple or mapping of them, a table, a list of samples, a torch Dataset or "
    "DataLoader, or an iterable that starts again in each epoch"
)


@runtime_checkable
class Source(Protocol[T_co]):
    """Samples by number: anything with `len()` and indexing from 0, such as a list or a torch map-style dataset.

    >>> isinstance([1, 2, 3], Source), isinstance(iter([1, 2, 3]), Source)
    (True, False)
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> T_co: ...


@dataclass(frozen=True)
class Stream:
    """An iterable of samples, which starts again in each epoch and always has one reader."""

    samples: Iterable[Any]

    def read(self, epoch: int) -> Iterator[Any]:
        """Yields the samples of an epoch; their random numbers are a function of (epoch, place in the stream)."""
        set_epoch(self.samples, epoch)
        seed_generators(random_key(STREAM, epoch))
        reader, place = iter(self.samples), 0
        while True:
            seed_generators(random_key(STREAM, epoch, place))
            try:
                sample = next(reader)
            except StopIteration:
                return
            except Exception as error:
                error.add_note(f"while reading sample {place} of the stream (epoch {epoch})")
                raise
            yield sample
            place += 1


def set_epoch(target: Any, epoch: int) -> None:
    """Calls `set_epoch` if there is such a method (Hugging Face streams and distributed samplers have one)."""
    if callable(getattr(target, "set_epoch", None)):
        target.set_epoch(epoch)


def as_source(source: Any) -> "View | Source[Any] | Stream | DataLoader[Any]":
    """Converts what the user passed to one of the kinds that a loader reads; data in memory becomes a view.

    >>> type(as_source((np.zeros((4, 2)), np.zeros(4)))).__name__, type(as_source([1, 2])).__name__
    ('Columns', 'list')
    """
    if isinstance(source, View | DataLoader):
        return source
    if isinstance(source, TensorDataset) and type(source).__getitem__ is TensorDataset.__getitem__:
        return _check_not_empty(as_columns(source.tensors))
    if isinstance(source, Subset) and type(source).__getitem__ is Subset.__getitem__:
        base = as_source(source.dataset)
        if not is_vectorized(base):
            return _check_not_empty(source)
        return _check_not_empty(Selection(base, torch.as_tensor(source.indices, dtype=torch.int64, device="cpu")))
    table = table_columns(source)
    if table is not None:
        return _check_not_empty(as_columns(table))
    is_series = hasattr(source, "to_numpy") and hasattr(source, "__len__")  # a single column of a table
    if is_series or isinstance(source, Tensor | np.ndarray | tuple | Mapping):
        return _check_not_empty(as_columns(source))
    return _samples_or_stream(source)


def as_indexable(source: Any, user: str) -> "View | Source[Any]":
    """Converts a source for a function that reads samples by number; raises for a stream and a DataLoader."""
    converted = as_source(source)
    if isinstance(converted, Stream | DataLoader):
        raise WrongType(
            f"{user} reads samples by number, which a {type(source).__name__} does not support; pass the dataset "
            "itself: tensors, a list, or anything with len() and indexing"
        )
    return converted


def _samples_or_stream(source: Any) -> "Source[Any] | Stream":
    name = type(source).__name__
    if isinstance(source, str | bytes | Set | type):
        raise WrongType(f"{_EXPECTED}; got {_describe(source)}")
    if isinstance(source, IterableDataset):
        return Stream(source)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _check_not_empty(source)
    if isinstance(source, Iterator):
        raise WrongType(
            f"a {name} can be read only once, but every epoch reads the source from its start; pass a list of its "
            "samples, or an object whose __iter__ starts again each time (a torch IterableDataset, for example)"
        )
    if hasattr(source, "__iter__"):
        return Stream(source)
    if hasattr(source, "__getitem__"):
        raise WrongType(f"{name} has __getitem__ but no __len__; add a __len__ that returns the number of samples")
    raise WrongType(f"{_EXPECTED}; got {_describe(source)}")


def _describe(source: Any) -> str:
    if isinstance(source, type):
        return f"the class {source.__name__}; create an instance of it"
    if isinstance(source, Set):
        return f"a {type(source).__name__}, which has no order; make it a list, for example with sorted()"
    if callable(source):
        return (
            f"the function {getattr(source, '__name__', type(source).__name__)}; put what it yields into a list, "
            "or into the __iter__ of a torch IterableDataset"
        )
    return f"a {type(source).__name__}"


def _check_not_empty(source: Any) -> Any:
    if len(source) == 0:
        raise BadData("the source has no samples")
    return source
