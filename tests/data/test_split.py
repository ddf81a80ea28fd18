from collections import Counter

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.data import split, take
from stoker.data._split import _sizes
from stoker.data._view import View
from stoker.errors import BadData, InvalidArgument, WrongType

X, Y = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), torch.arange(1000) % 7


def numbers(part):
    return [int(each) for each in part]


@settings(max_examples=50)
@given(st.integers(3, 200), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(0, 9))
def test_every_sample_is_in_one_part(count, weights, seed):
    fractions = [weight / sum(weights) for weight in weights]
    sizes = _sizes(fractions, count)
    assert sum(sizes) == count
    assert all(abs(size - fraction * count) < 1 for size, fraction in zip(sizes, fractions, strict=True))
    if 0 in sizes:
        return
    parts = split(range(count), fractions, seed=seed)
    assert [len(part) for part in parts] == sizes
    assert sorted(number for part in parts for number in part) == list(range(count))
    assert [list(part) for part in parts] == [list(part) for part in split(range(count), fractions, seed=seed)]


def test_the_tours_split():
    train, valid, test = split((X, Y), [0.6, 0.2, 0.2], seed=0)
    assert [len(part) for part in (train, valid, test)] == [600, 200, 200]
    assert all(isinstance(part, View) and part.vectorised for part in (train, valid, test))


def test_seeds_give_orders_and_none_keeps_the_sources():
    assert list(split(range(50), [0.5, 0.5], seed=1)[0]) != list(split(range(50), [0.5, 0.5], seed=2)[0])
    assert [list(part) for part in split(range(5), [0.6, 0.4], seed=None)] == [[0, 1, 2], [3, 4]]


def test_whole_numbers_are_sizes_and_may_leave_samples_out():
    parts = split(range(10), [5, 2])
    assert [len(part) for part in parts] == [5, 2]
    assert len({*parts[0], *parts[1]}) == 7


def test_parts_of_parts_stay_vectorised():
    train, _ = split((X, Y), [0.5, 0.5])
    inner, _ = split(train, [0.5, 0.5])
    assert inner.vectorised
    assert {tuple(x.tolist()) for x, _ in inner} <= {tuple(x.tolist()) for x, _ in train}


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 4), min_size=6, max_size=120),
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(0, 9),
)
def test_strata_get_their_share(labels, weights, seed):
    fractions = [weight / sum(weights) for weight in weights]
    sizes = _sizes(fractions, len(labels))
    if 0 in sizes:
        return
    parts = split(range(len(labels)), fractions, seed=seed, stratify=labels)
    assert [len(part) for part in parts] == sizes
    assert sorted(number for part in parts for number in part) == list(range(len(labels)))
    for part, fraction in zip(parts, fractions, strict=True):
        found = Counter(labels[number] for number in part)
        for label, count in Counter(labels).items():
            assert abs(found[label] - count * fraction) <= 2


def test_one_of_each_label_is_shared_out_too():
    parts = split(range(10), [0.5, 0.5], stratify=list(range(10)))
    assert [len(part) for part in parts] == [5, 5]


def test_strata_are_drawn_and_not_sorted():
    (train, _), (other, _) = (split(torch.arange(1000), [0.8, 0.2], seed=seed, stratify=Y) for seed in (0, 1))
    assert numbers(train) != numbers(other)
    labels = [number % 7 for number in numbers(train)]
    assert labels != sorted(labels)


@pytest.mark.parametrize(
    ("source", "stratify"),
    [
        ((X, Y), True),
        ((X, Y), Y),
        ((X, Y), Y.numpy()),
        ((X, Y), Y.tolist()),
        ((X, Y), list("abcdefg" * 143)[:1000]),
        ((X, Y), np.array(list("abcdefg" * 143)[:1000])),
        ((X, Y), pandas.Series(list("abcdefg" * 143)[:1000])),
        ((X, Y), lambda x, y: y),
        ((X, Y), lambda x, y: int(y)),
        ({"x": X, "label": Y}, "label"),
        ({"label": np.broadcast_to(Y.numpy(), (1000,))}, "label"),
        (take((X, Y), torch.arange(1000)), True),
        ([(1, int(y)) for y in Y], True),
        ([{"label": int(y)} for y in Y], "label"),
    ],
)
def test_labels_come_from_anywhere_and_the_parts_are_the_same(source, stratify):
    found = split(source, [0.6, 0.4], seed=3, stratify=stratify)
    expected = split(range(1000), [0.6, 0.4], seed=3, stratify=Y)
    assert [part.numbers.tolist() for part in found] == [part.numbers.tolist() for part in expected]


@pytest.mark.parametrize(
    ("fractions", "error", "text"),
    [
        ([0.5, 0.4], InvalidArgument, r"fractions have to sum to 1; \[0.5, 0.4\] sum to 0.9"),
        ([0.9, 0.2], InvalidArgument, "sum to 1.1"),
        ([1.5, -0.5], InvalidArgument, "fractions can't be negative"),
        ([float("nan"), 1.0], InvalidArgument, "NaN"),
        ([8, 3], InvalidArgument, "sum to 11, and there are only 10 samples"),
        ([], WrongType, r"split needs fractions, as in \[0.8, 0.2\], or sizes"),
        (["a"], WrongType, "split needs fractions"),
        ([True, False], WrongType, "split needs fractions"),
        ([0.99, 0.01], BadData, "part 2 of the split would be empty: 0.01 of 10 samples; give it a larger share"),
        ([10, 0], BadData, "part 2 of the split would be empty"),
    ],
)
def test_wrong_fractions_are_explained(fractions, error, text):
    with pytest.raises(error, match=text):
        split(range(10), fractions)


@pytest.mark.parametrize(
    ("source", "stratify", "error", "text"),
    [
        ((X, Y), Y[:10], InvalidArgument, r"one label for each of the 1000 samples; got shape \[10\]"),
        ((X, Y), [1, 2], InvalidArgument, r"got shape \[2\]"),
        ((X, Y), X, InvalidArgument, r"got shape \[1000, 3\]"),
        (X, True, InvalidArgument, "stratify=True needs samples that are tuples, whose last part is the label; here"),
        ({"x": X}, "y", InvalidArgument, "stratify='y' needs samples that are mappings that have 'y'"),
        ((X, Y), 3.5, WrongType, "stratify takes True .* got float"),
    ],
)
def test_wrong_labels_are_explained(source, stratify, error, text):
    with pytest.raises(error, match=text):
        split(source, [0.5, 0.5], stratify=stratify)
