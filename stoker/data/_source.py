"""What a loader reads from: columns in memory, samples by number, a stream, or a torch DataLoader."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import index as as_int
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from stoker._tree import map_leaves, named_leaves
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
    """Converts what the user passed to one of the kinds that a loader reads; data in memory becomes a view."""
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


# --- views, and columns in memory

_COPY_BYTES = 2**26  # copied to a device at a time, so that the host never holds all selected rows a second time


class View(ABC):
    """Samples by number. A `vectorized` view also gathers a whole batch by its row numbers, without a Python loop."""

    vectorized: bool = False
    bases: Sequence["View"] = ()  # what a vectorized view reads from; empty if it holds columns itself

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, number: int) -> Any:
        """Returns one sample; `number` is in range."""

    def __getitem__(self, number: int) -> Any:
        place = as_int(number)
        if not -len(self) <= place < len(self):  # an IndexError also ends a plain `for` over a view
            raise IndexError(f"sample {number} of {len(self)}")
        return self.sample(place % len(self))

    @property
    def device(self) -> torch.device:
        """The device on which `gather` expects its row numbers."""
        return self.bases[0].device if self.bases else torch.device("cpu")

    # The methods below are called on vectorized views only.

    def gather(self, rows: Tensor) -> Any:
        """Returns the batch of these rows (int64)."""
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> Any:
        """Returns the batch of the rows from `start` to before `stop`."""
        return self.gather(torch.arange(start, stop, device=self.device))

    def with_bases(self, bases: list["View"]) -> "View":
        """Returns the same view over other `bases`."""
        raise NotImplementedError

    def columns(self) -> list[Tensor] | None:
        """Returns the tensors that `gather` reads, or None if it also reads others or waits for a device."""
        return None

    def with_columns(self, columns: list[Tensor]) -> "View":
        """Returns the same view over other tensors in the order of `columns()`."""
        raise NotImplementedError


class Selection(View):
    """Some samples of a source, by their numbers in it. The base of a selection is never a selection."""

    def __init__(self, base: Any, numbers: Tensor) -> None:
        if isinstance(base, Selection):
            base, numbers = base.base, base.numbers[numbers]
        self.base = base
        self.numbers = numbers  # int64, on the CPU
        self.vectorized = is_vectorized(base)
        self.bases = [base] if self.vectorized else []

    def __len__(self) -> int:
        return len(self.numbers)

    def sample(self, number: int) -> Any:
        return self.base[int(self.numbers[number])]

    def gather(self, rows: Tensor) -> Any:
        return self.base.gather(self.numbers.to(rows.device)[rows])

    def with_bases(self, bases: list[View]) -> View:
        return Selection(bases[0], self.numbers)


def is_vectorized(source: Any) -> bool:
    """Whether a source is a view that gathers whole batches."""
    return isinstance(source, View) and source.vectorized


class Columns(View):
    """Tensors (and read-only arrays) of one length, in nested tuples and mappings; a batch has the same structure.

    Samples and batches are copies, so a transform or a training step may write into them.
    """

    vectorized = True

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        leaves = [leaf for _, leaf in named_leaves(tree)]
        self._length = len(leaves[0])
        self._device = leaves[0].device if isinstance(leaves[0], Tensor) else torch.device("cpu")
        self._all_tensors = all(isinstance(leaf, Tensor) for leaf in leaves)
        # The usual (x, y) is indexed directly: walking a tree takes about 2 µs per batch.
        self._is_flat = type(tree) is tuple and all(isinstance(part, Tensor) and part.is_contiguous() for part in tree)

    def __len__(self) -> int:
        return self._length

    @property
    def device(self) -> torch.device:
        return self._device

    def sample(self, number: int) -> Any:
        return map_leaves(lambda leaf: _cut(leaf, number), self.tree)

    def gather(self, rows: Tensor) -> Any:
        if self._is_flat:
            return tuple([part.index_select(0, rows) for part in self.tree])
        return map_leaves(lambda leaf: _take_rows(leaf, rows), self.tree)

    def slice(self, start: int, stop: int) -> Any:
        if self._is_flat:
            return tuple([part[start:stop].clone() for part in self.tree])  # about 1.5 µs per column of a small batch
        return map_leaves(lambda leaf: _cut(leaf, slice(start, stop)), self.tree)

    def columns(self) -> list[Tensor] | None:
        return [leaf for _, leaf in named_leaves(self.tree)] if self._all_tensors else None

    def with_columns(self, columns: list[Tensor]) -> "Columns":
        replacements = iter(columns)
        return Columns(map_leaves(lambda _: next(replacements), self.tree))

    def narrow(self, start: int, stop: int) -> "Columns":
        """Returns the rows from `start` to before `stop`, sharing memory."""
        return Columns(map_leaves(lambda leaf: leaf[start:stop], self.tree))


def _cut(leaf: Tensor | np.ndarray, where: int | slice) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf[where].clone(memory_format=torch.contiguous_format)  # the memory layout of `index_select`
    return torch.from_numpy(np.array(leaf[where]))


def _take_rows(leaf: Tensor | np.ndarray, rows: Tensor) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf.index_select(0, rows)  # as fast as `leaf[rows]` for small rows, 5 to 20 times faster for images
    return torch.from_numpy(leaf[rows.numpy()])


def _is_column(value: Any) -> bool:
    """Only tuples and mappings hold columns; a list holds samples."""
    return not isinstance(value, (tuple, Mapping))


def as_columns(tree: Any) -> Columns:
    """Makes columns of tensors, arrays, series and tables in nested tuples and mappings, sharing their memory."""
    tree = map_leaves(lambda leaf: leaf if (table := table_columns(leaf)) is None else table, tree, is_leaf=_is_column)
    named = list(named_leaves(tree, is_leaf=_is_column))
    if not named:
        raise BadData(f"the source is an empty {type(tree).__name__}: it has no columns")
    leaves = {path: _as_column(value, path) for path, value in named}
    lengths = {path: len(leaf) for path, leaf in leaves.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        raise BadData(f"all columns need the same number of rows, but {listed}")
    devices = {path: str(leaf.device) if isinstance(leaf, Tensor) else "cpu" for path, leaf in leaves.items()}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{path} is on {device}" for path, device in devices.items())
        raise BadData(f"all columns need to be on one device, but {listed}; move them with .to()")
    columns = iter(leaves.values())
    return Columns(map_leaves(lambda _: next(columns), tree, is_leaf=_is_column))


def _as_column(value: Any, path: str) -> Tensor | np.ndarray:
    """One column: a tensor, or the array itself if it is read-only (a memory map, for example)."""
    name = f"column {path}" if path else "the source"
    if not isinstance(value, Tensor):
        value = _as_array(value, name)
    if value.ndim == 0:
        raise BadData(f"{name} is a single number; it needs a first dimension with one row per sample")
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise BadData(f"{name} is a {value.layout} tensor, which has no rows to index; use .to_dense()")
        return value
    if value.dtype.kind in "OSUVMmT":
        raise BadData(
            f"{name} has dtype {value.dtype}, which is not numeric; encode it as numbers, leave it out, or pass a list "
            "of samples and a batcher= that handles them"
        )
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    if any(stride < 0 or stride % value.itemsize for stride in value.strides):  # torch cannot express these
        value = value.copy()
    try:
        torch.from_numpy(np.empty(0, value.dtype))  # also of a read-only array: raise here, not in the first batch
    except TypeError:
        raise BadData(f"{name} has dtype {value.dtype}, which torch does not have; convert it with .astype()") from None
    return torch.from_numpy(value) if value.flags.writeable else np.asarray(value)


def _as_array(value: Any, name: str) -> np.ndarray:
    """A numpy array, made of a pandas or polars series or an Arrow array if necessary."""
    if isinstance(value, np.ma.MaskedArray):
        raise BadData(f"{name} is a masked array; fill the masked values first, with .filled()")
    if isinstance(value, np.ndarray):
        return value
    nulls = getattr(value, "null_count", 0)  # a number in Arrow, a method in polars; pandas has NaN or object dtype
    nulls = nulls() if callable(nulls) else nulls
    if nulls:
        raise BadData(f"{name} has {nulls} missing values; fill or drop them first")
    if hasattr(value, "to_numpy"):
        return value.to_numpy()
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return np.asarray(value)
    raise BadData(
        f"{name} is a {type(value).__name__}; a tuple or mapping holds columns, which are tensors or arrays with one "
        "row per sample (a list holds the samples themselves)"
    )


def table_columns(source: Any) -> dict[Any, Any] | None:
    """Returns the columns of a pandas, polars, Arrow or Hugging Face table by name.

    Tables are recognised by their attributes, so none of the libraries is imported. Returns None for anything else, and
    for a table that has to be read row by row.
    """
    if hasattr(source, "column_names") and hasattr(source, "with_format"):
        return _hugging_face_columns(source)
    if hasattr(source, "column_names") and hasattr(source, "schema") and hasattr(source, "column"):  # Arrow
        return {name: source.column(name) for name in source.column_names}
    if hasattr(source, "columns") and hasattr(source, "dtypes") and hasattr(source, "to_numpy"):  # pandas, polars
        return {name: source[name] for name in source.columns}
    return None


def _hugging_face_columns(dataset: Any) -> dict[str, Any] | None:
    """Tensors if every column is numeric and the user set no transform; otherwise None.

    The dtypes are those of Hugging Face's own torch format (int64, float32), as when it is read sample by sample.
    """
    if not hasattr(dataset, "__len__"):  # an IterableDataset is a stream
        return None
    view = dataset.format
    if view["type"] not in (None, "torch", "numpy") or view["format_kwargs"]:
        return None
    dtypes = [getattr(dataset.features[name], "dtype", "") for name in view["columns"]]
    numeric = ("int", "uint", "float", "bool")
    if not dtypes or not all(isinstance(dtype, str) and dtype.startswith(numeric) for dtype in dtypes):
        return None
    stored = dataset.with_format("arrow", columns=view["columns"])[:]
    if len(dataset) == 0 or any(stored.column(name).null_count for name in view["columns"]):
        return None  # read sample by sample, a missing value raises; here it would become NaN
    return dataset.with_format("torch", columns=view["columns"])[:]


def resident_bytes(view: View) -> int:
    """Counts the bytes that `make_resident` allocates: of the selected rows or of the bases, whichever is less."""
    rows = len(view) * _row_bytes(view)
    return min(rows, sum(map(resident_bytes, view.bases))) if view.bases else rows


def make_resident(view: View, device: torch.device) -> View:
    """Copies the columns of a vectorized view to a device; returns the view itself if they are there already.

    A selection becomes columns of the selected rows, and joined sources become one. Overlapping windows stay windows.
    """
    if _is_on(view, torch.empty(0, device=device).device):  # resolves `cuda` to `cuda:0`, as tensors report it
        return view
    if not view.bases or len(view) * _row_bytes(view) <= sum(map(resident_bytes, view.bases)):
        return _copy_rows(view, device)
    return view.with_bases([make_resident(base, device) for base in view.bases])


def _is_on(view: View, device: torch.device) -> bool:
    if view.bases:
        return all(_is_on(base, device) for base in view.bases)
    columns = view.columns()
    return columns is not None and all(column.device == device for column in columns)


def _row_bytes(view: View) -> int:
    return sum(leaf.nbytes for _, leaf in named_leaves(view.slice(0, 1)))


def _copy_rows(view: View, device: torch.device) -> Columns:
    count, step = len(view), max(1, _COPY_BYTES // max(1, _row_bytes(view)))

    def allocate(row: Tensor) -> Tensor:
        return torch.empty((count, *row.shape[1:]), dtype=row.dtype, device=device)

    columns = map_leaves(allocate, view.slice(0, 1))
    for start in range(0, count, step):
        stop = min(start + step, count)
        map_leaves(lambda column, rows, a=start, b=stop: column[a:b].copy_(rows), columns, view.slice(start, stop))
    return Columns(columns)
