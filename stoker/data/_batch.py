"""Batches: building one out of samples, rows that are gathered later, padding, transforms, moving to a device."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stoker._tree import is_namedtuple, map_leaves
from stoker.data._rng import BATCH, SAMPLE, preserve_generators, random_key, seed_generators
from stoker.data._source import Source, View
from stoker.errors import BadData, WrongType


class PaddingBatch(NamedTuple):
    """A batch for a rank whose share of the samples is empty, so that it takes part in collective operations.

    >>> from stoker.data import Loader
    >>> one_sample = Loader(torch.tensor([7]), batch_size=4)
    >>> [next(iter(one_sample.shared(rank, 2))) for rank in range(2)]
    [PaddingBatch(batch=tensor([7])), tensor([7])]

    It holds one sample that another rank has too. Do not count its loss, its metrics or its sample.
    """

    batch: Any


@dataclass(slots=True, eq=False)
class RowSelection:
    """A batch that is not gathered yet: row numbers, and the columns that they index.

    >>> from stoker.data import Loader
    >>> selection = next(Loader(torch.arange(0, 60, 10), batch_size=2).at(epoch=0, batch=1).row_selections())
    >>> selection.rows, selection.gather()
    (tensor([2, 3]), tensor([20, 30]))

    The training step gathers the rows, so that the gather is part of a CUDA graph or a compiled program.
    """

    rows: Tensor  # int64 [batch], on the columns' device
    source: View  # the same object for all batches of an epoch
    _transform: Callable[..., Any] | None = None
    is_padding: bool = False  # as in `PaddingBatch`

    def __len__(self) -> int:
        """Samples in the batch."""
        return len(self.rows)

    def gather(self) -> Any:
        """Returns the batch that the loader gives, after its batchable transform."""
        return transform_batch(self.source.gather(self.rows), self._transform)

    def columns(self) -> list[Tensor]:
        """Returns the tensors that the rows index."""
        columns = self.source.columns()
        assert columns is not None  # a loader gives row selections only if there are columns
        return columns

    def with_rows(self, rows: Tensor) -> "RowSelection":
        """Returns a selection of other rows of the same columns: the static input of a CUDA graph, for example."""
        return replace(self, rows=rows)

    def with_columns(self, columns: list[Tensor]) -> "RowSelection":
        """Returns a selection of the same rows of other tensors, given in the order of `columns()`."""
        return replace(self, source=self.source.with_columns(columns))


@dataclass(frozen=True)
class BatchTransform:
    """A function that `batchable` marks as one of batches."""

    function: Callable[..., Any]

    def __call__(self, *parts: Any) -> Any:
        return self.function(*parts)


def batchable(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of a batch (of its parts, if the batch is a tuple), for the `transform=` of a loader.

    >>> from stoker.data import Loader
    >>> flip = batchable(lambda images, labels: (images.flip(-1), labels))
    >>> images, labels = torch.arange(6).view(3, 2), torch.arange(3)
    >>> next(iter(Loader((images, labels), batch_size=2, transform=flip)))
    (tensor([[1, 0],
            [3, 2]]), tensor([0, 1]))

    It is called once per batch, after the batch is collated and moved: on the device, never in a worker. Columns in
    memory then need no work per sample. Its random numbers come from torch's global generator of that device, as
    dropout's do; they are part of the random state of training and not a function of the sample.
    """
    if not callable(transform):
        raise WrongType(f"batchable marks a function of a batch; got {type(transform).__name__}")
    return transform if isinstance(transform, BatchTransform) else BatchTransform(transform)


def call_with_parts(function: Callable[..., Any], sample: Any) -> Any:
    """Calls a function of a sample or a batch; the parts of a tuple are separate arguments."""
    return function(*sample) if isinstance(sample, tuple) else function(sample)


def transform_batch(batch: Any, transform: Callable[..., Any] | None) -> Any:
    """Applies a batchable transform, if there is one; a padding batch stays a padding batch."""
    if transform is None:
        return batch
    if isinstance(batch, PaddingBatch):
        return PaddingBatch(call_with_parts(transform, batch.batch))
    return call_with_parts(transform, batch)


def map_parts(function: Callable[[Any], Any], batch: Any) -> Any:
    """Applies a function to every leaf of a batch; a container that has a `.to` method counts as a leaf."""
    return map_leaves(function, batch, is_leaf=lambda part: hasattr(part, "to"))


