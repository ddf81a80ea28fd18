"""Several ranks: the shares of all ranks together are the batches of one process, bit for bit."""

import random

import datasets
import numpy as np
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from stoker._tree import first_tensor, map_leaves, named_leaves
from stoker.data import Loader, PaddingBatch, concat, mapped, shuffled, take, windows
from stoker.errors import InvalidArgument, WrongType
from tests.data.batches import as_batch, plain


class Rolls(Dataset):
    """Samples that draw from all three generators when they are read."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return torch.rand(2), number, np.random.rand(), random.random()


class Stream(IterableDataset):
    """A stream that draws while it is read."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            yield torch.rand(2), number


def noisy(x, y, *rest):
    return x + torch.randn(2), y, np.random.rand(), random.random()


def columns(count):
    return torch.arange(2.0 * count).view(count, 2), torch.arange(count)


def samples(count):
    return list(zip(*columns(count), strict=True))


# name: (source of a number of samples, options of the loader)
KINDS = {
    "columns": (columns, {}),
    "mapping": (lambda count: dict(zip("xy", columns(count), strict=True)), {}),
    "selection": (lambda count: take(shuffled(columns(count + 1), seed=4), slice(1, None)), {}),
    "joined": (lambda count: concat(columns(count), columns(3)), {}),
    "windows": (lambda count: windows(columns(count + 2), 3), {}),
    "list": (samples, {}),
    "dataset": (Rolls, {}),
    "view of a list": (lambda count: mapped(take(samples(count), range(count)[::-1]), noisy), {}),
    "transformed columns": (columns, {"transform": noisy}),
    "batcher": (columns, {"transform": noisy, "batcher": as_batch}),
    "stream": (Stream, {}),
    "transformed stream": (Stream, {"transform": noisy, "batcher": as_batch}),
}
IN_MEMORY = list(KINDS)[:5]


def make(kind, count, **options):
    """A loader of this kind; a stream keeps its own order."""
    source, functions = KINDS[kind]
    if "stream" in kind:
        options.pop("shuffle", None)
    return Loader(source(count), **options, **functions)


def join(parts):
    """Concatenates batches of the same structure."""
    return map_leaves(lambda *tensors: torch.cat(tensors), *parts)


def first_of(batch):
    """The batch of the first sample alone."""
    return map_leaves(lambda tensor: tensor[:1], batch)


def bits(batch):
    """A batch, or a list of them, as values that are equal only if every bit is."""
    return [(path, t.dtype, t.shape, t.contiguous().view(torch.uint8).tolist()) for path, t in named_leaves(batch)]


def count_of(batch):
    """Samples in a batch."""
    return len(first_tensor(batch))


