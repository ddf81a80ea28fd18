"""Views and columns: samples by number without a copy, and data in memory that is read many rows at a time."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import index as as_int
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker._tree import map_leaves, named_leaves
from stoker.errors import BadData

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
    """Makes columns of tensors, arrays, series and tables in nested tuples and mappings, sharing their memory.

    >>> as_columns((np.zeros((4, 2)), {"y": torch.arange(4)}))[1]
    (tensor([0., 0.], dtype=torch.float64), {'y': tensor(1)})
    """
    tree = map_leaves(_expand_table, tree, is_leaf=_is_column)
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


def _expand_table(leaf: Any) -> Any:
    columns = table_columns(leaf)
    return leaf if columns is None else columns


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
