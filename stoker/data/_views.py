"""Lazy views of a source: some samples, another order, a function of each sample, several sources, windows, parts."""

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker._tree import map_leaves, named_leaves
from stoker.data._arguments import check_int
from stoker.data._batch import call_with_parts, collate
from stoker.data._order import apportion, interleave
from stoker.data._rng import SPLIT, permutation
from stoker.data._source import (
    Columns,
    Selection,
    Source,
    View,
    as_indexable,
    is_traceable,
    is_vectorized,
    row_numbers,
    take_rows,
)
from stoker.errors import BadData, InvalidArgument, WrongType


def take(source: Any, which: int | slice | Sequence[int] | Tensor | np.ndarray) -> Source[Any]:
    """Selects the first `which` samples, or those that a slice, numbers or a boolean mask select.

    >>> len(take(range(10), 3)), list(take(range(10), slice(None, None, 4))), list(take(range(10), [-1, 0]))
    (3, [0, 4, 8], [9, 0])
    """
    base = as_indexable(source, "take")
    if isinstance(which, bool) or not isinstance(which, int | np.integer | slice):
        return Selection(base, row_numbers(which, len(base), "take"))
    if not isinstance(which, slice) and not 0 < which <= len(base):
        raise InvalidArgument(f"take needs a number from 1 to {len(base)}, the number of samples; got {which}")
    span = range(len(base))[which if isinstance(which, slice) else slice(which)]
    if len(span) == 0:
        raise BadData(f"{which} selects none of the {len(base)} samples")
    if isinstance(base, Columns) and span.step == 1:
        return base.narrow(span.start, span.stop)
    return Selection(base, torch.from_numpy(np.arange(span.start, span.stop, span.step)))


def shuffled(source: Any, seed: int = 0) -> Source[Any]:
    """Puts the samples in one fixed other order; the `shuffle=` of a loader changes the order in each epoch.

    >>> sorted(shuffled(range(5), 1)) == list(range(5)), list(shuffled(range(9), 1)) == list(shuffled(range(9), 1))
    (True, True)
    """
    base = as_indexable(source, "shuffled")
    return Selection(base, permutation(len(base), check_int("seed", seed), purpose=SPLIT))


def mapped(source: Any, function: Callable[..., Any]) -> Source[Any]:
    """Applies a function to each sample when it is read.

    >>> list(mapped([1, 2, 3], lambda number: number * 10)), list(mapped([(1, 2), (3, 4)], lambda a, b: a + b))
    ([10, 20, 30], [3, 7])

    The parts of a tuple are separate arguments, as for the `transform=` of a loader.
    """
    if not callable(function):
        raise WrongType(f"mapped needs a function of a sample; got {type(function).__name__}")
    return _Mapped(as_indexable(source, "mapped"), function)


class _Mapped(View):
    def __init__(self, base: Any, function: Callable[..., Any]) -> None:
        self.base, self.function = base, function

    def __len__(self) -> int:
        return len(self.base)

    def sample(self, number: int) -> Any:
        return call_with_parts(self.function, self.base[number])


def concat(*sources: Any) -> Source[Any]:
    """Joins sources end to end.

    >>> list(concat([1, 2], range(7, 9)))
    [1, 2, 7, 8]
    """
    if not sources:
        raise InvalidArgument("concat needs at least one source")
    return _Joined([as_indexable(source, "concat") for source in sources])


class _Joined(View):
    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.ends = list(accumulate(len(part) for part in parts))
        self.vectorized = all(map(is_vectorized, parts))
        if self.vectorized:
            _check_same_columns([_describe_columns(part) for part in parts])

    def __len__(self) -> int:
        return self.ends[-1]

    def _start(self, part: int) -> int:
        return self.ends[part] - len(self.parts[part])

    def sample(self, number: int) -> Any:
        part = bisect_right(self.ends, number)
        return self.parts[part][number - self._start(part)]

    def columns(self) -> list[Any]:
        return [column for part in self.parts for column in part.columns()]

    def with_columns(self, columns: Iterator[Any]) -> View:
        return _Joined([part.with_columns(columns) for part in self.parts])

    def gather(self, rows: Tensor) -> Any:
        owner = torch.bucketize(rows, torch.tensor(self.ends, device=rows.device), right=True)
        by_part, places = owner.sort(stable=True)
        counts = torch.bincount(by_part, minlength=len(self.parts)).tolist()  # synchronises with a GPU
        gathered, rows = [], rows[places]
        for part, chunk in enumerate(rows.split(counts)):
            if len(chunk):
                gathered.append(self.parts[part].gather(chunk - self._start(part)))
        requested = places.argsort()  # undoes the sorting by part
        return map_leaves(lambda *leaves: take_rows(torch.cat(leaves), requested), *gathered)