def check_shares(whole, ranks):
    """The shares of all ranks are the whole batches; padding stands only where a share is empty."""
    whole, ranks, size = list(whole), [list(batches) for batches in ranks], len(ranks)
    assert {len(batches) for batches in ranks} == {len(whole)}
    for batch, shares in zip(whole, zip(*ranks, strict=True), strict=True):
        count = count_of(batch)
        counts = [0 if isinstance(share, PaddingBatch) else count_of(share) for share in shares]
        assert counts == [count * (rank + 1) // size - count * rank // size for rank in range(size)]
        assert bits(join([share for share in shares if not isinstance(share, PaddingBatch)])) == bits(batch)
        assert all(bits(share.batch) == bits(first_of(batch)) for share in shares if isinstance(share, PaddingBatch))


def check_all_shares(kind, count, batch_size, size, shuffle, drop_last, epoch, batch):
    batch_size = min(batch_size, count) if drop_last else batch_size
    loader = make(kind, count, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    batches = len(list(loader.at(epoch=epoch)))
    batch = min(batch, batches)
    ranks = [loader.shared(rank, size) for rank in range(size)]
    check_shares(loader.at(epoch=epoch, batch=batch), [rank.at(epoch=epoch, batch=batch) for rank in ranks])
    if "stream" not in kind:
        assert {len(rank) for rank in ranks} == {batches}
        assert {rank.samples for rank in ranks} == {loader.samples}
        assert {len(rank.at(epoch=epoch, batch=batch)) for rank in ranks} == {batches - batch}


SETTINGS = st.tuples(
    st.sampled_from(list(KINDS)),
    st.integers(1, 23),  # samples
    st.integers(1, 25),  # batch size
    st.integers(1, 7),  # ranks
    st.none() | st.integers(0, 5),  # shuffle
    st.booleans(),  # drop_last
    st.integers(0, 3),  # epoch
    st.integers(0, 4),  # batch
)


@settings(max_examples=60)
@given(SETTINGS)
def test_the_shares_of_all_ranks_are_the_batches_of_one_process(setting):
    check_all_shares(*setting)


@settings(max_examples=40)
@given(
    st.sampled_from(IN_MEMORY),
    st.integers(1, 23),
    st.integers(1, 9),
    st.integers(1, 5),
    st.none() | st.integers(0, 5),
    st.booleans(),
    st.integers(0, 2),
)
def test_row_selections_and_resident_columns_give_the_same_shares(
    kind, count, batch_size, size, shuffle, resident_first, batch
):
    loader = make(kind, count, batch_size=batch_size, shuffle=shuffle)
    batch = min(batch, len(loader))
    for rank in range(size):
        share = loader.shared(rank, size)
        expected = list(share.at(epoch=1, batch=batch))
        resident = loader.resident("cpu").shared(rank, size) if resident_first else share.resident("cpu")
        assert bits(list(resident.at(epoch=1, batch=batch))) == bits(expected)
        assert share.nbytes == loader.nbytes
        assert share.has_row_selections == resident.has_row_selections == loader.has_row_selections
        for each in (share, resident) if loader.has_row_selections else ():
            selections = list(each.at(epoch=1, batch=batch).row_selections())
            batches = [PaddingBatch(s.gather()) if s.is_padding else s.gather() for s in selections]
            assert bits(batches) == bits(expected)
            assert [isinstance(b, PaddingBatch) for b in expected] == [s.is_padding for s in selections]
            assert all(s.with_rows(s.rows).is_padding == s.is_padding for s in selections)


@pytest.mark.parametrize("kind", ["transformed columns", "transformed stream"])
def test_workers_change_no_share(kind):
    here, size = make(kind, 11, batch_size=5, shuffle=3), 2
    ranks = [make(kind, 11, batch_size=5, shuffle=3, workers=1).shared(rank, size) for rank in range(size)]
    for epoch, batch in ((0, 0), (1, 0), (1, 2)):
        shares = [list(rank.at(epoch=epoch, batch=batch)) for rank in ranks]
        check_shares(here.at(epoch=epoch, batch=batch), shares)
    assert [isinstance(batches[-1], PaddingBatch) for batches in shares] == [True, False]  # 11 = 5 + 5 + 1
    for rank in ranks:
        rank.close()


def test_batches_prepared_for_the_whole_are_not_used_for_a_share():
    loader = Loader(list(range(8)), batch_size=4, transform=float, workers=1)
    share = loader.shared(1, 2)
    loader.prepare(epoch=0)
    assert plain(list(share.at(epoch=0))) == [[2, 3], [6, 7]]
    share.prepare(epoch=1)
    assert plain(list(share.at(epoch=1))) == [[2, 3], [6, 7]]
    assert plain(list(loader.at(epoch=0))) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader.close()
    share.close()


def test_only_the_samples_of_the_share_are_read_and_transformed():
    read = []

    class Watched(Rolls):
        def __getitem__(self, number):
            read.append(number)
            return number

    list(Loader(Watched(10), batch_size=4).shared(1, 2))
    assert read == [2, 3, 6, 7, 9]
    transformed = []
    list(Loader(Stream(5), batch_size=4, transform=lambda x, n: transformed.append(n) or n).shared(0, 2))
    assert transformed == [0, 1, 4]  # the last one is padding


def test_a_batcher_draws_other_numbers_on_every_rank_and_on_rank_0_those_of_one_process():
    def draw(samples):
        return torch.rand(()).item()

    loader = Loader(list(range(12)), batch_size=4, batcher=draw)
    ranks = [list(loader.shared(rank, 3)) for rank in range(3)]
    assert ranks[0] == list(loader.at(epoch=0))
    assert len({number for rank in ranks for number in rank}) == 9
    assert ranks[2] == list(loader.shared(2, 3).at(epoch=0))


def test_one_process_uses_the_loader_itself():
    for kind in KINDS:
        loader = make(kind, 5, batch_size=2)
        assert loader.shared(0, 1) is loader
        assert loader.sharing_note is None
    loader = Loader(DataLoader([1, 2]))
    assert loader.shared(0, 1) is loader


def test_a_share_cannot_be_shared_again():
    share = Loader(columns(9), batch_size=4, shuffle=1).shared(1, 2)
    assert share.shared(1, 2) is share
    assert share.sharing_note is None
    with pytest.raises(InvalidArgument, match=r"rank 1 of 2\) is a share already; share the loader that it was made"):
        share.shared(0, 2)
    with pytest.raises(InvalidArgument, match="batch 4 does not exist: an epoch has 3 batches, counted from 0"):
        share.at(epoch=0, batch=4)


@pytest.mark.parametrize(
    ("rank", "size", "error", "text"),
    [
        (2, 2, InvalidArgument, "rank has to be less than size=2; ranks count from 0; got 2"),
        (0, 0, InvalidArgument, "size has to be at least 1; got 0"),
        (0.5, 2, WrongType, "rank has to be an integer; got 0.5"),
    ],
)
def test_a_wrong_rank_raises(rank, size, error, text):
    with pytest.raises(error, match=text):
        Loader(columns(4), batch_size=2).shared(rank, size)


# --- streams and DataLoaders


def test_every_rank_reads_a_stream_which_is_noted():
    assert Loader(Stream(7), batch_size=3).shared(0, 2).sharing_note == (
        "each of the 2 ranks reads the whole stream and takes its share of every batch, so the stream has to give the "
        "same samples on all ranks"
    )


def test_a_stream_that_is_split_already_is_not_split_again():
    stream = datasets.Dataset.from_dict({"n": list(range(8))}).to_iterable_dataset(num_shards=2)
    shares = [list(Loader(stream, batch_size=4).shared(rank, 2)) for rank in range(2)]
    assert [[batch["n"].tolist() for batch in share] for share in shares] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    own = [Loader(split_dataset_by_node(stream, rank=rank, world_size=2), batch_size=4) for rank in range(2)]
    found = [[batch["n"].tolist() for batch in loader.shared(rank, 2)] for rank, loader in enumerate(own)]
    assert found == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    with pytest.raises(InvalidArgument, match="the IterableDataset is for rank 0 of 2, but this is rank 1 of 2"):
        own[0].shared(1, 2)


OWN_BATCHES = "each of the {} ranks has its own DataLoader, with its own batches"


def with_sampler(count, rank, size, **options):
    data = TensorDataset(torch.arange(count))
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=True, **options)
    return Loader(DataLoader(data, batch_size=2, sampler=sampler))


def test_a_dataloader_with_a_sampler_for_this_rank_is_used_as_it_is():
    seen = []
    for rank in range(2):
        loader = with_sampler(8, rank, 2).shared(rank, 2)
        assert loader.sharing_note == OWN_BATCHES.format(2)
        assert len(loader) == 2
        seen += [number for batch in loader for number in batch[0].tolist()]
    assert sorted(seen) == list(range(8))


@pytest.mark.parametrize(("drop_last", "text"), [(False, "repeats 2 of 7"), (True, "leaves out 1 of 7")])
def test_a_sampler_that_repeats_or_leaves_out_samples_is_noted(drop_last, text):
    assert with_sampler(7, 1, 3, drop_last=drop_last).shared(1, 3).sharing_note == (
        f"{OWN_BATCHES.format(3)}; its DistributedSampler {text} samples in every epoch, so that all ranks have the "
        "same number (pass the dataset to use each sample once)"
    )


def test_a_users_sampler_that_knows_about_ranks_is_accepted():
    class RankSampler(BatchSampler):
        def __init__(self, rank, num_replicas):
            super().__init__(range(rank, 6, num_replicas), 2, drop_last=False)
            self.rank, self.num_replicas = rank, num_replicas

    loader = Loader(DataLoader(range(6), batch_sampler=RankSampler(1, 2))).shared(1, 2)
    assert plain(list(loader)) == [[1, 3], [5]]
    assert loader.sharing_note == OWN_BATCHES.format(2)


def test_any_other_dataloader_raises():
    text = (
        "a DataLoader can't be shared by 2 ranks: each of them would read all of it; pass its dataset, with the "
        "batch_size of all ranks together, or give the DataLoader a DistributedSampler"
    )
    with pytest.raises(InvalidArgument, match=text):
        Loader(DataLoader([1, 2, 3])).shared(0, 2)


def test_a_sampler_for_another_rank_raises():
    text = (
        "the DataLoader is for rank 0 of 3, but this is rank 1 of 2; create it for rank 1 of 2, or pass the whole "
        "dataset, with the batch_size of all ranks together"
    )
    with pytest.raises(InvalidArgument, match=text):
        with_sampler(8, 0, 3).shared(1, 2)