def move_batch(batch: Any, device: torch.device) -> Any:
    """Moves the tensors of a batch, and whatever else has a `.to` method, to a device.

    >>> move_batch({"x": torch.zeros(2), "names": ["a", "b"]}, torch.device("cpu"))
    {'x': tensor([0., 0.]), 'names': ['a', 'b']}
    """

    def move(part: Any) -> Any:
        if isinstance(part, Tensor):  # copies to the host are synchronous, because they are read at once
            return part.to(device, non_blocking=device.type != "cpu")
        return part.to(device) if hasattr(part, "to") and not isinstance(part, type) else part

    return map_parts(move, batch)


# --- building a batch out of samples

Stack = Callable[[list[Tensor]], Tensor]


class Task(NamedTuple):
    """One batch to build: its position, and its samples by number; of a stream also the samples themselves."""

    epoch: int
    batch: int
    numbers: list[int]
    samples: list[Any] | None = None
    rank: int = 0  # the rank that gets it
    is_padding: bool = False


@dataclass(frozen=True)
class Recipe:
    """How a task becomes a batch: a pure function of (seed, epoch, sample numbers)."""

    source: Source[Any]  # empty for a stream, whose tasks hold their samples
    transform: Callable[..., Any] | None
    batcher: Callable[[list[Any]], Any] | None
    seed: int

    def build(self, task: Task, stack: Stack = torch.stack) -> Any:
        """Reads, transforms and collates the samples; leaves torch's, numpy's and Python's generators seeded."""
        samples = [self._load(task, place) for place in range(len(task.numbers))]
        # Rank 0 draws what a single process draws; every other rank draws other random numbers.
        rank = (task.rank,) if task.rank else ()
        seed_generators(random_key(BATCH, self.seed, task.epoch, task.batch, *rank))
        try:
            batch = collate(samples, stack=stack) if self.batcher is None else self.batcher(samples)
        except Exception as error:
            listed = ", ".join(map(str, task.numbers[:8])) + (", …" if len(task.numbers) > 8 else "")
            error.add_note(f"while collating samples {listed} to batch {task.batch} (epoch {task.epoch})")
            raise
        return PaddingBatch(batch) if task.is_padding else batch

    def _load(self, task: Task, place: int) -> Any:
        number = task.numbers[place]
        seed_generators(random_key(SAMPLE, self.seed, task.epoch, number))
        try:
            sample = self.source[number] if task.samples is None else task.samples[place]
            return sample if self.transform is None else call_with_parts(self.transform, sample)
        except Exception as error:
            error.add_note(f"while loading sample {number} (epoch {task.epoch}, batch {task.batch})")
            raise


@dataclass(frozen=True)
class InProcess:
    """Builds batches in this process when they are requested; `Workers` has the same methods."""

    recipe: Recipe

    def build(self, tasks: Iterable[Task], *, start: tuple[int, int] | None = None) -> Iterator[Any]:
        """Yields the batches of the tasks; the global random state of this process does not change."""
        for task in tasks:
            with preserve_generators():
                batch = self.recipe.build(task)
            yield batch

    def prepare(self, tasks: Iterable[Task], *, start: tuple[int, int]) -> None:
        """Does nothing: building in this process would only delay training."""

    def close(self) -> None:
        """Does nothing: there are no processes to stop."""


_ADVICE = "pass batcher= to define how samples become a batch (with padding, for example)"


