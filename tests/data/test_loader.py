import copy
import pickle
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from stoker.data import Loader, concat, mapped, split, take, windows
from stoker.errors import InvalidArgument, WrongType

X, Y = torch.arange(40.0).view(20, 2), torch.arange(20)


def noisy(x, y):
    return x + torch.randn(2), y, np.random.rand(), random.random()


def halved(samples):
    keep = torch.rand(len(samples)) < 0.5
    return [float(x.sum()) for (x, *_), kept in zip(samples, keep, strict=True) if kept]


class Rolls(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, number):
        return X[number], number, torch.rand(2), random.random()


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(20):
            yield torch.rand(2), number


@dataclass
class Batch:
    images: torch.Tensor
    targets: torch.Tensor


def as_batch(items):
    return Batch(torch.stack([x for x, *_ in items]), torch.tensor([int(item[1]) for item in items]))


def plain(value):
    """Anything as lists and numbers, which compare exactly."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Batch):
        return [plain(value.images), plain(value.targets)]
    return [plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def drawn(batches):
    """Every number with a fraction, which none of the sources has."""
    rest, found = [plain(list(batches))], set()
    while rest:
        value = rest.pop()
        rest.extend(value if isinstance(value, list) else [])
        found |= {value} if isinstance(value, float) and value % 1 else set()
    assert found
    return found


def states():
    kind, words, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), (kind, words.tolist(), rest), random.getstate()


SETTINGS = {
    "transform": ((X, Y), {"transform": noisy}),
    "list": (list(zip(X, Y, strict=True)), {"transform": noisy}),
    "dataset": (Rolls(), {}),
    "batcher": (TensorDataset(X, Y), {"batcher": as_batch}),
    "drawing batcher": ((X, Y), {"transform": noisy, "batcher": halved}),
    "view": (split((X, Y), [0.75, 0.25])[0], {"transform": noisy}),
    "stream": (Stream(), {"transform": noisy}),
}


@pytest.fixture(scope="module")
def loaders():
    """One loader for each setting and number of workers, so that the processes are started once."""
    made = {}
    for name, (source, functions) in SETTINGS.items():
        shuffle = None if name == "stream" else 3
        for workers in (0, 1, 2):
            made[name, workers] = Loader(source, batch_size=6, shuffle=shuffle, workers=workers, **functions)
    return made


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(list(SETTINGS)), st.integers(0, 5), st.integers(0, 2))
def test_workers_change_nothing(loaders, name, epoch, batch):
    here, one, two = (plain(list(loaders[name, workers].at(epoch=epoch, batch=batch))) for workers in (0, 1, 2))
    assert here == one == two
    assert here == plain(list(loaders[name, 0].at(epoch=epoch)))[batch:]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", SETTINGS)
def test_augmentation_changes_with_the_epoch(loaders, name, workers):
    if name != "batcher":  # the one setting that draws nothing
        first, second = (drawn(loaders[name, workers].at(epoch=epoch)) for epoch in (0, 1))
        assert first.isdisjoint(second)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_walk_never_touches_the_random_numbers_of_training(loaders, name, workers):
    before = states()
    for _ in loaders[name, workers].at(epoch=0):
        assert states() == before  # also between two batches, where the user's model draws
    for _ in loaders[name, workers].at(epoch=1, batch=1):
        break
    assert states() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_does_not_touch_them_either(workers):
    before = states()
    with pytest.raises(ZeroDivisionError):
        list(Loader([1, 0], batch_size=2, transform=lambda number: torch.rand(()) and 1 / number, workers=workers))
    assert states() == before


def test_training_may_draw_while_it_walks(loaders):
    expected = plain(list(loaders["stream", 0].at(epoch=2)))
    found = []
    for batch in loaders["stream", 0].at(epoch=2):
        torch.rand(3), np.random.rand(3), random.random()
        found.append(plain(batch))
    assert found == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["transform", "stream"])
def test_walks_side_by_side_and_walks_left_early(loaders, name, workers):
    loader = loaders[name, workers]
    one, two = plain(list(loader.at(epoch=0))), plain(list(loader.at(epoch=1)))
    assert [plain(pair) for pair in zip(loader.at(epoch=0), loader.at(epoch=1), strict=True)] == [
        [a, b] for a, b in zip(one, two, strict=True)
    ]
    for place, outer in enumerate(loader.at(epoch=0)):
        assert plain(outer) == one[place]
        for inner in loader.at(epoch=1):
            assert plain(inner) == two[0]
            break
    assert plain(list(loader.at(epoch=1))) == two


@pytest.mark.parametrize("source", [(X, Y), Rolls()])
def test_each_for_walks_the_next_epoch(source):
    loader = Loader(source, batch_size=8, shuffle=1)
    list(loader.at(epoch=7))
    for epoch in range(3):
        assert plain(list(loader)) == plain(list(loader.at(epoch=epoch)))
    for _ in loader:
        break  # left early, and still an epoch
    assert plain(list(loader)) == plain(list(loader.at(epoch=4)))


def test_a_batch_has_the_structure_of_the_source():
    batch = next(iter(Loader({"x": X, "more": (Y, Y)}, batch_size=3, shuffle=0)))
    assert batch["x"].shape == (3, 2)
    assert torch.equal(*batch["more"])
    assert isinstance(next(iter(Loader(X, batch_size=3))), torch.Tensor)
    assert isinstance(next(iter(Loader(TensorDataset(X), batch_size=3))), tuple)
    assert isinstance(next(iter(Loader((X, Y), batch_size=3, batcher=as_batch))), Batch)


def test_columns_need_no_per_sample_python(monkeypatch):
    from stoker.data._columns import Columns

    def sample(self, number):
        raise AssertionError("a sample was fetched by itself")

    monkeypatch.setattr(Columns, "sample", sample)
    for shuffle in (None, 0):
        assert len(list(Loader((X, Y), batch_size=6, shuffle=shuffle, workers=2))) == 4


def test_the_default_device_is_not_where_data_is():
    expected = plain(list(Loader((X, Y), batch_size=6, shuffle=0)))
    with torch.device("meta"):
        assert plain(list(Loader((X, Y), batch_size=6, shuffle=0))) == expected
        assert plain(list(Loader([(1.5, 2)] * 4, batch_size=4))) == [[[1.5] * 4, [2] * 4]]
        _, valid = split((X, Y), [0.5, 0.5], stratify=Y % 2)
        assert plain(next(iter(Loader(valid, batch_size=2)))[0]) == plain(torch.stack([valid[0][0], valid[1][0]]))


@pytest.mark.parametrize("source", [(X, Y), list(zip(X, Y, strict=True)), DataLoader(TensorDataset(X, Y))])
def test_batches_go_to_the_device(source):
    size = {} if isinstance(source, DataLoader) else {"batch_size": 6}
    for x, y in Loader(source, **size, device="meta"):
        assert x.device.type == y.device.type == "meta"
    assert next(iter(Loader(source, **size, device=torch.device("cpu"))))[0].device.type == "cpu"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_has_processes_of_its_own(copied):
    loader = Loader((X, Y), batch_size=6, shuffle=0, transform=noisy, workers=1)
    expected = plain(list(loader))
    twin = copied(loader)
    assert plain(list(twin)) == plain(list(loader.at(epoch=1))) != expected


def test_what_a_loader_says_of_itself():
    loader = Loader((X, Y), batch_size=6, shuffle=3, transform=noisy, workers=2)
    assert repr(loader) == "Loader(tuple, batch_size=6, shuffle=3, workers=2)"
    assert repr(Loader([1], batch_size=1)) == "Loader(list, batch_size=1)"
    assert (loader.samples, len(loader), loader.batch_size, loader.shuffle) == (20, 4, 6, 3)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({}, InvalidArgument, "batch_size is missing: say how many samples a batch has, as in batch_size=32"),
        ({"batch_size": 0}, InvalidArgument, "batch_size has to be at least 1; got 0"),
        ({"batch_size": -3}, InvalidArgument, "batch_size has to be at least 1; got -3"),
        ({"batch_size": 2.5}, WrongType, "batch_size has to be a whole number; got 2.5"),
        ({"batch_size": True}, WrongType, "batch_size has to be a whole number; got True"),
        ({"batch_size": 2, "shuffle": True}, WrongType, "shuffle takes a seed, .* as in shuffle=0; got True"),
        ({"batch_size": 2, "shuffle": False}, WrongType, "shuffle takes a seed.*; got False"),
        ({"batch_size": 2, "workers": -1}, InvalidArgument, "workers has to be at least 0; got -1"),
        ({"batch_size": 2, "batcher": 3}, WrongType, "batcher has to be a function; got int"),
        ({"batch_size": 2, "transform": "flip"}, WrongType, "transform has to be a function; got str"),
        ({"batch_size": 2, "device": "gpu"}, InvalidArgument, "device='gpu' is no device that torch knows"),
        (
            {"batch_size": 21, "drop_last": True},
            InvalidArgument,
            "leaves no batch: 20 samples are less than batch_size=21",
        ),
    ],
)
def test_wrong_settings_are_explained(given, error, text):
    with pytest.raises(error, match=text):
        Loader((X, Y), **given)


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ({"epoch": -1}, InvalidArgument, "epoch has to be at least 0; got -1"),
        ({"epoch": 1.0}, WrongType, "epoch has to be a whole number; got 1.0"),
        ({"epoch": 0, "batch": -1}, InvalidArgument, "batch has to be at least 0; got -1"),
    ],
)
def test_wrong_places_are_explained(where, error, text):
    with pytest.raises(error, match=text):
        Loader(X, batch_size=4).at(**where)


def test_a_loader_is_not_a_source():
    with pytest.raises(WrongType, match="this source is a Loader already; walk it as it is"):
        Loader(Loader(X, batch_size=4), batch_size=2)


def test_workers_cannot_use_another_device():
    there = X.to("meta")
    with pytest.raises(
        InvalidArgument, match="the source is on meta, which worker processes can't use; keep it on the CPU"
    ):
        Loader(there, batch_size=2, transform=abs, workers=1)
    Loader(there, batch_size=2, workers=1)  # nothing to do for a worker


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: take(x, [3, 1, 2]),
        lambda x: windows(x, 2),
        lambda x: concat(x, x),
        lambda x: mapped(x, lambda *parts: parts),
    ],
)
@pytest.mark.parametrize("how", ["transform", "batcher"])
def test_a_transform_or_batcher_that_writes_in_place_does_not_change_the_source(view, how):
    x, y = torch.ones(4, 2), torch.arange(4)

    def double(x, y):
        return x.mul_(2), y

    def joined(samples):
        return torch.stack([double(*sample)[0] for sample in samples])

    options = {"transform": double} if how == "transform" else {"batcher": joined}
    epochs = []
    for workers in (0, 2):
        loader = Loader(view((x, y)), batch_size=2, shuffle=0, workers=workers, **options)
        batches = [batch for _ in range(2) for batch in loader]
        epochs.append([(batch[0] if how == "transform" else batch).flatten().tolist() for batch in batches])
    assert epochs[0] == epochs[1]
    assert {number for batch in epochs[0] for number in batch} == {2.0}
    assert (x == 1).all()


def test_a_stream_with_a_random_transform_uses_the_seed_0():
    def drawn(loader):
        return torch.cat([batch[1] for batch in loader.at(epoch=2)]).tolist()

    def noisy(x, number):
        return x, torch.rand(())

    stream = Loader(Stream(), batch_size=4, transform=noisy)
    assert drawn(stream) == drawn(Loader(list(Stream()), batch_size=4, transform=noisy))


def test_one_batch_of_a_loader_uses_up_an_epoch():
    loader = Loader(X, batch_size=4, shuffle=0)
    next(iter(loader))
    assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in loader.at(epoch=1)]
