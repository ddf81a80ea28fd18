import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from stoker.data import Loader, concat, mapped, shuffled, split, take, windows
from stoker.data._columns import Columns
from stoker.data._view import View
from stoker.errors import BadData, InvalidArgument, WrongType

X, Y = torch.arange(20.0).view(10, 2), torch.arange(10)


@given(st.slices(10))
def test_slices_take_what_they_take_of_a_list(which):
    expected = list(range(10))[which]
    if not expected:
        with pytest.raises(BadData, match=r"chooses none of the 10 samples"):
            take(range(10), which)
    else:
        assert list(take(range(10), which)) == expected
        assert [int(y) for _, y in take((X, Y), which)] == expected


def test_the_first_samples_share_memory():
    view = take((X, Y), 3)
    assert isinstance(view, Columns)
    assert view.tree[0].data_ptr() == X.data_ptr()
    assert len(view) == 3


@pytest.mark.parametrize("which", [[3, -1], torch.tensor([3, -1]), np.array([3, -1], dtype=np.int32)])
def test_numbers_choose(which):
    assert list(take(range(10), which)) == [3, 9]


def test_a_mask_chooses():
    assert [int(y) for _, y in take((X, Y), Y > 7)] == [8, 9]
    assert list(take(["abc"] * 3, np.array([True, False, True]))) == ["abc", "abc"]


@pytest.mark.parametrize(
    ("which", "error", "text"),
    [
        (0, InvalidArgument, "take needs a number from 1 to 10, the samples that there are; got 0"),
        (11, InvalidArgument, "from 1 to 10.*got 11"),
        (-1, InvalidArgument, "got -1"),
        (True, WrongType, "take needs whole numbers or a mask in one dimension"),
        ([10], InvalidArgument, "there is no sample 10: there are 10"),
        ([-11], InvalidArgument, "there is no sample -11: there are 10"),
        ([0.5], WrongType, "take needs whole numbers or a mask"),
        ([], BadData, "an empty choice leaves none of the 10 samples"),
        (torch.zeros(10, dtype=torch.bool), BadData, "an empty choice"),
        (torch.ones(3, dtype=torch.bool), InvalidArgument, "a mask needs a value for each of the 10 samples; got 3"),
        ("abc", WrongType, "take needs a number, a slice, numbers or a mask; got str"),
    ],
)
def test_a_wrong_choice_is_explained(which, error, text):
    with pytest.raises(error, match=text):
        take(range(10), which)


def test_shuffled_is_one_other_order():
    order = list(shuffled(range(50), 1))
    assert sorted(order) == list(range(50)) != order
    assert order == list(shuffled(range(50), 1)) != list(shuffled(range(50), 2))
    with pytest.raises(WrongType, match="seed takes a seed"):
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


VIEWS = {
    "take": lambda source: take(source, 6),
    "choice": lambda source: take(source, [5, 2, 2, 9]),
    "shuffled": lambda source: shuffled(source, 3),
    "split": lambda source: split(source, [0.7, 0.3])[1],
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


def flat(batch):
    return [batch] if isinstance(batch, torch.Tensor) else list(batch.values() if isinstance(batch, dict) else batch)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_views_of_columns_gather_what_their_samples_are(source, view):
    made = view(source)
    assert isinstance(made, View)
    assert made.vectorised
    rows = torch.tensor([2, 0, len(made) - 1, 2])
    samples = [flat(made[int(row)]) for row in rows]
    for place, leaf in enumerate(flat(made.gather(rows))):
        assert torch.equal(leaf, torch.stack([sample[place] for sample in samples]))
    for place, leaf in enumerate(flat(made.slice(1, 3))):
        assert torch.equal(leaf, torch.stack([flat(made[1])[place], flat(made[2])[place]]))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_of_samples_have_the_samples_of_views_of_columns(view):
    by_sample, by_column = view([(x, y) for x, y in zip(X, Y, strict=True)]), view((X, Y))
    assert not by_sample.vectorised
    assert len(by_sample) == len(by_column)
    for ours, theirs in zip(by_sample, by_column, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_walked_the_same_by_loaders_and_by_torch(view):
    made = view(TensorDataset(X, Y))
    ours, theirs = Loader(made, batch_size=3), DataLoader(made, batch_size=3)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert all(torch.equal(*pair) for pair in zip(a, b, strict=True))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_end(view):
    made = view(X)
    assert torch.equal(made[-1], made[len(made) - 1])
    for wrong in (len(made), -len(made) - 1):
        with pytest.raises(IndexError, match=f"sample {wrong} of {len(made)}"):
            made[wrong]


@pytest.mark.parametrize("view", [shuffled, lambda source: take(source, 1), concat, lambda source: windows(source, 1)])
def test_views_need_numbers(view):
    with pytest.raises(
        WrongType, match=r"needs samples that have numbers, and a DataLoader has none; give it the data"
    ):
        view(DataLoader(TensorDataset(X)))
