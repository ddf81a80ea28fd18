"""Views of a source: some samples, another order, a function of each sample, several sources, windows, parts."""

import pickle
from collections import Counter

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset, TensorDataset

from stoker.data import Loader, concat, mapped, shuffled, split, take, windows
from stoker.errors import BadData, InvalidArgument, WrongType
from tests.data.batches import is_in_memory, plain

X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)

VIEWS = {
    "take": lambda source: take(source, 6),
    "numbers": lambda source: take(source, [5, 2, 2, 9]),
    "shuffled": lambda source: shuffled(source, 3),
    "split": lambda source: split(source, [0.7, 0.3])[1],
    "part of a part": lambda source: split(take(shuffled(source), slice(1, 9)), [0.5, 0.5])[1],
    "concat": lambda source: concat(source, take(source, 4), source),
    "windows": lambda source: windows(source, 3, 2),
    "nested": lambda source: shuffled(windows(concat(shuffled(source), take(source, [1, 3])), 2), 1),
}
SOURCES = {
    "tuple": (X, Y),
    "mapping": {"x": X, "y": Y},
    "tensor": X,
    "read-only": np.broadcast_to(Y.numpy()[:, None], (10, 2)),
}
each_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


@each_view
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_batches_of_a_view_of_columns_are_its_samples_stacked(source, view):
    made = view(source)
    assert is_in_memory(made)
    for shuffle in (None, 5):
        whole = Loader(made, batch_size=len(made), shuffle=shuffle)
        by_sample = Loader(mapped(range(len(made)), made.__getitem__), batch_size=len(made), shuffle=shuffle)
        assert not is_in_memory(by_sample.source)
        assert plain(list(whole)) == plain(list(by_sample))


@each_view
def test_views_of_lists_have_the_samples_of_views_of_columns(view):
    by_sample, by_column = view([(x, y) for x, y in zip(X, Y, strict=True)]), view((X, Y))
    assert not is_in_memory(by_sample)
    assert plain(list(by_sample)) == plain(list(by_column))


@each_view
def test_loader_and_dataloader_read_a_view_in_the_same_way(view):
    made = view(TensorDataset(X, Y))
    assert plain(list(Loader(made, batch_size=3))) == plain(list(DataLoader(made, batch_size=3)))


@each_view
def test_a_view_is_indexed_like_a_list_and_can_be_pickled(view):
    made = view(X)
    assert torch.equal(made[-1], made[len(made) - 1])
    for wrong in (len(made), -len(made) - 1):
        with pytest.raises(IndexError, match=f"sample {wrong} of {len(made)}"):
            made[wrong]
    assert plain(list(pickle.loads(pickle.dumps(made)))) == plain(list(made))


def test_views_share_memory_with_the_source():
    x = torch.arange(10)
    views = take(x, 4), take(x, [3, 1]), split(x, [0.5, 0.5])[0], concat(x, x), windows(x, 2)
    x += 100
    assert all(int(view[0].min()) >= 100 for view in views)
    array = np.arange(10)
    loader = Loader(take(array, 4), batch_size=4)
    array += 100
    assert next(iter(loader)).tolist() == [100, 101, 102, 103]


@pytest.mark.parametrize("view", [shuffled, lambda source: take(source, 1), concat, lambda source: windows(source, 1)])
def test_views_need_indexing(view):
    with pytest.raises(WrongType, match=r"reads samples by number, which a DataLoader does not support; pass the data"):
        view(DataLoader(TensorDataset(X)))


@given(st.slices(10))
def test_take_slices_as_a_list_does(which):
    expected = list(range(10))[which]
    if not expected:
        with pytest.raises(BadData, match=r"selects none of the 10 samples"):
            take(range(10), which)
    else:
        assert list(take(range(10), which)) == expected
        assert [int(y) for _, y in take((X, Y), which)] == expected


def test_take_accepts_numbers_and_a_mask():
    unsigned = np.array([3, 9], dtype=np.uint64)
    for which in ([3, -1], np.array([3, -1], dtype=np.int32), unsigned, (Y == 3) | (Y == 9)):
        assert list(take(range(10), which)) == [3, 9]
    assert list(take(range(10), np.int64(2))) == [0, 1]
    assert [int(y) for (y,) in Loader(Subset(TensorDataset(Y), [-1, 3]), batch_size=1)] == [9, 3]
    for wrong, text in (([1.5], "Subset needs integers"), ([10], "sample 10 does not exist: there are 10")):
        with pytest.raises((WrongType, InvalidArgument), match=text):
            Loader(Subset(TensorDataset(Y), wrong), batch_size=1)


