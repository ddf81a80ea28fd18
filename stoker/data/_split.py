"""Splitting a source into disjoint parts: training, validation, test."""

from collections.abc import Hashable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.data._arguments import check_seed
from stoker.data._batch import call_with_parts
from stoker.data._columns import Columns, Selection, View
from stoker.data._rng import SPLIT, permutation
from stoker.data._source import Source, as_indexable
from stoker.errors import BadData, InvalidArgument, WrongType


def split(
    source: Any,
    fractions: Sequence[float],
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
    sizes = _part_sizes(list(fractions), count)
    for number, size in enumerate(sizes, start=1):
        if size == 0:
            raise BadData(
                f"part {number} of the split would be empty: {fractions[number - 1]} of {count} samples; "
                "give it a larger share, or leave it out"
            )
    sizes_and_rest = [*sizes, count - sum(sizes)]
    if seed is None:
        order = torch.arange(count, device="cpu")
    else:
        order = permutation(count, check_seed("seed", seed), purpose=SPLIT)
    if stratify is None:
        return tuple(Selection(base, numbers) for numbers in order.split(sizes_and_rest)[: len(sizes)])
    labels = _label_codes(base, stratify)
    by_label = order[labels[order].argsort(stable=True)]
    owners = _interleave(sizes_and_rest)
    place = torch.empty_like(order)
    place[order] = torch.arange(count, device="cpu")
    parts = (by_label[owners == number] for number in range(len(sizes)))
    # Back in random order, so that a part is not sorted by label.
    return tuple(Selection(base, numbers[place[numbers].argsort()]) for numbers in parts)


def _part_sizes(fractions: list[float], count: int) -> list[int]:
    """Rounds by the largest remainder; integers are the sizes themselves."""
    if not fractions or any(isinstance(each, bool) or not isinstance(each, Real) for each in fractions):
        raise WrongType(f"split needs fractions, as in [0.8, 0.2], or sizes, as in [800, 200]; got {fractions!r}")
    if any(not 0 <= each < float("inf") for each in fractions):
        raise InvalidArgument(f"fractions can't be negative, infinite or NaN; got {fractions}")
    if all(isinstance(each, Integral) for each in fractions):
        if sum(fractions) > count:
            raise InvalidArgument(f"the sizes {fractions} sum to {sum(fractions)}, but there are only {count} samples")
        return [int(each) for each in fractions]
    if abs(sum(fractions) - 1) > 1e-9:
        raise InvalidArgument(f"fractions have to sum to 1; {fractions} sum to {sum(fractions):.6g}")
    exact = [each * count for each in fractions]
    sizes = [int(each) for each in exact]
    by_remainder = sorted(range(len(sizes)), key=lambda part: sizes[part] - exact[part])
    for part in by_remainder[: count - sum(sizes)]:
        sizes[part] += 1
    return sizes


def _interleave(sizes: list[int]) -> Tensor:
    """Assigns places to parts as evenly as their sizes allow: any run of neighbours has its share of each part.

    >>> _interleave([4, 2]).tolist()
    [0, 1, 0, 0, 1, 0]
    """
    count = sum(sizes)
    ideal = np.concatenate([(np.arange(size) + 0.5) * count / max(size, 1) for size in sizes])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return torch.from_numpy(owner[ideal.argsort(stable=True)])


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
