"""The arguments of a loader: names of the ecosystem, defaults, and errors."""

import copy
import pickle

import pytest
import torch
from torch.utils.data import DataLoader

from stoker.data import Loader
from stoker.errors import InvalidArgument, WrongType
from tests.data.batches import plain

X, Y = torch.arange(40.0).view(20, 2), torch.arange(20)


def total(samples):
    return sum(int(y) for _, y in samples)


def negate(x, y):
    return -x, y


def test_shuffle_true_is_the_seed_0_in_every_run_and_on_every_rank():
    expected = plain(list(Loader((X, Y), batch_size=6, shuffle=0)))
    for seed in (1, 2):
        torch.manual_seed(seed)
        loader = Loader((X, Y), batch_size=6, shuffle=True)
        assert loader.shuffle == 0
        assert plain(list(loader)) == expected
    assert plain(list(Loader((X, Y), batch_size=6, shuffle=1))) != expected  # 1 is a seed, and not True
    assert plain(list(Loader((X, Y), batch_size=6, shuffle=False))) == plain(list(Loader((X, Y), batch_size=6)))


def test_the_names_of_the_dataloader_are_accepted():
    ours = Loader((X, Y), batch_size=6, shuffle=0, workers=1, batcher=total)
    theirs = Loader((X, Y), batch_size=6, shuffle=0, num_workers=1, collate_fn=total)
    assert (theirs.workers, theirs.batcher) == (1, total)
    assert list(theirs) == list(ours) == list(Loader((X, Y), batch_size=6, shuffle=0, num_workers=0, batcher=total))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workers": 2, "num_workers": 4}, "workers=2 and num_workers=4 are both given, .* pass one of them"),
        ({"workers": 0, "num_workers": 0}, "workers=0 and num_workers=0 are both given"),
        ({"batcher": list, "collate_fn": tuple}, "batcher=<class 'list'> and collate_fn=<class 'tuple'> are both"),
    ],
)
def test_two_names_of_one_option_raise(options, text):
    with pytest.raises(InvalidArgument, match=text):
        Loader((X, Y), batch_size=6, **options)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, InvalidArgument, "batch_size is missing: pass the number of samples in a batch, as in batch_size=32"),
        ({"batch_size": 0}, InvalidArgument, "batch_size has to be at least 1; got 0"),
        ({"batch_size": 2.5}, WrongType, "batch_size has to be an integer; got 2.5"),
        ({"batch_size": 2, "shuffle": "yes"}, WrongType, "shuffle has to be an integer; got 'yes'"),
        ({"batch_size": 2, "workers": -1}, InvalidArgument, "workers has to be at least 0; got -1"),
        ({"batch_size": 2, "batcher": 3}, WrongType, "batcher has to be a function; got int"),
        ({"batch_size": 2, "transform": "flip"}, WrongType, "transform has to be a function; got str"),
        ({"batch_size": 2, "drop_last": "no"}, WrongType, "drop_last is True or False; got 'no'"),
        ({"batch_size": 2, "device": "gpu"}, InvalidArgument, "device='gpu' is not a device that torch knows"),
        ({"batch_size": 21, "drop_last": True}, InvalidArgument, "leaves no batch: 20 samples are less than batch_si"),
    ],
)
def test_wrong_options_raise(options, error, text):
    with pytest.raises(error, match=text):
        Loader((X, Y), **options)


def test_a_loader_is_not_a_source():
    with pytest.raises(WrongType, match="this source is a Loader already; iterate over it, or pass its source"):
        Loader(Loader(X, batch_size=4), batch_size=2)


def test_workers_cannot_use_another_device():
    elsewhere = X.to("meta")
    with pytest.raises(InvalidArgument, match="the source is on meta, which worker processes can't use; keep it on"):
        Loader(elsewhere, batch_size=2, transform=abs, workers=1)
    Loader(elsewhere, batch_size=2, workers=1)  # the workers have nothing to do


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 3}, {"shuffle": 0}, {"workers": 1}, {"batcher": list}, {"transform": int}, {"drop_last": True}],
)
def test_a_dataloader_takes_no_other_options(options):
    with pytest.raises(InvalidArgument, match=f"a DataLoader is used as it is, so {next(iter(options))} can't be comb"):
        Loader(DataLoader([1, 2]), **options)


def test_repr_shows_the_options():
    loader = Loader((X, Y), batch_size=6, shuffle=3, transform=negate, workers=2)
    assert repr(loader) == "Loader(tuple, batch_size=6, shuffle=3, workers=2)"
    assert repr(Loader([1], batch_size=1)) == "Loader(list, batch_size=1)"
    assert repr(loader.shared(1, 2)) == "Loader(tuple, batch_size=6, shuffle=3, workers=2, rank 1 of 2)"
    assert (loader.samples, len(loader), loader.batch_size, loader.shuffle) == (20, 4, 6, 3)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_has_worker_processes_of_its_own(copied):
    loader = Loader((X, Y), batch_size=6, shuffle=0, transform=negate, workers=1)
    expected = plain(list(loader))
    twin = copied(loader)
    assert plain(list(twin)) == plain(list(loader.at(epoch=1))) != expected
