"""Batches: building one out of samples, rows that are gathered later, padding, transforms, moving to a device."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import repeat
from numbers import Number
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from stoker._tree import is_namedtuple, map_leaves
from stoker.data._rng import BATCH, SAMPLE, Draws, preserve_generators, random_key, seed_generators
from stoker.data._source import Source, View, is_of_package
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
        return self.source.columns()

    def with_rows(self, rows: Tensor) -> "RowSelection":
        """Returns a selection of other rows of the same columns: the static input of a CUDA graph, for example."""
        return replace(self, rows=rows)

    def with_columns(self, columns: list[Tensor]) -> "RowSelection":
        """Returns a selection of the same rows of other tensors, given in the order of `columns()`."""
        return replace(self, source=self.source.with_columns(iter(columns)))


@dataclass(frozen=True, eq=False, repr=False)
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

    if type(batch) is tuple and all(isinstance(part, Tensor) for part in batch):  # the usual (x, y)
        return tuple([_move(part, device) for part in batch])
    return map_parts(lambda part: _move(part, device), batch)


def _move(part: Any, device: torch.device) -> Any:
    if isinstance(part, Tensor):  # copies to the host are synchronous, because they are read at once
        return part.to(device, non_blocking=device.type != "cpu")
    return part.to(device) if hasattr(part, "to") and not isinstance(part, type) else part


# --- building a batch out of samples

Stack = Callable[[list[Tensor] | tuple[Tensor, ...]], Tensor]


class Task(NamedTuple):
    """One batch to build: its position, and its samples by number; of a stream also the samples themselves."""

    epoch: int
    batch: int
    numbers: list[int]
    samples: list[Any] | None = None
    rank: int = 0  # the rank that gets it
    is_padding: bool = False
    places: range | None = None  # of the samples in the order of the epoch, if it may have a sample twice


@dataclass(frozen=True, eq=False, repr=False)
class Recipe:
    """How a task becomes a batch: a pure function of (seed, epoch, sample numbers)."""

    source: Source[Any]  # empty for a stream, whose tasks hold their samples
    transform: Callable[..., Any] | None
    batcher: Callable[[list[Any]], Any] | None
    seed: int
    pad: Callable[[list[Any]], list[Any]] | None = None  # makes samples equally long
    _draws: Draws = field(default_factory=Draws, compare=False)

    @property
    def calls_user_code(self) -> bool:
        """Whether building a batch may draw: the samples of a list or a stream are only collated."""
        return type(self.source) not in (list, tuple) or self.transform is not None or self.batcher is not None

    def build_here(self, tasks: Iterable[Task]) -> Iterator[Any]:
        """Builds batches in this process when they are requested; its global random state does not change."""
        return (self.build(task, preserve=True) for task in tasks)

    def build(self, task: Task, stack: Stack = torch.stack, *, preserve: bool = False) -> Any:
        """Reads, transforms and collates the samples; without `preserve`, may leave the global generators seeded."""
        if not self.calls_user_code:
            return self._build(task, stack, None)
        if task.samples is None:
            return self._draws.run(lambda seed: self._build(task, stack, seed), preserve=preserve)
        with preserve_generators() if preserve else nullcontext():  # those of a stream can't be read twice
            return self._build(task, stack, seed_generators)

    def _build(self, task: Task, stack: Stack, seed: Callable[[int], object] | None) -> Any:
        samples = self._load(task, seed)
        if seed is not None and self.batcher is not None:
            # Rank 0 draws what a single process draws; every other rank draws other random numbers.
            rank = (task.rank,) if task.rank else ()
            seed(random_key(BATCH, self.seed, task.epoch, task.batch, *rank))
        try:
            if self.pad is not None:
                samples = self.pad(samples)
            batch = collate(samples, stack=stack) if self.batcher is None else self.batcher(samples)
        except Exception as error:
            listed = ", ".join(map(str, task.numbers[:8])) + (", …" if len(task.numbers) > 8 else "")
            error.add_note(f"while collating samples {listed} to batch {task.batch} (epoch {task.epoch})")
            raise
        return PaddingBatch(batch) if task.is_padding else batch

    def _load(self, task: Task, seed: Callable[[int], object] | None) -> list[Any]:
        source: Any = self.source if task.samples is None else dict(zip(task.numbers, task.samples, strict=True))
        samples, transform, number = [], self.transform, 0
        try:
            if seed is None and transform is None:
                return [source[number := each] for each in task.numbers]
            for number, key in zip(task.numbers, repeat(0) if seed is None else self._keys(task), strict=False):
                if seed is not None:
                    seed(key)
                sample = source[number]
                samples.append(sample if transform is None else call_with_parts(transform, sample))
        except Exception as error:
            error.add_note(f"while loading sample {number} (epoch {task.epoch}, batch {task.batch})")
            raise
        return samples

    def _keys(self, task: Task) -> list[int]:
        """The seed of each sample; one that comes again in an epoch draws other numbers."""
        key = random_key(SAMPLE, self.seed, task.epoch)
        if task.places is None:
            return [random_key(key, number) for number in task.numbers]
        return [random_key(key, *numbers) for numbers in zip(task.numbers, task.places, strict=True)]


_ADVICE = "Loader(..., collate_fn=fn) defines how a list of samples becomes a batch (with padding, for example)"
_KINDS: list[Any] = [(str, bytes), Tensor, (np.ndarray, np.generic), Number, Mapping]  # each may be mixed in a batch


def collate(samples: list[Any] | tuple[Any, ...], path: str = "", stack: Stack = torch.stack) -> Any:
    """Stacks samples: tuples to a tuple, mappings to a dict, tensors, arrays and numbers to a tensor.

    >>> collate([(1, 0.5, "a"), (2, 0.25, "b")])
    (tensor([1, 2]), tensor([0.5000, 0.2500]), ['a', 'b'])

    Python floats get torch's default dtype; arrays and tensors keep theirs. A list of numbers is a row of a tensor.
    Graphs of PyTorch Geometric become one of its batches, and TensorDicts a dict.
    `stack` replaces `torch.stack`, for a caller that allocates the memory itself.
    """
    first = samples[0]
    kind = type(first)
    if kind is Tensor:  # tried before it is checked: that takes as long as stacking small tensors
        try:
            if len({tensor.dtype for tensor in samples}) == 1:
                return stack(samples)
        except (AttributeError, TypeError, RuntimeError):
            pass
    at, kinds = f" at {path}" if path else "", set(map(type, samples))
    if len(kinds) > 1:
        _check_kinds(samples, at)
    if kind is Tensor:
        return _stack(samples, at, stack)
    if isinstance(first, tuple) or (isinstance(first, list) and not is_row(first)):
        try:
            columns = list(zip(*samples, strict=True))
        except ValueError:
            lengths = sorted(set(map(len, samples)))
            raise BadData(f"samples have {_join(lengths)} parts{at}; {_ADVICE}") from None
        parts = [collate(column, f"{path}[{place}]", stack) for place, column in enumerate(columns)]
        return kind(*parts) if is_namedtuple(first) else kind(parts)
    if kind is dict or (isinstance(first, Mapping) and not is_of_package("tensordict", first)):
        if len(kinds) > 1 or kind is not dict:
            samples = [dict(sample) for sample in samples]
        try:
            columns = {name: list(map(itemgetter(name), samples)) for name in first}
        except KeyError:
            columns = None
        if columns is None or len(set(map(len, samples))) > 1:
            names = set().union(*samples)
            missing = ", ".join(sorted(repr(name) for name in names if any(name not in sample for sample in samples)))
            raise BadData(f"only some samples have {missing}{at}; {_ADVICE}")
        return {name: collate(column, f"{path}[{name!r}]", stack) for name, column in columns.items()}
    if kind is int or kind is float or (isinstance(first, Number) and not isinstance(first, np.generic)):
        return _as_tensor(samples, at)
    if isinstance(first, (str, bytes)):
        return list(samples)
    if isinstance(first, (Tensor, np.ndarray, np.generic, list)):
        return _stack([_as_tensor(sample, at) for sample in samples], at, stack)
    if is_of_package("tensordict", first):
        return collate([sample.to_dict() for sample in samples], path, stack)
    if is_of_package("torch_geometric", first):
        from torch_geometric.data import Batch

        return Batch.from_data_list(list(samples))
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        fields = [each.name for each in dataclasses.fields(first) if each.init]
        columns = {name: [getattr(sample, name) for sample in samples] for name in fields}
        return kind(**{name: collate(column, f"{path}.{name}", stack) for name, column in columns.items()})
    raise BadData(
        f"a {kind.__name__}{at} can't be stacked into a batch; use tensors, arrays, numbers or strings "
        f"(transform= can make them); {_ADVICE}"
    )


def _check_kinds(samples: Sequence[Any], at: str) -> None:
    """Raises if samples of several types can't be parts of one batch."""
    first = samples[0]
    kind = next((kind for kind in _KINDS if isinstance(first, kind)), type(first))
    for sample in samples:
        if not isinstance(sample, kind):
            names = f"{type(first).__name__} and {type(sample).__name__}"
            raise BadData(f"samples have both {names}{at}, which do not stack; {_ADVICE}")


