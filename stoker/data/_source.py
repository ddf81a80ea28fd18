"""What a loader reads from: columns in memory, samples by number, a stream, or a torch DataLoader."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from operator import index as as_int
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from stoker._tree import map_leaves, named_leaves
from stoker.data._rng import STREAM, random_key, seed_generators
from stoker.errors import BadData, InvalidArgument, WrongType

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


class EpochOfStream:
    """An epoch of a stream or a DataLoader that is being read; loaders inside of it take their epoch from here."""

    current: ContextVar["EpochOfStream | None"] = ContextVar("current", default=None)

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Calls `iter` or `next`."""
        token = self.current.set(self)
        try:
            return function(argument)
        finally:
            self.current.reset(token)


@dataclass(frozen=True, eq=False, repr=False)
class Stream:
    """An iterable of samples, which starts again in each epoch and always has one reader."""

    samples: Iterable[Any]

    def read(self, epoch: int, start: int = 0, state: Any = None, *, rank: int = 0) -> Iterator[Any]:
        """Yields the samples of an epoch; their random numbers are a function of (epoch, place in the stream).

        `state` is the source's own, after `start` samples. `rank` is that of a stream which every rank has its own of.
        """
        set_epoch(self.samples, epoch)
        if state is not None:
            self.samples.load_state_dict(state)  # pyright: ignore[reportAttributeAccessIssue]
        own = (rank,) if rank else ()
        seed_generators(random_key(STREAM, epoch, *own))
        current = EpochOfStream(epoch)
        reader: Any = current.call(iter, self.samples)
        for place in count(start):
            seed_generators(random_key(STREAM, epoch, place, *own))
            try:
                sample = current.call(next, reader)
            except StopIteration:
                return
            except Exception as error:
                error.add_note(f"while reading sample {place} of the stream (epoch {epoch})")
                raise
            yield sample

    def count(self) -> int | None:
        """The number of samples, if the stream tells it."""
        try:
            return len(self.samples)  # pyright: ignore[reportArgumentType]
        except TypeError:
            return None


def set_epoch(target: Any, epoch: int) -> None:
    """Calls `set_epoch` if there is such a method (Hugging Face streams and distributed samplers have one).

    litdata's loader and Mosaic's data sets count their epochs themselves, from 0 in every process.
    """
    if is_of_package("litdata", target) and hasattr(target, "current_epoch") and hasattr(target, "load_state_dict"):
        target.current_epoch = epoch
    elif is_of_package("streaming", target) and hasattr(target, "next_epoch"):
        target.next_epoch = epoch
    elif callable(getattr(target, "set_epoch", None)):
        target.set_epoch(epoch)


def as_source(source: Any) -> "View | Source[Any] | Stream | DataLoader[Any]":
    """Converts what the user passed to one of the kinds that a loader reads; data in memory becomes a view."""
    if isinstance(source, View | DataLoader):
        return source
    has_own_fetch = _has_own_fetch(type(source))
    if isinstance(source, Subset) and type(source).__getitem__ is Subset.__getitem__ and not has_own_fetch:
        base = as_indexable(source.dataset, "Subset")
        if len(source) and isinstance(base, View):
            converted: Any = Selection(base, row_numbers(source.indices, len(base), "Subset"))
        else:
            converted = source
    elif has_own_fetch:
        converted = _Fetched(source)
    elif isinstance(source, TensorDataset) and type(source).__getitem__ is TensorDataset.__getitem__:
        converted = as_columns(source.tensors)
    elif (table := table_columns(source)) is not None:
        converted = as_columns(table)
    elif is_of_package("tensordict", source):
        nested: Any = source
        converted = as_columns(nested.to_dict())
    elif isinstance(source, Tensor | np.ndarray | tuple | Mapping) or _is_series(source):
        converted = as_columns(source)
    else:
        converted = _check_samples_or_stream(source)
    if not isinstance(converted, Stream) and len(converted) == 0:
        raise BadData("the source has no samples")
    return converted


def is_of_package(package: str, value: Any) -> bool:
    """Whether the class of a value is defined in a package, which is not imported for that."""
    return type(value).__module__.split(".")[0] == package


def snapshot(source: Any) -> Any:
    """The parts of a torch dataset that `as_source` reads once: equal as long as nobody replaces them."""
    if isinstance(source, Subset):
        return list(source.indices), snapshot(source.dataset)
    return [id(tensor) for tensor in source.tensors] if isinstance(source, TensorDataset) else None


