import random
from dataclasses import dataclass, fields

import datasets
import numpy as np
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from hypothesis import given, settings
from hypothesis import strategies as st
from stoker.data._batches import Task
from stoker.data._order import BATCH, key, own_random_numbers, seed_everything
from stoker.data._share import Share
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from stoker.data import Loader, PaddingBatch, concat, mapped, shuffled, split, take, windows
from stoker.errors import InvalidArgument, WrongType


class Rolls(Dataset):
    """Samples that draw when they are fetched, from all three generators."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return torch.rand(2), number, np.random.rand(), random.random()


class Stream(IterableDataset):
    """A stream that draws as it is read."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for number in range(self.count):
            yield torch.rand(2), number


@dataclass
class Batch:
    images: torch.Tensor
    targets: torch.Tensor


def as_batch(samples):
    return Batch(torch.stack([x for x, *_ in samples]), torch.tensor([int(y) for _, y, *_ in samples]))


def noisy(x, y, *rest):
    return x + torch.randn(2), y, np.random.rand(), random.random()


def columns(count):
    return torch.arange(2.0 * count).view(count, 2), torch.arange(count)


def samples(count):
    return list(zip(*columns(count), strict=True))


# name: (a source of so many samples, settings of the loader)
KINDS = {
    "columns": (columns, {}),
    "a mapping": (lambda count: dict(zip("xy", columns(count), strict=True)), {}),
    "a selection": (lambda count: shuffled(columns(count), seed=4), {}),
    "joined": (lambda count: concat(columns(count), columns(3)), {}),
    "windows": (lambda count: windows(columns(count + 2), 3), {}),
    "a list": (samples, {}),
    "a dataset": (Rolls, {}),
    "a view of a list": (lambda count: mapped(take(samples(count), range(count)[::-1]), noisy), {}),
    "columns, transformed": (columns, {"transform": noisy}),
    "a batcher": (columns, {"transform": noisy, "batcher": as_batch}),
    "a list in batches": (samples, {"batcher": list}),
    "a stream": (Stream, {}),
    "a stream, transformed": (Stream, {"transform": noisy, "batcher": as_batch}),
}
VECTORISED = list(KINDS)[:5]


def made(kind, count, **options):
    """A loader of this kind; a stream keeps its own order."""
    source, functions = KINDS[kind]
    if "stream" in kind:
        options.pop("shuffle", None)
    return Loader(source(count), **options, **functions)


def joined(parts):
    """Batches of the same structure, one after another."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, Batch):
        return Batch(*(joined([getattr(part, field.name) for part in parts]) for field in fields(Batch)))
    if isinstance(first, dict):
        return {name: joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list):
        return [sample for part in parts for sample in part]
    return tuple(joined(list(each)) for each in zip(*parts, strict=True))


def first_of(batch):
    """The batch of its first sample alone."""
    if isinstance(batch, (torch.Tensor, list)):
        return batch[:1]
    if isinstance(batch, Batch):
        return Batch(batch.images[:1], batch.targets[:1])
    return {name: part[:1] for name, part in batch.items()} if isinstance(batch, dict) else tuple(map(first_of, batch))


def bits(value):
    """Anything as what compares equal only where every bit is equal."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.contiguous().view(torch.uint8).tolist() if value.dim() else value.item()
    if isinstance(value, Batch):
        return [bits(value.images), bits(value.targets)]
    if isinstance(value, dict):
        return {name: bits(part) for name, part in value.items()}
    return [type(value), *map(bits, value)] if isinstance(value, (tuple, list)) else value


def count_of(batch):
    """Samples in a batch."""
    while not isinstance(batch, (torch.Tensor, list)):
        batch = (
            batch.images
            if isinstance(batch, Batch)
            else next(iter(batch.values() if isinstance(batch, dict) else batch))
        )
    return len(batch)