def collate(samples: Sequence[Any], path: str = "", stack: Stack = torch.stack) -> Any:
    """Stacks samples: tuples to a tuple, mappings to a dict, tensors, arrays and numbers to a tensor.

    >>> collate([(1, 0.5, "a"), (2, 0.25, "b")])
    (tensor([1, 2]), tensor([0.5000, 0.2500]), ['a', 'b'])

    Python floats get torch's default dtype; arrays and tensors keep theirs. A list of numbers is a row of a tensor.
    `stack` replaces `torch.stack`, for a caller that allocates the memory itself.
    """
    first = samples[0]
    if isinstance(first, (str, bytes)):
        _check_types(samples, (str, bytes), path)
        return list(samples)
    if isinstance(first, Tensor):
        _check_types(samples, Tensor, path)
        return _stack(samples, path, stack)
    if isinstance(first, (np.ndarray, np.generic)):
        _check_types(samples, (np.ndarray, np.generic), path)
        return _stack([_from_array(each, path) for each in samples], path, stack)
    if isinstance(first, Number):
        _check_types(samples, Number, path)
        return _as_tensor(samples, path)
    if isinstance(first, Mapping):
        return _collate_mappings(samples, path, stack)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        _check_types(samples, type(first), path)
        names = [field.name for field in dataclasses.fields(first) if field.init]
        parts = {name: collate([getattr(s, name) for s in samples], f"{path}.{name}", stack) for name in names}
        return type(first)(**parts)
    if isinstance(first, (tuple, list)):
        return _collate_sequences(samples, path, stack)
    raise BadData(
        f"a {type(first).__name__}{_at(path)} can't be stacked into a batch; use tensors, arrays, numbers or strings "
        "(transform= can make them), or pass batcher= to define how samples become a batch"
    )


def _collate_sequences(samples: Sequence[Any], path: str, stack: Stack) -> Any:
    first = samples[0]
    _check_types(samples, type(first), path)
    if isinstance(first, list) and _is_row(first):
        return _stack([_as_tensor(each, path) for each in samples], path, stack)
    lengths = {len(each) for each in samples}
    if len(lengths) > 1:
        raise BadData(f"samples have {_join(lengths)} parts{_at(path)}; {_ADVICE}")
    columns = enumerate(zip(*samples, strict=True))
    parts = [collate(column, f"{path}[{place}]", stack) for place, column in columns]
    return type(first)(*parts) if is_namedtuple(first) else type(first)(parts)


def _collate_mappings(samples: Sequence[Any], path: str, stack: Stack) -> dict[Any, Any]:
    _check_types(samples, Mapping, path)
    names = list(samples[0])
    for each in samples:
        if set(each) != set(names):
            missing = sorted(map(repr, set(each) ^ set(names)))
            raise BadData(f"only some samples have {', '.join(missing)}{_at(path)}; {_ADVICE}")
    return {name: collate([each[name] for each in samples], f"{path}[{name!r}]", stack) for name in names}


def _is_row(value: Any) -> bool:
    """Whether a value is a list of numbers, or of such lists; a list of anything else has parts, like a tuple."""
    return isinstance(value, list) and all(isinstance(each, Number) or _is_row(each) for each in value)


def _as_tensor(values: Any, path: str) -> Tensor:
    try:
        return torch.tensor(values, device="cpu")
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadData(f"the numbers{_at(path)} can't be converted to a tensor ({error}); {_ADVICE}") from None


def _from_array(value: Any, path: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(value))  # a copy, because an array may be read-only; stacking costs as much
    except TypeError:
        dtype = value.dtype
        raise BadData(f"an array of dtype {dtype}{_at(path)} can't be converted to a tensor; {_ADVICE}") from None


def _stack(tensors: Sequence[Tensor], path: str, stack: Stack) -> Tensor:
    shapes, dtypes = {tuple(each.shape) for each in tensors}, {each.dtype for each in tensors}
    if len(shapes) > 1:
        listed = _join(str(list(shape)) for shape in sorted(shapes, key=lambda shape: (len(shape), shape)))
        columns = "; if these are columns, put them in a tuple, as in (x, y)" if not path else ""
        raise BadData(f"samples have shapes {listed}{_at(path)}, but only equal shapes stack; {_ADVICE}{columns}")
    if len(dtypes) > 1:
        listed = _join(sorted(str(dtype) for dtype in dtypes))
        raise BadData(f"samples have dtypes {listed}{_at(path)}, but only equal dtypes stack; {_ADVICE}")
    return stack(list(tensors))


def _check_types(samples: Sequence[Any], expected: Any, path: str) -> None:
    for each in samples:
        if not isinstance(each, expected):
            names = f"{type(samples[0]).__name__} and {type(each).__name__}"
            raise BadData(f"samples have both {names}{_at(path)}, which do not stack; {_ADVICE}")


def _at(path: str) -> str:
    return f" at {path}" if path else ""


def _join(values: Iterable[Any]) -> str:
    """Lists the first three values for an error message."""
    words = [str(value) for value in values]
    return " and ".join(words[:3]) + (" and others" if len(words) > 3 else "")
