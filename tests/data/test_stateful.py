"""Sources that save their own position, and sources that are divided among ranks already."""

import datasets
import numpy as np
import pytest
import torch
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stoker.data import Loader, PaddingBatch
from stoker.errors import InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


class Counted(Dataset):
    """Numbers, with a count of how many were read."""

    reads = 0

    def __len__(self):
        return 20

    def __getitem__(self, number):
        self.reads += 1
        return number


class Counter(IterableDataset):
    """Numbers from its position on; the state is that position, in some value."""

    def __init__(self, as_state=int):
        self.position, self.reads, self.as_state = 0, 0, as_state

    def __iter__(self):
        while self.position < 20:
            self.position += 1
            self.reads += 1
            yield self.position - 1
        self.position = 0

    def state_dict(self):
        return {"position": self.as_state(self.position)}

    def load_state_dict(self, state):
        self.position = int(state["position"])


def stream(**options):
    return datasets.Dataset.from_dict({"n": list(range(20))}).to_iterable_dataset(num_shards=4, **options)


def read_until(loader, batch):
    """Reads some batches of epoch 1; returns them, the state there, and the rest."""
    batches = iter(loader.at(epoch=1))
    first = [next(batches) for _ in range(batch)]
    return first, loader.source_state(epoch=1, batch=batch), list(batches)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_stateful_data_loader_continues_without_reading_what_came_before(workers):
    dataset = Counted()
    loader = Loader(StatefulDataLoader(dataset, 4, shuffle=True, num_workers=workers))
    _, state, rest = read_until(loader, 3)
    dataset.reads = 0
    again = list(loader.at(epoch=1, batch=3, state=state))
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in rest]
    assert len(again) == 2
    if not workers:
        assert dataset.reads == 8


@pytest.mark.parametrize(("as_state", "workers"), [(int, 0), (torch.tensor, 0), (np.int64, 0), (np.array, 0), (int, 2)])
def test_a_stream_with_a_state_continues_in_it_also_if_workers_read_ahead(as_state, workers):
    source = Counter(as_state)
    loader = Loader(source, batch_size=3, workers=workers)
    _, state, rest = read_until(loader, 4)
    source.reads = 0
    again = list(loader.at(epoch=1, batch=4, state=state))
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in rest]
    assert source.reads == 8


def test_no_more_states_are_kept_than_may_be_asked_for():
    loader = Loader(Counter(), batch_size=1, workers=1)
    for _ in range(3):
        assert len(list(loader)) == 20
    kept = [loader.source_state(epoch=epoch, batch=n) is not None for epoch in range(3) for n in range(1, 21)]
    assert kept[-10:] == [True] * 10
    assert sum(kept) == 10


def test_a_hugging_face_stream_continues_from_its_state():
    loader = Loader(stream(), batch_size=3)
    _, state, rest = read_until(loader, 2)
    assert state["epoch"] == 1
    again = list(Loader(stream(), batch_size=3).at(epoch=1, batch=2, state=state))
    assert [batch["n"].tolist() for batch in again] == [batch["n"].tolist() for batch in rest]


@pytest.mark.parametrize(
    "loader",
    [
        lambda: Loader(stream().shuffle(seed=0, buffer_size=8), batch_size=3),
        lambda: Loader(stream().shuffle(seed=0, buffer_size=8).map(lambda row: row), batch_size=3),
        lambda: Loader(StatefulDataLoader(stream().shuffle(seed=0, buffer_size=8), 3)),
        lambda: Loader(StatefulDataLoader(Counted(), 3, sampler=RandomSampler(Counted()))),
        lambda: Loader(Counter(lambda position: {position}), batch_size=3),
        lambda: Loader(Counter(lambda position: {position} if position < 7 else position), batch_size=3, workers=1),
        lambda: Loader(DataLoader(Counted(), 3)),
        lambda: Loader(torch.arange(20), batch_size=3),
    ],
)
def test_a_state_that_is_incomplete_or_cannot_be_saved_is_not_used(loader):
    assert read_until(loader(), 2)[1] is None


def test_a_state_is_only_known_where_the_source_is():
    loader = Loader(Counter(), batch_size=3)
    batches = iter(loader.at(epoch=1))
    next(batches)
    assert loader.source_state(epoch=1, batch=1) == {"position": 3}
    assert loader.source_state(epoch=1, batch=2) is None
    assert loader.source_state(epoch=0, batch=1) is None