def check_shares(whole, walks):
    """The walks of all ranks are those of the whole, ghosts aside, which are where nothing else is."""
    whole, walks, size = list(whole), [list(walk) for walk in walks], len(walks)
    assert {len(walk) for walk in walks} == {len(whole)}
    for batch, shares in zip(whole, zip(*walks, strict=True), strict=True):
        count = count_of(batch)
        counts = [0 if isinstance(share, PaddingBatch) else count_of(share) for share in shares]
        assert counts == [count * (rank + 1) // size - count * rank // size for rank in range(size)]
        assert bits(joined([share for share in shares if not isinstance(share, PaddingBatch)])) == bits(batch)
        assert all(bits(share.batch) == bits(first_of(batch)) for share in shares if isinstance(share, PaddingBatch))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(KINDS)),
    st.integers(1, 23),
    st.integers(1, 25),
    st.integers(1, 7),
    st.none() | st.integers(0, 5),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 4),
)
def test_the_shares_of_all_ranks_are_the_batches_of_one_process(
    kind, count, batch_size, size, shuffle, drop_last, epoch, batch
):
    batch_size = min(batch_size, count) if drop_last else batch_size
    loader = made(kind, count, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
    batches = len(list(loader.at(epoch=epoch)))
    batch = min(batch, batches)
    ranks = [loader.shared(rank, size) for rank in range(size)]
    check_shares(loader.at(epoch=epoch, batch=batch), [rank.at(epoch=epoch, batch=batch) for rank in ranks])
    if "stream" not in kind:
        assert {len(rank) for rank in ranks} == {batches}
        assert {rank.samples for rank in ranks} == {loader.samples}
        assert {len(rank.at(epoch=epoch, batch=batch)) for rank in ranks} == {batches - batch}


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(VECTORISED),
    st.integers(1, 23),
    st.integers(1, 9),
    st.integers(1, 5),
    st.none() | st.integers(0, 5),
    st.booleans(),
    st.integers(0, 2),
)
def test_picks_and_resident_columns_give_the_same_shares(kind, count, batch_size, size, shuffle, there_first, batch):
    loader = made(kind, count, batch_size=batch_size, shuffle=shuffle)
    batch = min(batch, len(loader))
    for rank in range(size):
        share = loader.shared(rank, size)
        expected = list(share.at(epoch=1, batch=batch))
        there = loader.resident("cpu").shared(rank, size) if there_first else share.resident("cpu")
        assert bits(list(there.at(epoch=1, batch=batch))) == bits(expected)
        assert (share.picks, there.picks, share.nbytes) == (loader.picks, loader.picks, loader.nbytes)
        for walked in (share, there) if loader.picks else ():
            picks = list(walked.at(epoch=1, batch=batch).picks())
            assert [pick.ghost for pick in picks] == [isinstance(each, PaddingBatch) for each in expected]
            assert [len(pick) for pick in picks] == [1 if pick.ghost else count_of(pick.batch()) for pick in picks]
            batches = [PaddingBatch(pick.batch()) if pick.ghost else pick.batch() for pick in picks]
            assert bits(batches) == bits(expected)


def test_a_copied_share_is_a_share():
    whole = Loader(columns(5), batch_size=2, shuffle=0)
    there = whole.shared(0, 3).resident("meta")  # where nothing stays as it is
    assert [isinstance(batch, PaddingBatch) for batch in there] == [True, True, True]
    assert all(pick.ghost and pick.of(pick.numbers).ghost for pick in there.at(epoch=0).picks())


@pytest.fixture(scope="module")
def worked():
    """Loaders with workers, and all their shares, so that the processes are started once."""
    made_once = {}
    for kind in ("columns, transformed", "a stream, transformed"):
        loader = made(kind, 11, batch_size=5, shuffle=3, workers=2)
        for size in (2, 3):
            made_once[kind, size] = [loader.shared(rank, size) for rank in range(size)]
    yield made_once
    for ranks in made_once.values():
        for rank in ranks:
            rank.close()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["columns, transformed", "a stream, transformed"])
def test_workers_change_no_share(worked, kind, size):
    here = made(kind, 11, batch_size=5, shuffle=3)
    for epoch, batch in ((0, 0), (1, 0), (1, 2)):
        walks = [list(rank.at(epoch=epoch, batch=batch)) for rank in worked[kind, size]]
        check_shares(here.at(epoch=epoch, batch=batch), walks)
    assert [isinstance(walk[-1], PaddingBatch) for walk in walks] == [True] * (size - 1) + [False]  # 11 = 5 + 5 + 1