def _has_own_fetch(kind: type) -> bool:
    """Whether a class overrides `__getitems__`, which a DataLoader prefers, later than `__getitem__`."""
    for base in kind.__mro__:
        if "__getitem__" in vars(base):
            return False
        if "__getitems__" in vars(base):
            return True
    return False


def _is_series(source: Any) -> bool:
    """Whether a source is a single column of a table."""
    return hasattr(source, "to_numpy") and hasattr(source, "__len__")


def as_indexable(source: Any, user: str) -> "View | Source[Any]":
    """Converts a source for a function that reads samples by number; raises for a stream and a DataLoader."""
    converted = as_source(source)
    if isinstance(converted, Stream | DataLoader):
        raise WrongType(
            f"{user} reads samples by number, which a {type(source).__name__} does not support; pass the dataset "
            "itself: tensors, a list, or anything with len() and indexing"
        )
    return converted


def _check_samples_or_stream(source: Any) -> "Source[Any] | Stream":
    name, got = type(source).__name__, f"a {type(source).__name__}"
    if isinstance(source, type):
        got = f"the class {source.__name__}; create an instance of it"
    elif isinstance(source, Set):
        got = f"a {name}, which has no order; make it a list, for example with sorted()"
    elif not isinstance(source, str | bytes):
        if isinstance(source, IterableDataset):
            return Stream(source)
        if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
            return source
        if is_of_package("torchdata", source) and hasattr(source, "get_state"):  # a node, which is read once
            from torchdata import nodes

            return Stream(nodes.Loader(source))
        if isinstance(source, Iterator):
            raise WrongType(
                f"a {name} can be read only once, but every epoch reads the source from its start; pass a list of its "
                "samples, or an object whose __iter__ starts again each time (a torch IterableDataset, for example)"
            )
        if hasattr(source, "__iter__"):
            return Stream(source)
        if hasattr(source, "__getitem__"):
            raise WrongType(f"{name} has __getitem__ but no __len__; add a __len__ that returns the number of samples")
        if hasattr(source, "train_dataloader"):  # a LightningDataModule
            got = f"a {name}; call its setup() and give its loaders: train_dataloader(), and val_dataloader() as valid"
        elif callable(source):
            got = (
                f"the function {getattr(source, '__name__', name)}; put what it yields into a list, or into the "
                "__iter__ of a torch IterableDataset; data.by_epoch takes one that returns the data of an epoch"
            )
    raise WrongType(f"{_EXPECTED}; got {got}")


# --- views, and columns in memory

_COPY_BYTES = 2**26  # copied to a device at a time, so that the host never holds all selected rows a second time


class View(ABC):
    """Samples by number. A `vectorized` view also gathers a whole batch by its row numbers, without a Python loop."""

    vectorized: bool = False
    traceable: bool = False  # whether `gather` may be part of a CUDA graph or a compiled program

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

    # The methods below are called on vectorized views only.

    def gather(self, rows: Tensor) -> Any:
        """Returns the batch of these rows (int64, on `device`)."""
        raise NotImplementedError

    def slice(self, start: int, stop: int) -> Any:
        """Returns the batch of the rows from `start` to before `stop`."""
        return self.gather(torch.arange(start, stop, device=self.device))

    def columns(self) -> list[Any]:
        """Returns the tensors and read-only arrays that `gather` reads."""
        raise NotImplementedError

    def with_columns(self, columns: Iterator[Any]) -> "View":
        """Returns the same view over other tensors, taken in the order of `columns()`."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """The device of the columns."""
        column = self.columns()[0]
        return column.device if isinstance(column, Tensor) else torch.device("cpu")


class Selection(View):
    """Some samples of a source, by their numbers in it. The base of a selection is never a selection."""

    def __init__(self, base: Any, numbers: Tensor) -> None:
        if isinstance(base, Selection):
            base, numbers = base.base, base.numbers[numbers]
        self.base = base
        self.numbers = numbers  # int64, on the CPU
        self.vectorized, self.traceable = is_vectorized(base), is_traceable(base)

    def __len__(self) -> int:
        return len(self.numbers)

    def sample(self, number: int) -> Any:
        return self.base[int(self.numbers[number])]

    def gather(self, rows: Tensor) -> Any:
        return self.base.gather(self.numbers.to(rows.device)[rows])

    def columns(self) -> list[Any]:
        return self.base.columns()

    def with_columns(self, columns: Iterator[Any]) -> View:
        return Selection(self.base.with_columns(columns), self.numbers)


def row_numbers(which: Any, size: int, user: str) -> Tensor:
    """Converts numbers (negative ones count from the end) or a mask to row numbers in range: int64, on the CPU."""
    try:
        numbers = torch.as_tensor(which, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise WrongType(f"{user} needs a number, a slice, numbers or a mask; got {type(which).__name__}") from None
    if numbers.ndim != 1 or (numbers.numel() and (numbers.is_floating_point() or numbers.is_complex())):
        raise WrongType(f"{user} needs integers or a mask in one dimension; got {numbers.dtype} of {numbers.ndim}")
    if numbers.dtype == torch.bool:
        if len(numbers) != size:
            raise InvalidArgument(f"a mask needs a value for each of the {size} samples; got {len(numbers)}")
        numbers = numbers.nonzero().flatten()
    if len(numbers) == 0:
        raise BadData(f"an empty selection leaves none of the {size} samples")
    numbers = numbers.long()
    low, high = int(numbers.min()), int(numbers.max())
    if low < -size or high >= size:
        raise InvalidArgument(f"sample {high if high >= size else low} does not exist: there are {size}")
    return numbers.remainder(size)


class _Fetched(View):
    """A dataset with its own `__getitems__`; one sample at a time, so that each draws its own random numbers."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def sample(self, number: int) -> Any:
        return self.dataset.__getitems__([number])[0]