def is_row(value: Any) -> bool:
    """Whether a value is a list of numbers, or of such lists; a list of anything else has parts, like a tuple."""
    return isinstance(value, list) and all(isinstance(part, Number) or is_row(part) for part in value)


def _as_tensor(value: Any, at: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        try:
            return torch.from_numpy(np.array(value))  # a copy, because an array may be read-only
        except TypeError:
            raise BadData(f"an array of dtype {value.dtype}{at} can't be converted to a tensor; {_ADVICE}") from None
    try:
        return torch.tensor(value, device="cpu")
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise BadData(f"the numbers{at} can't be converted to a tensor ({error}); {_ADVICE}") from None


def _stack(tensors: list[Tensor] | tuple[Tensor, ...], at: str, stack: Stack) -> Tensor:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) == 1:
        try:
            return stack(tensors)
        except RuntimeError:
            _check_shapes(tensors, at)
            raise
    _check_shapes(tensors, at)
    listed = _join(sorted(map(str, dtypes)))
    raise BadData(f"samples have dtypes {listed}{at}, but only equal dtypes stack; {_ADVICE}")


def _check_shapes(tensors: Sequence[Tensor], at: str) -> None:
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        listed = _join(str(list(shape)) for shape in sorted(shapes, key=lambda shape: (len(shape), shape)))
        more = "" if at else "; if these are columns, put them in a tuple, as in (x, y)"
        rows = {shape[1:] for shape in shapes}
        more = "; Loader(..., pad_to=64) pads sequences to a multiple of 64" if len(rows) == 1 and at else more
        raise BadData(f"samples have shapes {listed}{at}, but only equal shapes stack; {_ADVICE}{more}")


def _join(values: Iterable[Any]) -> str:
    """Lists the first three values for an error message."""
    words = [str(value) for value in values]
    return " and ".join(words[:3]) + (" and others" if len(words) > 3 else "")
