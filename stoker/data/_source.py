"""Anything that holds samples, as one of four kinds: columns, samples by number, a stream, or a DataLoader."""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from stoker.data._columns import as_columns
from stoker.data._order import STREAM, key, seed_everything
from stoker.data._tables import table_columns
from stoker.data._view import Selected, View
from stoker.errors import BadData, WrongType

T_co = TypeVar("T_co", covariant=True)

_EXPECTED = (
    "a source is a tensor or array, a tuple or mapping of them, a table, a list of samples, a torch Dataset or "
    "DataLoader, or an iterable that starts again in each epoch"
)


@runtime_checkable
class Source(Protocol[T_co]):
    """Samples by number: anything with `len()` and indexing from 0 on, such as a list or a torch map-style dataset.

    >>> isinstance([1, 2, 3], Source), isinstance(iter([1, 2, 3]), Source)
    (True, False)
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> T_co: ...


@dataclass(frozen=True)
class Stream:
    """Samples one after another, from the start in each epoch, always read by one reader."""

    samples: Iterable[Any]

    def read(self, epoch: int) -> Iterator[Any]:
        """The samples of an epoch; whatever they draw is keyed by (epoch, place in the stream)."""
        tell_epoch(self.samples, epoch)
        seed_everything(key(STREAM, epoch))
        reader, place = iter(self.samples), 0
        while True:
            seed_everything(key(STREAM, epoch, place))
            try:
                sample = next(reader)
            except StopIteration:
                return
            except Exception as error:
                error.add_note(f"while reading sample {place} of the stream (epoch {epoch})")
                raise
            yield sample
            place += 1


def tell_epoch(thing: Any, epoch: int) -> None:
    """Says which epoch begins, to what asks to be told (Hugging Face streams, distributed samplers)."""
    if callable(getattr(thing, "set_epoch", None)):
        thing.set_epoch(epoch)


def as_source(source: Any) -> "View[Any] | Source[Any] | Stream | DataLoader[Any]":
    """What the user gave, as one of the kinds that a loader walks; in-memory data comes back as a vectorised view.

    >>> type(as_source((np.zeros((4, 2)), np.zeros(4)))).__name__, type(as_source([1, 2])).__name__
    ('Columns', 'list')
    """
    if isinstance(source, (View, DataLoader)):
        return source
    if isinstance(source, TensorDataset) and type(source).__getitem__ is TensorDataset.__getitem__:
        return _not_empty(as_columns(source.tensors))
    if isinstance(source, Subset) and type(source).__getitem__ is Subset.__getitem__:
        return _subset(source)
    table = table_columns(source)
    if table is not None:
        return _not_empty(as_columns(table))
    series = hasattr(source, "to_numpy") and hasattr(source, "__len__")  # one column of a table, by itself
    if series or isinstance(source, (Tensor, np.ndarray, tuple, Mapping)):
        return _not_empty(as_columns(source))
    return _samples_or_stream(source)


def map_style(source: Any, user: str) -> "View[Any] | Source[Any]":
    """A source whose samples have numbers, for what can't work on a stream."""
    made = as_source(source)
    if isinstance(made, (Stream, DataLoader)):
        raise WrongType(
            f"{user} needs samples that have numbers, and a {type(source).__name__} has none; "
            "give it the data set itself: tensors, a list, or anything with len() and indexing"
        )
    return made


def _samples_or_stream(source: Any) -> "Source[Any] | Stream":
    name = type(source).__name__
    if isinstance(source, (str, bytes, Set, type)):
        raise WrongType(f"{_EXPECTED}; got {_described(source)}")
    if isinstance(source, IterableDataset):
        return Stream(source)
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        return _not_empty(source)
    if isinstance(source, Iterator):
        raise WrongType(
            f"a {name} can be walked only once, and every epoch walks the source anew; give a list of its samples, "
            "or an object whose __iter__ starts again each time (a torch IterableDataset, say)"
        )
    if hasattr(source, "__iter__"):
        return Stream(source)
    if hasattr(source, "__getitem__"):
        raise WrongType(f"{name} has __getitem__ but no __len__; add a __len__ that says how many samples there are")
    raise WrongType(f"{_EXPECTED}; got {_described(source)}")


def _described(source: Any) -> str:
    if isinstance(source, type):
        return f"the class {source.__name__}; make an instance of it"
    if isinstance(source, Set):
        return f"a {type(source).__name__}, which has no order; make it a list, sorted for instance"
    if callable(source):
        return (
            f"the function {getattr(source, '__name__', type(source).__name__)}; put what it yields into a list, "
            "or into the __iter__ of a torch IterableDataset"
        )
    return f"a {type(source).__name__}"


def _subset(source: Subset[Any]) -> "View[Any] | Source[Any]":
    """A view that torch itself made (`random_split`, say), vectorised where what it views is."""
    whole = as_source(source.dataset)
    if isinstance(whole, View) and whole.vectorised:
        return _not_empty(Selected(whole, torch.as_tensor(source.indices, dtype=torch.int64, device="cpu")))
    return _not_empty(source)


def _not_empty(source: Any) -> Any:
    if len(source) == 0:
        raise BadData("the source has no samples")
    return source
