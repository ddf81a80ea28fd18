"""Cutting a source into parts: training, validation, test."""

from collections.abc import Hashable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.data._columns import Columns
from stoker.data._order import SPLIT, permutation, seed_of
from stoker.data._source import Source, map_style
from stoker.data._view import Selected, View
from stoker.data._views import applied
from stoker.errors import BadData, InvalidArgument, WrongType


def split(
    source: Any,
    fractions: Sequence[float],
    *,
    seed: int | None = 0,
    stratify: Any = None,
) -> tuple[Source[Any], ...]:
    """Parts of a source that share no sample, drawn in an order that the seed fixes.

    >>> train, valid = split(torch.arange(10), [0.8, 0.2], seed=0)
    >>> len(train), len(valid), sorted(int(number) for number in [*train, *valid]) == list(range(10))
    (8, 2, True)

    Fractions sum to 1, and sizes are rounded so that every sample is in one part; whole numbers are sizes, which may
    leave samples out. `seed=None` keeps the order of the source, for time series. `stratify` gives every part its
    share of each label: `True` takes the labels from the last column, a name from that column; or give the labels,
    or a function of a sample (its parts, if it is a tuple).
    """
    base = map_style(source, "split")
    sizes = _sizes(list(fractions), len(base))
    for number, size in enumerate(sizes, start=1):
        if size == 0:
            raise BadData(
                f"part {number} of the split would be empty: {fractions[number - 1]} of {len(base)} samples; "
                "give it a larger share, or leave it out"
            )
    count = len(base)
    order = (
        torch.arange(count, device="cpu") if seed is None else permutation(count, seed_of("seed", seed), purpose=SPLIT)
    )
    if stratify is None:
        return tuple(Selected(base, numbers) for numbers in order.split([*sizes, count - sum(sizes)])[: len(sizes)])
    labels = _codes(base, stratify)
    by_label = order[labels[order].argsort(stable=True)]
    parts = _dealt([*sizes, count - sum(sizes)])
    place = torch.empty_like(order)
    place[order] = torch.arange(count, device="cpu")
    chosen = (by_label[parts == number] for number in range(len(sizes)))
    # back into the drawn order, so that a part is not sorted by label
    return tuple(Selected(base, numbers[place[numbers].argsort()]) for numbers in chosen)


def _sizes(fractions: list[float], count: int) -> list[int]:
    """Sizes by largest remainder; the whole numbers of `fractions` where that is what they are."""
    if not fractions or any(isinstance(each, bool) or not isinstance(each, Real) for each in fractions):
        raise WrongType(f"split needs fractions, as in [0.8, 0.2], or sizes, as in [800, 200]; got {fractions!r}")
    if any(not 0 <= each < float("inf") for each in fractions):
        raise InvalidArgument(f"fractions can't be negative, infinite or NaN; got {fractions}")
    if all(isinstance(each, Integral) for each in fractions):
        if sum(fractions) > count:
            raise InvalidArgument(f"sizes {fractions} sum to {sum(fractions)}, and there are only {count} samples")
        return [int(each) for each in fractions]
    if abs(sum(fractions) - 1) > 1e-9:
        raise InvalidArgument(f"fractions have to sum to 1; {fractions} sum to {sum(fractions):.6g}")
    exact = [each * count for each in fractions]
    sizes = [int(each) for each in exact]
    neediest = sorted(range(len(sizes)), key=lambda part: sizes[part] - exact[part])
    for part in neediest[: count - sum(sizes)]:
        sizes[part] += 1
    return sizes


def _dealt(sizes: list[int]) -> Tensor:
    """Part numbers spread as evenly as their sizes allow, so that any run of neighbours has its share of each.

    >>> _dealt([4, 2]).tolist()
    [0, 1, 0, 0, 1, 0]
    """
    count = sum(sizes)
    ideal = np.concatenate([(np.arange(size) + 0.5) * count / max(size, 1) for size in sizes])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    return torch.from_numpy(owner[ideal.argsort(stable=True)])


def _codes(base: View[Any] | Source[Any], stratify: Any) -> Tensor:
    """A whole number for each sample's label."""
    labels = _labels(base, stratify)
    if len(labels) != len(base) or getattr(labels, "ndim", 1) != 1:
        shape = list(getattr(labels, "shape", [len(labels)]))
        raise InvalidArgument(f"stratify needs one label for each of the {len(base)} samples; got shape {shape}")
    if isinstance(labels, Tensor):
        return labels.cpu().unique(return_inverse=True)[1]
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    codes: dict[Hashable, int] = {}
    return torch.tensor([codes.setdefault(_plain(label), len(codes)) for label in labels], device="cpu")


def _labels(base: View[Any] | Source[Any], stratify: Any) -> Any:
    """The labels as a tensor, an array or a list, wherever the user says that they are."""
    if callable(stratify):
        return [applied(stratify, base[number]) for number in range(len(base))]
    if stratify is True or isinstance(stratify, str):
        return _own_labels(base, -1 if stratify is True else stratify)
    if isinstance(stratify, (Tensor, np.ndarray, list, tuple)):
        return stratify
    if hasattr(stratify, "to_numpy"):
        return stratify.to_numpy()
    raise WrongType(
        "stratify takes True (the last column), the name of a column, the labels themselves, or a function of a "
        f"sample; got {type(stratify).__name__}"
    )


def _own_labels(base: Any, which: int | str) -> Any:
    """The labels that the samples carry: a column in memory, without touching the others, or a part of every sample."""
    if isinstance(base, Selected) and base.vectorised:
        column = _own_labels(base.base, which)
        return [column[number] for number in base.numbers] if isinstance(column, list) else column[base.numbers]
    first = base[0]
    if not isinstance(first, tuple if which == -1 else Mapping) or (isinstance(which, str) and which not in first):
        wanted = "tuples, whose last part is the label" if which == -1 else f"mappings that have {which!r}"
        raise InvalidArgument(
            f"stratify={True if which == -1 else which!r} needs samples that are {wanted}; here a sample is a "
            f"{type(first).__name__}; give the labels themselves, or a function of a sample"
        )
    return base.tree[which] if isinstance(base, Columns) else [base[number][which] for number in range(len(base))]


def _plain(label: Any) -> Hashable:
    """A label that can be compared and counted: a tensor of one number as the number."""
    return label.item() if hasattr(label, "item") else label