def _describe_columns(part: View) -> dict[str, str]:
    row = part.slice(0, 1)
    return {path: f"{leaf.dtype} {list(leaf.shape[1:])} on {leaf.device}" for path, leaf in named_leaves(row)}


def _check_same_columns(descriptions: list[dict[str, str]]) -> None:
    first = descriptions[0]
    for number, other in enumerate(descriptions, start=1):
        for path in [*first, *other]:
            if first.get(path) != other.get(path):
                raise BadData(
                    f"concat needs sources with the same columns, but {f'column {path}' if path else 'a row'} is "
                    f"{first.get(path, 'missing')} in source 1 and {other.get(path, 'missing')} in source {number}"
                )


def windows(source: Any, size: int, stride: int = 1) -> Source[Any]:
    """Makes one sample of every `size` consecutive samples; consecutive windows start `stride` samples apart.

    >>> windows(torch.arange(6), 3, stride=2)[1], len(windows(torch.arange(6), 3))
    (tensor([2, 3, 4]), 4)

    A batch is [batch, size, ...]. Samples at the end that do not fill a window are left out.
    """
    base = as_indexable(source, "windows")
    size, stride = check_int("size", size, least=1), check_int("stride", stride, least=1)
    if size > len(base):
        raise BadData(f"windows of size {size} do not fit into {len(base)} samples")
    return _Windows(base, size, stride)


class _Windows(View):
    def __init__(self, base: Any, size: int, stride: int) -> None:
        self.base, self.size, self.stride = base, size, stride
        self.vectorized, self.traceable = is_vectorized(base), is_traceable(base)

    def __len__(self) -> int:
        return (len(self.base) - self.size) // self.stride + 1

    def sample(self, number: int) -> Any:
        start = number * self.stride
        if self.vectorized:
            return self.base.slice(start, start + self.size)
        return collate([self.base[place] for place in range(start, start + self.size)])

    def columns(self) -> list[Any]:
        return self.base.columns()

    def with_columns(self, columns: Iterator[Any]) -> View:
        return _Windows(self.base.with_columns(columns), self.size, self.stride)

    def gather(self, rows: Tensor) -> Any:
        offsets = torch.arange(self.size, device=rows.device)
        flat = self.base.gather((rows[:, None] * self.stride + offsets).flatten())
        return map_leaves(lambda leaf: leaf.unflatten(0, (len(rows), self.size)), flat)


def split(
    source: Any,
    fractions: Sequence[float] | Tensor | np.ndarray,
    *,
    seed: int | None = 0,
    stratify: Any = None,
) -> tuple[Source[Any], ...]:
    """Splits a source into random parts that share no sample; the seed determines them.

    >>> train, valid = split(torch.arange(10), [0.8, 0.2], seed=0)
    >>> len(train), len(valid), sorted(int(number) for number in [*train, *valid]) == list(range(10))
    (8, 2, True)

    Fractions sum to 1, and sizes are rounded so that every sample is in one part. Integers are sizes, which may leave
    samples out. `seed=None` keeps the order of the source, for time series. `stratify` gives every part the same
    proportions of labels: `True` reads the labels from the last column, a name from that column; or pass the labels,
    or a function of a sample (of its parts, if it is a tuple).
    """
    base = as_indexable(source, "split")
    count = len(base)
    sizes = _part_sizes(fractions.tolist() if isinstance(fractions, Tensor | np.ndarray) else fractions, count)
    for number, size in enumerate(sizes, start=1):
        if size == 0:
            raise BadData(
                f"part {number} of the split would be empty: {fractions[number - 1]} of {count} samples; "
                "give it a larger share, or leave it out"
            )
    if seed is None and stratify is None:
        return tuple(take(base, slice(stop - size, stop)) for size, stop in zip(sizes, accumulate(sizes), strict=True))
    sizes_and_rest = [*sizes, count - sum(sizes)]
    if seed is None:
        order = torch.arange(count, device="cpu")
    else:
        order = permutation(count, check_int("seed", seed), purpose=SPLIT)
    if stratify is None:
        return tuple(Selection(base, numbers) for numbers in order.split(sizes_and_rest)[: len(sizes)])
    labels = _label_codes(base, stratify)
    by_label = order[labels[order].argsort(stable=True)]
    owners = interleave(sizes_and_rest)
    place = torch.empty_like(order)
    place[order] = torch.arange(count, device="cpu")
    parts = (by_label[owners == number] for number in range(len(sizes)))
    # Back in random order, so that a part is not sorted by label.
    return tuple(Selection(base, numbers[place[numbers].argsort()]) for numbers in parts)


