import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from stoker.data import Loader, concat, split, windows
from stoker.errors import InvalidArgument, WrongType


class Letters(IterableDataset):
    def __iter__(self):
        return iter("abcdefg")


class Numbers(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, number):
        return number


X = torch.arange(23)
KINDS = {
    "columns": X,
    "selection": split(X, [1.0], seed=5)[0],
    "joined": concat(X[:5], X[5:]),
    "windows": windows(X, 1),
    "samples": X.tolist(),
}


def flat(batches):
    return [batch.flatten().tolist() for batch in batches]


@settings(max_examples=60)
@given(
    st.sampled_from(list(KINDS.values())),
    st.integers(1, 25),
    st.none() | st.integers(0, 5),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_walk_can_start_at_any_batch_of_any_epoch(source, size, shuffle, drop_last, epoch):
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
        walk = loader.at(epoch=epoch, batch=batch)
        assert len(walk) == len(whole) - batch
        assert flat(walk) == flat(walk) == whole[batch:]


def test_starting_late_makes_no_batch_before():
    made = []
    loader = Loader(list(range(100)), batch_size=10, transform=lambda number: made.append(number) or number)
    next(iter(loader.at(epoch=0, batch=7)))
    assert made == list(range(70, 80))


@pytest.mark.parametrize("source", KINDS.values(), ids=KINDS)
def test_the_order_changes_with_the_epoch_and_the_seed(source):
    orders = {repr(flat(Loader(source, batch_size=4, shuffle=s).at(epoch=e))) for s in (0, 1) for e in (0, 1)}
    assert len(orders) == 4
    assert flat(Loader(source, batch_size=4)) == flat(Loader(source, batch_size=4).at(epoch=9))


def test_the_order_does_not_depend_on_the_kind_of_source():
    assert flat(Loader(X, batch_size=4, shuffle=3)) == flat(Loader(X.tolist(), batch_size=4, shuffle=3))


@pytest.mark.parametrize("source", KINDS.values(), ids=KINDS)
def test_there_is_no_batch_past_the_end(source):
    with pytest.raises(InvalidArgument, match="there is no batch 7: an epoch has 6, counted from 0"):
        Loader(source, batch_size=4).at(epoch=0, batch=7)


@pytest.mark.parametrize("shuffle", [None, 0])
def test_what_is_written_into_a_batch_does_not_reach_the_source(shuffle):
    x = torch.zeros(6, 2)
    for batch in Loader(x, batch_size=4, shuffle=shuffle):
        batch += 1
    assert x.sum() == 0


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_that_says_how_many_samples_it_has_is_counted(drop_last):
    class Sized(Letters):
        def __len__(self):
            return 7

    loader = Loader(Sized(), batch_size=3, drop_last=drop_last)
    assert loader.samples == 7
    assert len(loader) == len(list(loader)) == (2 if drop_last else 3)
    assert len(loader.at(epoch=0, batch=1)) == len(loader) - 1


def test_streams_have_no_length():
    loader = Loader(Letters(), batch_size=3)
    assert list(loader) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]
    assert list(loader.at(epoch=0, batch=2)) == [["g"]]
    with pytest.raises(WrongType, match=r"a stream \(Letters\) does not say how many samples it has, so its batches"):
        len(loader)
    with pytest.raises(WrongType, match=r"a stream \(Letters\) does not say how many samples it has"):
        loader.samples
    with pytest.raises(TypeError):
        len(loader.at(epoch=0))
    with pytest.raises(
        InvalidArgument, match="a Letters gives its samples in its own order, which shuffle= can't change"
    ):
        Loader(Letters(), batch_size=3, shuffle=0)


def test_a_dataloader_is_used_as_it_is():
    def theirs():
        generator = torch.Generator().manual_seed(1)
        return DataLoader(Numbers(), batch_size=3, shuffle=True, generator=generator)

    ours = Loader(theirs())
    for expected in (theirs(), theirs()):
        expected = [batch.tolist() for batch in expected]
        assert expected == [batch.tolist() for batch in Loader(theirs())]
    assert len(ours) == 3
    assert sorted(number for batch in ours for number in batch.tolist()) == list(range(7))
    with pytest.raises(InvalidArgument, match="there is no batch 4: an epoch has 3, counted from 0"):
        ours.at(epoch=0, batch=4)
    assert len(ours.at(epoch=0, batch=2)) == 1
    with pytest.raises(WrongType, match=r"a DataLoader does not say how many samples it gives"):
        ours.samples
    with pytest.raises(WrongType, match="this DataLoader has no length"):
        len(Loader(DataLoader(Letters())))


def test_a_dataloader_without_a_length_says_where_it_ended():
    loader = Loader(DataLoader(Letters(), batch_size=3))
    assert list(loader.at(epoch=0, batch=2)) == [["g"]] and list(loader.at(epoch=0, batch=3)) == []
    with pytest.raises(InvalidArgument, match="there is no batch 4 in epoch 1: the DataLoader ended after 3"):
        iter(loader.at(epoch=1, batch=4))


def test_a_distributed_sampler_is_told_the_epoch():
    data = TensorDataset(torch.arange(50))
    sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=0)
    loader = Loader(DataLoader(data, batch_size=50, sampler=sampler))
    first, second = ([batch[0].tolist() for batch in loader] for _ in range(2))
    assert first != second
    assert [batch[0].tolist() for batch in loader.at(epoch=0)] == first


@pytest.mark.parametrize(
    "given",
    [{"batch_size": 3}, {"shuffle": 0}, {"workers": 1}, {"batcher": list}, {"transform": int}, {"drop_last": True}],
)
def test_a_dataloader_takes_no_other_settings(given):
    with pytest.raises(InvalidArgument, match=f"a DataLoader is used as it is, so {next(iter(given))} can't be given"):
        Loader(DataLoader(Numbers()), **given)