def test_workers_that_draw_random_numbers_are_warned_about():
    assert Loader(StatefulDataLoader(Counted(), 4)).resume_warning is None
    warning = Loader(StatefulDataLoader(Counted(), 4, num_workers=2)).resume_warning
    assert "lacks the random state of its 2 workers" in warning


# --- sharded sources


def test_a_sharded_source_is_read_whole_in_shares_of_the_batch_size():
    parts = [torch.arange(7), torch.arange(100, 107)]
    loaders = [Loader(part, batch_size=4, sharded=True).shared(rank, 2) for rank, part in enumerate(parts)]
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [
        [[0, 1], [2, 3], [4, 5], [6]],
        [[100, 101], [102, 103], [104, 105], [106]],
    ]
    assert loaders[0].sharing_note == "each of the 2 ranks has its own samples"
    shuffled = [Loader(torch.arange(40), batch_size=4, shuffle=0, sharded=True).shared(rank, 2) for rank in range(2)]
    orders = [torch.cat(list(loader)).tolist() for loader in shuffled]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(40))


def test_a_short_part_is_padded():
    loader = Loader(torch.arange(3), batch_size=2, sharded=True).padded(4)
    assert len(loader) == 4
    for batch in range(5):
        found = list(loader.at(epoch=0, batch=batch))
        assert len(found) == 4 - batch
        assert all(isinstance(each, PaddingBatch) == (place >= 2) for place, each in enumerate(found, start=batch))


def test_streams_that_are_divided_already_are_recognised():
    divided = split_dataset_by_node(stream(), rank=1, world_size=2)
    for loader in (Loader(divided, batch_size=4), Loader(DataLoader(divided, 2))):
        assert loader.sharded
        found = [batch["n"].tolist() for batch in loader.shared(1, 2)]
        assert [len(batch) for batch in found] == [2] * 5
        assert [number for batch in found for number in batch] == [row["n"] for row in divided]
        with pytest.raises(InvalidArgument, match="is for rank 1 of 2, but this is rank 0 of 2"):
            loader.shared(0, 2)
    assert not Loader(stream(), batch_size=4).sharded


def test_a_data_loader_with_its_own_part_is_accepted_if_its_user_says_so():
    loader = DataLoader(list(range(6)), 2)
    with pytest.raises(InvalidArgument, match=r"accepted with Loader\(\.\.\., sharded=True\)"):
        Loader(loader).shared(0, 2)
    assert [batch.tolist() for batch in Loader(loader, sharded=True).shared(0, 2)] == [[0, 1], [2, 3], [4, 5]]


class CountsItsEpochs(DataLoader):
    """As litdata's loader: it counts epochs itself, and begins the next one after a state at the end of an epoch."""

    __module__ = "litdata.streaming.dataloader"

    def __init__(self):
        super().__init__(list(range(8)), 2)
        self.current_epoch, self.done, self.restore = 0, 0, False

    def __iter__(self):
        if not self.restore:
            self.current_epoch, self.done = self.current_epoch + 1, 0
        self.restore = False
        for number in range(self.done, 4):
            self.done = number + 1
            yield torch.tensor([100 * self.current_epoch + number])

    def state_dict(self):
        return {"current_epoch": self.current_epoch, "done": self.done}

    def load_state_dict(self, state):
        self.current_epoch, self.done = state["current_epoch"], state["done"]
        self.restore = self.done < 4


def test_a_loader_that_counts_its_epochs_starts_in_any_epoch_and_after_its_last_batch():
    loader = Loader(CountsItsEpochs())
    assert loader.sharded
    for epoch in (0, 1, 5):
        assert [int(batch) for batch in loader.at(epoch=epoch)] == [100 * (epoch + 1) + number for number in range(4)]
    batches = iter(loader.at(epoch=5))
    for batch in range(1, 5):
        next(batches)
        state = loader.source_state(epoch=5, batch=batch)
        again = Loader(CountsItsEpochs()).at(epoch=5, batch=batch, state=state)
        assert [int(each) for each in again] == [600 + number for number in range(batch, 4)]