@pytest.mark.parametrize(
    ("which", "error", "text"),
    [
        (0, InvalidArgument, "take needs a number from 1 to 10, the number of samples; got 0"),
        (11, InvalidArgument, "from 1 to 10.*got 11"),
        (True, WrongType, "take needs integers or a mask in one dimension"),
        ([10], InvalidArgument, "sample 10 does not exist: there are 10"),
        ([-11], InvalidArgument, "sample -11 does not exist: there are 10"),
        ([], BadData, "an empty selection leaves none of the 10 samples"),
        (torch.zeros(10, dtype=torch.bool), BadData, "an empty selection"),
        (torch.ones(3, dtype=torch.bool), InvalidArgument, "a mask needs a value for each of the 10 samples; got 3"),
        ("abc", WrongType, "take needs a number, a slice, numbers or a mask; got str"),
    ],
)
def test_take_raises_for_a_wrong_selection(which, error, text):
    with pytest.raises(error, match=text):
        take(range(10), which)


def test_shuffled_is_one_other_order():
    order = list(shuffled(range(50), 1))
    assert sorted(order) == list(range(50)) != order
    assert order == list(shuffled(range(50), 1)) != list(shuffled(range(50), 2))
    with pytest.raises(WrongType, match="seed has to be an integer; got True"):
        shuffled(range(5), True)


def test_mapped_is_lazy_and_passes_the_parts_of_a_tuple():
    seen = []

    def double(x, y):
        seen.append(int(y))
        return x * 2, y

    view = mapped((X, Y), double)
    assert seen == []
    assert view[3][0].tolist() == [12, 14]
    assert seen == [3]
    assert mapped([{"x": 1}], lambda sample: sample["x"])[0] == 1
    with pytest.raises(WrongType, match="mapped needs a function of a sample; got int"):
        mapped([1], 3)


@pytest.mark.parametrize(
    ("second", "text"),
    [
        (torch.zeros(2, 4), r"a row is torch.float32 \[3\] on cpu in source 1 and torch.float32 \[4\] on cpu in sour"),
        (torch.zeros(2, 3).double(), r"torch.float64 \[3\] on cpu in source 2"),
        ((torch.zeros(2, 3),), r"missing in source 2"),
    ],
)
def test_concat_raises_if_the_columns_differ(second, text):
    with pytest.raises(BadData, match=f"concat needs sources with the same columns, but .*{text}"):
        concat(torch.zeros(2, 3), second)


def test_concat_raises_without_samples():
    with pytest.raises(InvalidArgument, match="concat needs at least one source"):
        concat()
    with pytest.raises(BadData, match="the source has no samples"):
        concat([1], [])


@given(st.integers(1, 30), st.integers(1, 8), st.integers(1, 5))
def test_windows_are_those_that_torch_unfolds(count, size, stride):
    x = torch.arange(count * 2.0).view(count, 2)
    if size > count:
        with pytest.raises(BadData, match=f"windows of size {size} do not fit into {count} samples"):
            windows(x, size, stride)
        return
    made = windows(x, size, stride)
    expected = x.unfold(0, size, stride).transpose(1, 2)  # [windows, size, 2]
    assert torch.equal(next(iter(Loader(made, batch_size=count))), expected)
    assert torch.equal(torch.stack(list(made)), expected)


def test_windows_of_a_list_are_stacked():
    numbers, words = windows([(1, "a"), (2, "b"), (3, "c")], 2)[1]
    assert (numbers.tolist(), words) == ([2, 3], ["b", "c"])


@pytest.mark.parametrize(
    ("size", "stride", "error", "text"),
    [
        (0, 1, InvalidArgument, "size has to be at least 1; got 0"),
        (2, 0, InvalidArgument, "stride has to be at least 1; got 0"),
        (1.5, 1, WrongType, "size has to be an integer; got 1.5"),
    ],
)
def test_windows_raise_for_a_wrong_size(size, stride, error, text):
    with pytest.raises(error, match=text):
        windows(range(5), size, stride)


# --- split

IMAGES, LABELS = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0)), torch.arange(1000) % 7


@settings(max_examples=40)
@given(
    st.integers(3, 120),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 9),
    st.booleans(),
)
def test_every_sample_is_in_one_part_of_the_right_size(count, weights, seed, stratified):
    fractions = [weight / sum(weights) for weight in weights]
    labels = [number * number % 5 for number in range(count)]
    try:
        parts = split(range(count), fractions, seed=seed, stratify=labels if stratified else None)
    except BadData:
        assert min(fractions) * count < 1
        return
    assert all(abs(len(part) - fraction * count) < 1 for part, fraction in zip(parts, fractions, strict=True))
    assert sorted(number for part in parts for number in part) == list(range(count))
    again = split(range(count), fractions, seed=seed, stratify=labels if stratified else None)
    assert [list(part) for part in parts] == [list(part) for part in again]
    if stratified:
        for part, fraction in zip(parts, fractions, strict=True):
            found = Counter(labels[number] for number in part)
            assert all(abs(found[label] - total * fraction) <= 2 for label, total in Counter(labels).items())