def _part_sizes(fractions: Sequence[float], count: int) -> list[int]:
    """Rounds by the largest remainder; integers are the sizes themselves."""
    is_numbers = isinstance(fractions, Iterable) and all(isinstance(each, Real) for each in fractions)
    if not is_numbers or not fractions or any(isinstance(each, bool) for each in fractions):
        raise WrongType(f"split needs fractions, as in [0.8, 0.2], or sizes, as in [800, 200]; got {fractions!r}")
    if any(not 0 <= each < float("inf") for each in fractions):
        raise InvalidArgument(f"fractions can't be negative, infinite or NaN; got {fractions}")
    if all(isinstance(each, Integral) for each in fractions):
        if sum(fractions) > count:
            raise InvalidArgument(f"the sizes {fractions} sum to {sum(fractions)}, but there are only {count} samples")
        return [int(each) for each in fractions]
    if abs(sum(fractions) - 1) > 1e-6:  # fractions may be float32
        raise InvalidArgument(f"fractions have to sum to 1; {fractions} sum to {sum(fractions):.6g}")
    return apportion(count, fractions)


def _label_codes(base: View | Source[Any], stratify: Any) -> Tensor:
    """Returns an integer for the label of each sample."""
    labels = _find_labels(base, stratify)
    if len(labels) != len(base) or getattr(labels, "ndim", 1) != 1:
        shape = list(getattr(labels, "shape", [len(labels)]))
        raise InvalidArgument(f"stratify needs one label for each of the {len(base)} samples; got shape {shape}")
    if isinstance(labels, Tensor):
        return labels.cpu().unique(return_inverse=True)[1]
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    plain: list[Hashable] = [label.item() if hasattr(label, "item") else label for label in labels]
    if not all(isinstance(label, Hashable) for label in plain):
        raise WrongType(f"stratify needs labels that can be compared: numbers or strings; got {plain[0]!r}")
    codes = {label: code for code, label in enumerate(dict.fromkeys(plain))}
    return torch.tensor([codes[label] for label in plain], device="cpu")


def _find_labels(base: View | Source[Any], stratify: Any) -> Any:
    """Returns the labels as a tensor, an array or a list."""
    if callable(stratify):
        return [call_with_parts(stratify, base[number]) for number in range(len(base))]
    if stratify is True or isinstance(stratify, str):
        return _read_labels(base, -1 if stratify is True else stratify)
    if isinstance(stratify, Tensor | np.ndarray | list | tuple):
        return stratify
    if hasattr(stratify, "to_numpy"):
        return stratify.to_numpy()
    raise WrongType(
        "stratify takes True (the last column), the name of a column, the labels themselves, or a function of a "
        f"sample; got {type(stratify).__name__}"
    )


def _read_labels(base: Any, key: int | str) -> Any:
    """Reads the labels out of the samples; of columns in memory only the column of the labels."""
    if isinstance(base, Selection) and base.vectorized:
        column = _read_labels(base.base, key)
        return [column[number] for number in base.numbers] if isinstance(column, list) else column[base.numbers]
    first = base[0]
    if not isinstance(first, tuple if key == -1 else Mapping) or (isinstance(key, str) and key not in first):
        expected = "tuples, whose last part is the label" if key == -1 else f"mappings that have {key!r}"
        raise InvalidArgument(
            f"stratify={True if key == -1 else key!r} needs samples that are {expected}; here a sample is a "
            f"{type(first).__name__}; pass the labels themselves, or a function of a sample"
        )
    return base.tree[key] if isinstance(base, Columns) else [base[number][key] for number in range(len(base))]
