"""The order of batches: a pure function of (seed, epoch), from any position, for every kind of source."""

import copy
import hashlib
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import stoker
from stoker.data import Loader, concat, mix, split, take, windows
from stoker.data._rng import LazyPermutation
from stoker.errors import BadData, InvalidArgument, WrongType
from tests.data.batches import Letters, plain

X = torch.arange(23)


class Numbers(Dataset):
    def __init__(self, count=23):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return number


SOURCES = {
    "columns": X,
    "selection": split(X, [1.0], seed=5)[0],
    "joined": concat(X[:5], X[5:]),
    "windows": windows(X, 1),
    "list": X.tolist(),
    "dataset": Numbers(),
}
each_source = pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)


def flat(batches):
    return [batch.flatten().tolist() for batch in batches]


@settings(max_examples=40)
@given(
    st.sampled_from(list(SOURCES.values())),
    st.integers(1, 25),
    st.none() | st.integers(0, 5),
    st.booleans(),
    st.integers(0, 3),
)
def test_iteration_can_start_at_any_batch_of_any_epoch(source, size, shuffle, drop_last, epoch):
    if drop_last and size > 23:
        return
    loader = Loader(source, batch_size=size, shuffle=shuffle, drop_last=drop_last)
    whole = flat(loader.at(epoch=epoch))
    seen = [number for batch in whole for number in batch]
    assert len(whole) == len(loader) == (23 // size if drop_last else -(-23 // size))
    assert all(len(batch) == size for batch in (whole if drop_last else whole[:-1]))
    assert len(set(seen)) == len(seen)
    assert drop_last or sorted(seen) == list(range(23))
    for batch in range(len(loader) + 1):
        batches = loader.at(epoch=epoch, batch=batch)
        assert (batches.epoch, batches.batch, len(batches)) == (epoch, batch, len(whole) - batch)
        assert flat(batches) == flat(batches) == whole[batch:]


@each_source
def test_the_order_changes_with_the_epoch_and_the_seed(source):
    orders = {repr(flat(Loader(source, batch_size=4, shuffle=s).at(epoch=e))) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4
    assert flat(Loader(source, batch_size=4)) == flat(Loader(source, batch_size=4).at(epoch=9))


def test_the_order_never_changes_from_release_to_release():
    # A checkpoint stores a position. A resumed run computes the order again.
    orders = [
        flat(Loader(X, batch_size=23, shuffle=seed).at(epoch=epoch)) for seed in (0, 7, 2**40) for epoch in (0, 3)
    ]
    assert hashlib.sha256(repr(orders).encode()).hexdigest() == (
        "a78820ad32af6aa8b61c5799e6f8ade5924912e699036bff4940c9755d38bfe9"
    )


def test_the_default_device_does_not_change_the_order():
    expected = flat(Loader(X, batch_size=4, shuffle=3))
    with torch.device("meta"):
        assert flat(Loader(X, batch_size=4, shuffle=3)) == expected


@given(st.integers(1, 3000), st.integers(0, 2**64 - 1), st.data())
def test_a_permutation_that_is_computed_in_parts_has_every_number_once(size, key, drawn):
    order = LazyPermutation(size, key)
    assert sorted(order[:].tolist()) == list(range(size))
    start, stop = sorted(drawn.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
    assert order[start:stop].tolist() == order[:].tolist()[start:stop]


@pytest.mark.parametrize("size", [2**25 + 1, 10**9, 2**40])
def test_neither_a_number_nor_its_neighbours_depend_on_its_place(size):
    scaled = LazyPermutation(size, 5)[: 2**15].double() / size
    for lag in (1, 2, 64, 4096):
        pairs = torch.stack([scaled[:-lag], scaled[lag:]])
        assert pairs.corrcoef()[0, 1].abs() < 4 / len(scaled) ** 0.5
    counts = torch.histc(scaled, 32, 0, 1)
    assert counts.sub(2**10).square().div(2**10).sum() < 62  # chi-squared of 31 degrees: 99.9 % are below


def test_a_billion_samples_are_shuffled_without_an_order_of_all_of_them():
    loader = Loader(Numbers(10**9), batch_size=100, shuffle=3)
    batches = [
        next(iter(loader.at(epoch=epoch, batch=batch))) for epoch, batch in [(0, 0), (0, 1), (0, 9_999_999), (7, 0)]
    ]
    seen = torch.cat(batches)
    assert len(seen.unique()) == 400 and seen.max() < 10**9
    share = [next(iter(loader.shared(rank, 3).at(epoch=0, batch=9_999_999))) for rank in range(3)]
    assert torch.cat(share).equal(batches[2])
    # A checkpoint stores a position, so that this order does not change either.
    assert hashlib.sha256(repr(flat(batches)).encode()).hexdigest() == (
        "d6e37c4532b627bacc09d3095d226343d636ead3b2e1812ba77f621d33dcbe0e"
    )


def test_a_mix_with_a_billion_samples_draws_only_those_that_an_epoch_reads():
    sources = {"many": Numbers(10**9), "few": Numbers(100)}
    mixed = Loader(
        mix(**sources, weights={"many": 0.9, "few": 0.1}, by="sample", length=200), batch_size=200, shuffle=3
    )
    epochs = torch.stack([next(iter(mixed.at(epoch=epoch))) for epoch in range(3)])
    many = epochs[epochs >= 100]
    assert len(many.unique()) == len(many) >= 3 * 180 - 1 and many.max() > 10**8


def test_a_run_on_a_billion_samples_resumes_in_its_order(tmp_path):
    class Pairs(Numbers):
        def __getitem__(self, number):
            return torch.tensor([number / self.count]), torch.tensor([1.0])

    def train(run, updates):
        learner = stoker.Learner(lambda: nn.Linear(1, 1), loss=nn.MSELoss(), lr=0.1, seed=5)
        where = {"run": tmp_path / run, "resume": True, "show": False}
        return learner.fit(Pairs(10**9), updates=updates, batch_size=4, **where).model.weight.item()

    train("resumed", 3)
    assert train("resumed", 6) == train("whole", 6)


def test_columns_and_selections_of_many_rows_have_the_order_of_a_data_set_of_that_length():
    rows = torch.arange(2**25 + 3, dtype=torch.int32)  # more than an order is drawn for at once
    expected = next(iter(Loader(Numbers(len(rows)), batch_size=64, shuffle=3).at(epoch=1, batch=9)))
    assert not expected.equal(torch.arange(9 * 64, 10 * 64))
    backwards = take(rows, torch.arange(len(rows) - 1, -1, -1))
    for source, numbers in ((rows, expected), (backwards, len(rows) - 1 - expected)):
        at = Loader(source, batch_size=64, shuffle=3).at(epoch=1, batch=9)
        assert next(iter(at)).equal(numbers.int()) and next(at.row_selections()).gather().equal(numbers.int())


@pytest.mark.parametrize("selected", [False, True])
def test_an_order_that_is_drawn_in_advance_is_the_same(selected):
    rows = torch.arange(40_000)  # the order of so many rows is drawn in a thread, while the epoch before is used
    source = split(rows, [1.0], seed=5)[0] if selected else rows
    loader = Loader(source, batch_size=20_000, shuffle=3)
    expected = [torch.cat(list(Loader(source, batch_size=20_000, shuffle=3).at(epoch=epoch))) for epoch in range(4)]
    for epoch in (0, 1, 2, 0, 3, 3, 2):
        assert torch.cat(list(loader.at(epoch=epoch))).equal(expected[epoch])
        loader = copy.deepcopy(loader) if epoch == 2 else loader
    loader = pickle.loads(pickle.dumps(loader))
    assert torch.cat(list(loader.at(epoch=3))).equal(expected[3])


def test_starting_late_builds_no_batch_before():
    read = []
    loader = Loader(list(range(100)), batch_size=10, transform=lambda number: read.append(number) or number)
    next(iter(loader.at(epoch=0, batch=7)))
    assert read == list(range(70, 80))


@each_source
def test_a_position_past_the_end_raises(source):
    with pytest.raises(InvalidArgument, match="batch 7 does not exist: an epoch has 6 batches, counted from 0"):
        Loader(source, batch_size=4).at(epoch=0, batch=7)


@pytest.mark.parametrize(
    ("position", "error", "text"),
    [
        ({"epoch": -1}, InvalidArgument, "epoch has to be at least 0; got -1"),
        ({"epoch": 1.0}, WrongType, "epoch has to be an integer; got 1.0"),
        ({"epoch": 0, "batch": -1}, InvalidArgument, "batch has to be at least 0; got -1"),
    ],
)
def test_a_wrong_position_raises(position, error, text):
    with pytest.raises(error, match=text):
        Loader(X, batch_size=4).at(**position)


# --- epochs


@each_source
def test_each_for_is_the_next_epoch(source):
    loader = Loader(source, batch_size=8, shuffle=1)
    list(loader.at(epoch=7))  # does not count
    for epoch in range(3):
        assert flat(loader) == flat(loader.at(epoch=epoch))


@each_source
def test_a_look_at_the_first_batch_does_not_cost_an_epoch(source):
    loader = Loader(source, batch_size=8, shuffle=1)
    for epoch in range(3):
        for _ in range(3):
            assert plain(next(iter(loader))) == plain(next(iter(loader.at(epoch=epoch))))
        for batch in loader:  # a loop that stops in the first batch has only looked at it, too
            assert plain(batch) == plain(next(iter(loader.at(epoch=epoch))))
            break
        assert flat(loader) == flat(loader.at(epoch=epoch))


def test_a_loop_that_stops_after_the_second_batch_counts_as_an_epoch():
    loader = Loader(X, batch_size=4, shuffle=1)
    for epoch in range(3):
        for place, batch in enumerate(loader):
            assert plain(batch) == flat(loader.at(epoch=epoch))[place]
            if place == 1:
                break


def test_an_iteration_keeps_its_epoch_while_others_go_on():
    loader = Loader(X, batch_size=8, shuffle=1)
    first, second = iter(loader), iter(loader)  # nothing is read yet: both are epoch 0
    assert flat(first) == flat(loader.at(epoch=0))
    assert flat(loader) == flat(loader.at(epoch=1))
    assert flat(second) == flat(loader.at(epoch=0))
    assert flat(loader) == flat(loader.at(epoch=2))  # an older iteration that ends does not turn the count back


# --- streams


def test_streams_keep_their_order_and_have_no_length():
    loader = Loader(Letters(), batch_size=3)
    assert list(loader) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert list(Loader(Letters(), batch_size=3, drop_last=True)) == [["a", "b", "c"], ["d", "e", "f"]]
    assert list(loader.at(epoch=0, batch=2)) == [["g"]]
    assert list(loader.at(epoch=0, batch=3)) == []  # the end is a position to continue from
    for ask in (len, lambda loader: loader.samples, lambda loader: len(loader.at(epoch=0))):
        with pytest.raises(WrongType, match=r"a stream \(Letters\) has no length, so its batches can't be counted"):
            ask(loader)
    with pytest.raises(InvalidArgument, match="a Letters gives its samples in its own order, which shuffle= can't"):
        Loader(Letters(), batch_size=3, shuffle=0)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_with_a_length_is_counted(drop_last):
    class Sized(Letters):
        def __len__(self):
            return 7

    loader = Loader(Sized(), batch_size=3, drop_last=drop_last)
    assert loader.samples == 7
    assert len(loader) == len(list(loader)) == (2 if drop_last else 3)
    assert len(loader.at(epoch=0, batch=1)) == len(loader) - 1


@pytest.mark.parametrize("batch", [4, 7])
def test_a_stream_that_ends_before_the_position_raises(batch):
    with pytest.raises(InvalidArgument, match=f"batch {batch} of epoch 0 does not exist: the source ended after 7"):
        list(Loader(Letters(), batch_size=3).at(epoch=0, batch=batch))


def test_a_stream_that_cannot_start_again_raises():
    class Once:
        def __init__(self):
            self.reader = iter([1, 2])

        def __iter__(self):
            return self.reader

    loader = Loader(Once(), batch_size=2)
    assert flat(loader) == [[1, 2]]
    with pytest.raises(BadData, match=r"no samples in epoch 1; an iterable has to start again each time that iter\(\)"):
        list(loader)


def test_a_failing_stream_names_the_sample():
    class Breaks(IterableDataset):
        def __iter__(self):
            yield 1
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone") as caught:
        list(Loader(Breaks(), batch_size=1).at(epoch=4))
    assert caught.value.__notes__ == ["while reading sample 1 of the stream (epoch 4)"]