def is_vectorized(source: Any) -> bool:
    """Whether a source is a view that gathers whole batches."""
    return isinstance(source, View) and source.vectorized


def is_traceable(source: Any) -> bool:
    """Whether a source is a view whose `gather` can be captured or compiled."""
    return isinstance(source, View) and source.traceable


class Columns(View):
    """Tensors (and read-only arrays) of one length, in nested tuples and mappings; a batch has the same structure.

    Samples and batches are copies, so a transform or a training step may write into them.
    """

    vectorized = True

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self._leaves = [leaf for _, leaf in named_leaves(tree)]
        self.traceable = all(isinstance(leaf, Tensor) for leaf in self._leaves)
        # The usual (x, y) is indexed directly: walking a tree takes about 2 µs per batch.
        self._is_flat = type(tree) is tuple and all(
            isinstance(part, Tensor) and part.is_contiguous() and part.dtype not in _SIGNED for part in tree
        )

    def __len__(self) -> int:
        return len(self._leaves[0])

    def sample(self, number: int) -> Any:
        return map_leaves(lambda leaf: _cut(leaf, number), self.tree)

    def gather(self, rows: Tensor) -> Any:
        if self._is_flat:
            return tuple([part.index_select(0, rows) for part in self.tree])
        return map_leaves(lambda leaf: take_rows(leaf, rows), self.tree)

    def slice(self, start: int, stop: int) -> Any:
        if self._is_flat:
            return tuple([part[start:stop].clone() for part in self.tree])  # about 1.5 µs per column of a small batch
        return map_leaves(lambda leaf: _cut(leaf, slice(start, stop)), self.tree)

    def columns(self) -> list[Any]:
        return self._leaves

    def with_columns(self, columns: Iterator[Any]) -> "Columns":
        return Columns(map_leaves(lambda _: next(columns), self.tree))

    def narrow(self, start: int, stop: int) -> "Columns":
        """Returns the rows from `start` to before `stop`, sharing memory."""
        return Columns(map_leaves(lambda leaf: leaf[start:stop], self.tree))


# `index_select` has no kernels for vectors of these, which torch only stores.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _cut(leaf: Tensor | np.ndarray, where: int | slice) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf[where].clone(memory_format=torch.contiguous_format)  # the memory layout of `index_select`
    return torch.from_numpy(np.array(leaf[where]))


def take_rows(leaf: Tensor | np.ndarray, rows: Tensor) -> Tensor:
    """Copies some rows of a column."""
    if isinstance(leaf, Tensor):
        if leaf.dtype in _SIGNED:
            return leaf.view(_SIGNED[leaf.dtype]).index_select(0, rows).view(leaf.dtype)
        return leaf.index_select(0, rows)  # as fast as `leaf[rows]` for small rows, 5 to 20 times faster for images
    return torch.from_numpy(leaf[rows.numpy()])


def _is_column(value: Any) -> bool:
    """Only tuples and mappings hold columns; a list holds samples."""
    return not isinstance(value, (tuple, Mapping))