def test_a_seed_determines_the_parts_and_none_keeps_the_order():
    assert list(split(range(50), [0.5, 0.5], seed=1)[0]) != list(split(range(50), [0.5, 0.5], seed=2)[0])
    assert [list(part) for part in split(range(5), [0.6, 0.4], seed=None)] == [[0, 1, 2], [3, 4]]


def test_the_parts_never_change_from_release_to_release():
    # A resumed run splits again: `fit(valid=0.2)` has to hold out the same samples.
    assert [list(part) for part in split(range(10), [0.6, 0.4], seed=3)] == [[9, 6, 3, 1, 7, 4], [0, 8, 5, 2]]
    stratified = split(range(10), [0.6, 0.4], seed=3, stratify=[0, 1] * 5)
    assert [list(part) for part in stratified] == [[9, 6, 1, 0, 5, 2], [3, 7, 4, 8]]


def test_fractions_may_be_a_tensor():
    assert [len(part) for part in split(range(1000), torch.tensor([0.7, 0.2, 0.1]))] == [700, 200, 100]


def test_integers_are_sizes_and_may_leave_samples_out():
    parts = split(range(10), [5, 2])
    assert [len(part) for part in parts] == [5, 2]
    assert len({*parts[0], *parts[1]}) == 7


def test_stratified_parts_are_random_and_not_sorted_by_label():
    (train, _), (other, _) = (split(range(1000), [0.8, 0.2], seed=seed, stratify=LABELS) for seed in (0, 1))
    assert list(train) != list(other)
    labels = [number % 7 for number in train]
    assert labels != sorted(labels)


WORDS = list("abcdefg" * 143)[:1000]


@pytest.mark.parametrize(
    ("source", "stratify"),
    [
        ((IMAGES, LABELS), True),
        ((IMAGES, LABELS), LABELS),
        ((IMAGES, LABELS), LABELS.tolist()),
        ((IMAGES, LABELS), WORDS),
        ((IMAGES, LABELS), pandas.Series(WORDS)),
        ((IMAGES, LABELS), lambda x, y: y),
        ({"x": IMAGES, "label": LABELS}, "label"),
        ({"x": IMAGES, "label": np.broadcast_to(LABELS.numpy(), (1000,))}, "label"),
        (take((IMAGES, LABELS), torch.arange(1000)), True),
        (list(zip(IMAGES, LABELS.tolist(), strict=True)), True),
        ([{"x": x, "label": int(y)} for x, y in zip(IMAGES, LABELS, strict=True)], "label"),
    ],
)
def test_labels_come_from_anywhere_and_give_the_same_parts(source, stratify):
    expected = [IMAGES[list(part)] for part in split(range(1000), [0.6, 0.4], seed=3, stratify=LABELS)]
    for part, images in zip(split(source, [0.6, 0.4], seed=3, stratify=stratify), expected, strict=True):
        batch = next(iter(Loader(part, batch_size=1000)))
        assert torch.equal(batch["x"] if isinstance(batch, dict) else batch[0], images)


@pytest.mark.parametrize(
    ("fractions", "error", "text"),
    [
        ([0.5, 0.4], InvalidArgument, r"fractions have to sum to 1; \[0.5, 0.4\] sum to 0.9"),
        ([1.5, -0.5], InvalidArgument, "fractions can't be negative"),
        ([float("nan"), 1.0], InvalidArgument, "NaN"),
        ([8, 3], InvalidArgument, "sum to 11, but there are only 10 samples"),
        ([], WrongType, r"split needs fractions, as in \[0.8, 0.2\], or sizes"),
        ([True, False], WrongType, "split needs fractions"),
        (0.5, WrongType, r"split needs fractions, as in \[0.8, 0.2\], or sizes, as in \[800, 200\]; got 0.5"),
        ([0.99, 0.01], BadData, "part 2 of the split would be empty: 0.01 of 10 samples; give it a larger share"),
    ],
)
def test_split_raises_for_wrong_fractions(fractions, error, text):
    with pytest.raises(error, match=text):
        split(range(10), fractions)


@pytest.mark.parametrize(
    ("source", "stratify", "error", "text"),
    [
        ((IMAGES, LABELS), LABELS[:10], InvalidArgument, r"one label for each of the 1000 samples; got shape \[10\]"),
        ((IMAGES, LABELS), IMAGES, InvalidArgument, r"got shape \[1000, 3\]"),
        (IMAGES, True, InvalidArgument, "stratify=True needs samples that are tuples, whose last part is the label"),
        ({"x": IMAGES}, "y", InvalidArgument, "stratify='y' needs samples that are mappings that have 'y'"),
        ((IMAGES, LABELS), 3.5, WrongType, "stratify takes True .* got float"),
        ((IMAGES, LABELS), [[1]] * 1000, WrongType, r"stratify needs labels that can be compared: .*; got \[1\]"),
    ],
)
def test_split_raises_for_wrong_labels(source, stratify, error, text):
    with pytest.raises(error, match=text):
        split(source, [0.5, 0.5], stratify=stratify)