def test_what_is_prepared_for_the_whole_is_not_taken_for_a_share():
    loader = Loader(list(range(8)), batch_size=4, transform=float, workers=1)
    share = loader.shared(1, 2)
    loader.prepare(epoch=0)
    assert [batch.tolist() for batch in share.at(epoch=0)] == [[2, 3], [6, 7]]
    share.prepare(epoch=1)
    assert [batch.tolist() for batch in share.at(epoch=1)] == [[2, 3], [6, 7]]
    assert [batch.tolist() for batch in loader.at(epoch=0)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader.close()
    share.close()


def test_only_the_samples_of_a_share_are_fetched_and_transformed():
    fetched = []

    class Watched(Rolls):
        def __getitem__(self, number):
            fetched.append(number)
            return number

    list(Loader(Watched(10), batch_size=4).shared(1, 2))
    assert fetched == [2, 3, 6, 7, 9]
    transformed = []
    list(Loader(Stream(5), batch_size=4, transform=lambda x, n: transformed.append(n) or n).shared(0, 2))
    assert transformed == [0, 1, 4]  # and the last is a ghost


def test_a_drawing_batcher_draws_something_else_on_every_rank_and_on_the_first_what_one_process_draws():
    def drawing(samples):
        return torch.rand(()).item()

    loader = Loader(list(range(12)), batch_size=4, batcher=drawing)
    ranks = [list(loader.shared(rank, 3)) for rank in range(3)]
    with own_random_numbers():
        for batch, drawn in enumerate(ranks[0]):
            seed_everything(key(BATCH, 0, 0, batch))
            assert drawn == torch.rand(()).item()
    assert ranks[0] == list(loader.at(epoch=0))
    assert len({number for rank in ranks for number in rank}) == 9
    assert ranks[2] == list(loader.shared(2, 3).at(epoch=0))


def test_a_ghost_is_the_first_sample_of_its_batch():
    for kind in ("columns", "a list"):
        ghosts = list(made(kind, 5, batch_size=3).shared(0, 4))
        assert [type(each) for each in ghosts] == [PaddingBatch, PaddingBatch]
        assert [each.batch[1].tolist() for each in ghosts] == [[0], [3]]
    assert [batch.tolist() for batch in Loader(Stream(5), batch_size=3, transform=lambda x, n: n).shared(3, 4)] == [
        [2],
        [4],
    ]


def test_one_process_walks_the_loader_itself():
    for kind in KINDS:
        loader = made(kind, 5, batch_size=2)
        assert loader.shared(0, 1) is loader
        assert loader.sharing_note is None
    foreign = Loader(DataLoader([1, 2]))
    assert foreign.shared(0, 1) is foreign


def test_a_share_walks_the_next_epoch_with_each_for_and_leaves_the_whole_alone():
    loader = Loader(columns(9), batch_size=4, shuffle=1)
    share = loader.shared(1, 2)
    for epoch in range(2):
        assert bits(list(share)) == bits(list(share.at(epoch=epoch)))
    assert bits(list(loader)) == bits(list(loader.at(epoch=0)))


def test_what_a_share_says_of_itself():
    share = Loader(columns(9), batch_size=4, shuffle=1).shared(1, 2)
    assert repr(share) == "Loader(tuple, batch_size=4, shuffle=1, rank 1 of 2)"
    assert share.shared(1, 2) is share
    with pytest.raises(InvalidArgument, match=r"rank 1 of 2\) is a share already; share the loader that it came from"):
        share.shared(0, 2)
    assert share.sharing_note is None
    with pytest.raises(InvalidArgument, match="there is no batch 4: an epoch has 3, counted from 0"):
        share.at(epoch=0, batch=4)


@pytest.mark.parametrize(
    ("rank", "size", "error", "text"),
    [
        (2, 2, InvalidArgument, "rank has to be less than size=2, counted from 0; got 2"),
        (-1, 2, InvalidArgument, "rank has to be at least 0; got -1"),
        (0, 0, InvalidArgument, "size has to be at least 1; got 0"),
        (0.5, 2, WrongType, "rank has to be a whole number; got 0.5"),
        (0, True, WrongType, "size has to be a whole number; got True"),
    ],
)
def test_wrong_ranks_are_explained(rank, size, error, text):
    with pytest.raises(error, match=text):
        Loader(columns(4), batch_size=2).shared(rank, size)


def test_a_task_is_cut_with_its_samples():
    task = Task(3, 1, [4, 5, 6], ["a", "b", "c"])
    assert [Share(rank, 2).task(task) for rank in range(2)] == [
        Task(3, 1, [4], ["a"], 0, False),
        Task(3, 1, [5, 6], ["b", "c"], 1, False),
    ]
    assert Share(0, 4).task(task) == Task(3, 1, [4], ["a"], 0, True)


def test_a_stream_is_read_by_every_rank_which_is_noted():
    note = Loader(Stream(7), batch_size=3).shared(0, 2).sharing_note
    assert note == (
        "each of the 2 ranks reads the whole stream and takes its share of every batch, so the stream has to give the "
        "same samples on all of them"
    )


def test_a_stream_that_is_split_already_is_refused():
    stream = datasets.Dataset.from_dict({"n": list(range(8))}).to_iterable_dataset(num_shards=2)
    shares = [list(Loader(stream, batch_size=4).shared(rank, 2)) for rank in range(2)]
    assert [[batch["n"].tolist() for batch in share] for share in shares] == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    split_already = Loader(split_dataset_by_node(stream, rank=0, world_size=2), batch_size=4)
    with pytest.raises(
        InvalidArgument, match=r"this stream is split by rank already .* would be split once more; give"
    ):
        split_already.shared(0, 2)


def foreign(count, rank, size, **options):
    data = TensorDataset(torch.arange(count))
    sampler = DistributedSampler(data, num_replicas=size, rank=rank, shuffle=True, **options)
    return Loader(DataLoader(data, batch_size=2, sampler=sampler))


def test_a_dataloader_with_a_sampler_for_this_world_is_taken_as_it_is():
    seen = []
    for rank in range(2):
        loader = foreign(8, rank, 2).shared(rank, 2)
        assert loader.sharing_note == "each of the 2 ranks has a DataLoader of its own, with batches of its own"
        assert len(loader) == 2
        seen += [number for batch in loader for number in batch[0].tolist()]
    assert sorted(seen) == list(range(8))


@pytest.mark.parametrize(("drop_last", "done"), [(False, "repeats 2 of 7"), (True, "leaves out 1 of 7")])
def test_a_sampler_that_repeats_or_leaves_out_samples_is_noted(drop_last, done):
    assert foreign(7, 1, 3, drop_last=drop_last).shared(1, 3).sharing_note == (
        "each of the 3 ranks has a DataLoader of its own, with batches of its own; its DistributedSampler "
        f"{done} samples in every epoch, so that all ranks have as many (of a dataset given by itself, each is seen "
        "once)"
    )


def test_a_sampler_inside_a_batch_sampler_is_found_and_told_the_epoch():
    data = TensorDataset(torch.arange(50))
    sampler = DistributedSampler(data, num_replicas=2, rank=1)
    loader = Loader(DataLoader(data, batch_sampler=BatchSampler(sampler, 25, drop_last=False))).shared(1, 2)
    first, second = ([batch[0].tolist() for batch in loader.at(epoch=epoch)] for epoch in (0, 1))
    assert first != second


class Own(BatchSampler):
    """A batch sampler of a user's own, which knows of ranks."""

    def __init__(self, rank, num_replicas):
        super().__init__(range(rank, 6, num_replicas), 2, drop_last=False)
        self.rank, self.num_replicas = rank, num_replicas


def test_a_sampler_of_the_users_own_that_knows_of_ranks_is_taken():
    loader = Loader(DataLoader(range(6), batch_sampler=Own(1, 2))).shared(1, 2)
    assert [batch.tolist() for batch in loader] == [[1, 3], [5]]
    assert loader.sharing_note == "each of the 2 ranks has a DataLoader of its own, with batches of its own"


@pytest.mark.parametrize("dataset", [[1, 2, 3], Stream(4)], ids=["by number", "a stream"])
def test_any_other_dataloader_is_refused(dataset):
    with pytest.raises(
        InvalidArgument,
        match="a DataLoader can't be shared by 2 ranks: each of them would walk all of it; give its dataset itself, "
        "with the batch_size of all ranks together, or give the DataLoader a DistributedSampler",
    ):
        Loader(DataLoader(dataset)).shared(0, 2)


def test_a_sampler_for_another_world_is_refused():
    with pytest.raises(
        InvalidArgument,
        match="the DataLoader's DistributedSampler is for rank 0 of 3, and this is rank 1 of 2; give it "
        "num_replicas=2 and rank=1, or give the dataset itself, with the batch_size of all ranks together",
    ):
        foreign(8, 0, 3).shared(1, 2)


def test_views_of_views_are_shared_like_the_rest():
    train, _ = split(columns(17), [0.7, 0.3], seed=1)
    loader = Loader(take(train, slice(1, 10)), batch_size=4, shuffle=2)
    check_shares(loader.at(epoch=0), [loader.shared(rank, 3).at(epoch=0) for rank in range(3)])