def as_columns(tree: Any) -> Columns:
    """Makes columns of tensors, arrays and series in nested tuples and mappings, sharing their memory."""
    leaves = {path: _as_column(leaf, path) for path, leaf in named_leaves(tree, is_leaf=_is_column)}
    if not leaves:
        raise BadData(f"the source is an empty {type(tree).__name__}: it has no columns")
    lengths = {path: len(leaf) for path, leaf in leaves.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{path} has {length}" for path, length in lengths.items())
        raise BadData(f"all columns need the same number of rows, but {listed}")
    devices = {path: str(leaf.device) for path, leaf in leaves.items() if isinstance(leaf, Tensor)}
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
    if not getattr(value, "is_nested", False) and value.ndim == 0:
        raise BadData(f"{name} is a single number; it needs a first dimension with one row per sample")
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested:
            kind = "nested" if value.is_nested else str(value.layout)
            advice = "pass a list of its tensors, and a collate_fn=" if value.is_nested else "use .to_dense()"
            raise BadData(f"{name} is a {kind} tensor, which has no rows to index; {advice}")
        return value
    if value.dtype.kind in "OSUVMmT":
        raise BadData(
            f"{name} has dtype {value.dtype}, which is not numeric; encode it as numbers, leave it out, or pass a list "
            "of samples and a collate_fn= that handles them"
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
    if table_columns(value) is not None:
        kind = type(value).__name__
        raise BadData(
            f"{name} is a {kind}, and a model takes tensors: use .to_numpy() for a matrix of its columns, or a mapping "
            "of columns by name, as in {name: table[name] for name in names}"
        )
    missing = _count_missing(value)
    if missing:
        raise BadData(f"{name} has {missing} missing values; fill or drop them first")
    if hasattr(value, "to_numpy"):
        return value.to_numpy()
    if hasattr(value, "__array__") and hasattr(value, "dtype"):
        return np.asarray(value)
    raise BadData(
        f"{name} is a {type(value).__name__}; a tuple or mapping holds columns, which are tensors or arrays with one "
        "row per sample (a list holds the samples themselves)"
    )


def _count_missing(series: Any) -> int:
    """Counts what would become NaN or an object; a NaN that numpy stores in a float column is a number."""
    if hasattr(series, "isna") and not isinstance(series.dtype, np.dtype):  # pandas
        return int(series.isna().sum())
    nulls = getattr(series, "null_count", 0)  # a number in Arrow, a method in polars
    count: Any = nulls() if callable(nulls) else nulls
    return count


def table_columns(source: Any) -> dict[Any, Any] | None:
    """Returns the columns of a pandas, polars, Arrow or Hugging Face table by name.

    Tables are recognised by their attributes, so none of the libraries is imported. Returns None for anything else, and
    for a table that has to be read row by row.
    """
    if hasattr(source, "column_names") and hasattr(source, "with_format"):
        return _hugging_face_columns(source)
    if hasattr(source, "column_names") and hasattr(source, "schema") and hasattr(source, "column"):  # Arrow
        names, read = list(source.column_names), source.column
    elif hasattr(source, "columns") and hasattr(source, "dtypes") and hasattr(source, "to_numpy"):  # pandas, polars
        names, read = list(source.columns), source.__getitem__
    else:
        return None
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadData(f"the table has {names.count(twice)} columns named {twice!r}; give each its own name")
    return {name: read(name) for name in names}


def _hugging_face_columns(dataset: Any) -> dict[str, Any] | None:
    """Tensors if every column is numeric and the user set no transform; otherwise None.

    The dtypes are those of Hugging Face's own torch format (int64, float32), as when it is read sample by sample.
    """
    if isinstance(dataset, Mapping):
        raise WrongType(f"{_EXPECTED}; got a {type(dataset).__name__}: give one of its parts, {list(dataset)}")
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
    """Counts the bytes that `make_resident` allocates: of the view's rows or of its columns, whichever is less."""
    return min(len(view) * _row_bytes(view), sum(column.nbytes for column in view.columns()))


def make_resident(view: View, device: torch.device) -> View:
    """Copies the columns of a vectorized view to a device; returns the view itself if they are there already.

    A selection becomes columns of the selected rows, and joined sources become one. Overlapping windows stay windows.
    """
    device = torch.empty(0, device=device).device  # resolves `cuda` to `cuda:0`, as tensors report it
    columns = view.columns()
    if all(isinstance(column, Tensor) and column.device == device for column in columns):
        return view
    if len(view) * _row_bytes(view) <= sum(column.nbytes for column in columns):
        return _copy_rows(view, device)
    return view.with_columns(_copy_rows(Columns(column), device).tree for column in columns)


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
