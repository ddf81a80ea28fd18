"""What is drawn while loading is a function of (seed, epoch, sample); the random state of training never changes."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stoker.data import Loader, split, take
from tests.data.batches import as_batch, plain, random_state

X, Y = torch.arange(40.0).view(20, 2), torch.arange(20)


def noisy(x, y):
    return x + torch.randn(2), y, np.random.rand(), random.random()


def drop_half(samples):
    keep = torch.rand(len(samples)) < 0.5
    return [float(x.sum()) for (x, *_), kept in zip(samples, keep, strict=True) if kept]


class Rolls(Dataset):
    """A dataset that draws in `__getitem__`."""

    def __len__(self):
        return 20

    def __getitem__(self, number):
        return X[number], number, torch.rand(2), np.random.rand(), random.random()


class Stream(IterableDataset):
    """A stream that draws before and while it is read."""

    def __iter__(self):
        start = random.random()
        for number in range(20):
            yield torch.rand(2) + start + np.random.rand(), number


SETTINGS = {
    "transform": ((X, Y), {"transform": noisy}),
    "list": (list(zip(X, Y, strict=True)), {"transform": noisy}),
    "dataset": (Rolls(), {}),
    "batcher": (TensorDataset(X, Y), {"transform": noisy, "batcher": as_batch}),
    "drawing batcher": ((X, Y), {"transform": noisy, "batcher": drop_half}),
    "view": (split((X, Y), [0.75, 0.25])[0], {"transform": noisy}),
    "stream": (Stream(), {"transform": noisy}),
}


def loader_of(name, workers):
    source, functions = SETTINGS[name]
    return Loader(source, batch_size=6, shuffle=None if name == "stream" else 3, workers=workers, **functions)


@settings(max_examples=10)
@given(st.sampled_from(list(SETTINGS)), st.integers(0, 5), st.integers(0, 2))
def test_workers_change_nothing(name, epoch, batch):
    here, there = (plain(list(loader_of(name, workers).at(epoch=epoch, batch=batch))) for workers in (0, 2))
    assert here == there
    assert here == plain(list(loader_of(name, 0).at(epoch=epoch)))[batch:]


def drawn(batches):
    """Every number with a fraction; the sources have none."""
    rest, found = [plain(list(batches))], set()
    while rest:
        value = rest.pop()
        rest.extend(value if isinstance(value, list) else [])
        found |= {value} if isinstance(value, float) and value % 1 else set()
    assert found
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_draws_change_with_the_epoch(name):
    first, second = (drawn(loader_of(name, 0).at(epoch=epoch)) for epoch in (0, 1))
    assert first.isdisjoint(second)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", SETTINGS)
def test_iterating_never_touches_the_random_state_of_training(name, workers):
    before = random_state()
    for _ in loader_of(name, workers).at(epoch=0):
        assert random_state() == before  # also between two batches, where the user's model draws
    for _ in loader_of(name, workers).at(epoch=1, batch=1):
        break
    assert random_state() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_does_not_touch_it_either(workers):
    before = random_state()
    with pytest.raises(ZeroDivisionError):
        list(Loader([1, 0], batch_size=2, transform=lambda number: torch.rand(()) and 1 / number, workers=workers))
    assert random_state() == before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["transform", "stream"])
def test_simultaneous_and_abandoned_iterations_do_not_disturb_each_other(name, workers):
    loader = loader_of(name, workers)
    one, two = plain(list(loader.at(epoch=0))), plain(list(loader.at(epoch=1)))
    pairs = [plain(pair) for pair in zip(loader.at(epoch=0), loader.at(epoch=1), strict=True)]
    assert pairs == [[a, b] for a, b in zip(one, two, strict=True)]
    for place, outer in enumerate(loader.at(epoch=0)):
        assert plain(outer) == one[place]
        for inner in loader.at(epoch=1):
            assert plain(inner) == two[0]
            break
    assert plain(list(loader.at(epoch=1))) == two


def draws(*numbers, seed=0, epoch=0, **options):
    """The samples with these numbers of a source that draws, in one batch."""
    loader = Loader(Rolls(), batch_size=20, shuffle=seed, batcher=list, **options)
    samples = {sample[1]: plain(sample[2:]) for batch in loader.at(epoch=epoch) for sample in batch}
    return [samples[number] for number in numbers]


def test_a_sample_draws_the_same_wherever_it_is_in_the_epoch():
    expected = draws(3, 5)
    by_position = Loader(Rolls(), batch_size=3, shuffle=0, batcher=list, workers=1)
    found = {sample[1]: plain(sample[2:]) for batch in by_position.at(epoch=0) for sample in batch}
    assert [found[3], found[5]] == expected
    assert draws(3, 5, epoch=1) != expected
    assert draws(3, 5, seed=1) != expected
    for kind in range(3):  # torch, numpy, random
        assert len({repr(sample[kind]) for sample in draws(*range(20))}) == 20


class Sometimes(Dataset):
    """Draws for some samples only, from generators that differ between them; counts how often a sample is read."""

    def __init__(self, rule):
        self.rule, self.reads = rule, []

    def __len__(self):
        return 60

    def __getitem__(self, number):
        self.reads.append(number)
        return number, *draw_from(self.rule(number))


def draw_from(kinds):
    values = {"torch": lambda: torch.randn(3).sum().item(), "numpy": np.random.randn, "python": random.random}
    values |= {"gauss": lambda: random.gauss(0.0, 1.0), "uniform": np.random.rand}
    return [values[kind]() for kind in kinds]


RULES = {
    "never": lambda number: [],
    "always": lambda number: ["torch", "numpy", "python", "gauss"],
    "late": lambda number: ["torch"] * (number >= 30) + ["numpy"] * (number >= 40) + ["gauss"] * (number >= 50),
    "once": lambda number: ["numpy"] * (number == 37),
    "twice": lambda number: ["gauss", "uniform"] * (number in (41, 42)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rule", RULES)
def test_what_a_sample_draws_does_not_depend_on_what_others_draw(rule, workers):
    np.random.randn()  # numpy and Python keep a second normal number, which must not be given to a sample
    random.gauss(0.0, 1.0)
    before = random_state()
    source = Sometimes(RULES[rule])
    found = [sample for batch in Loader(source, batch_size=4, batcher=list, workers=workers) for sample in batch]
    assert random_state() == before
    reads = list(source.reads)
    # The reference seeds everything for every sample: a batch of one sample is the first of its loader.
    alone = [
        next(iter(Loader(source, batch_size=1, batcher=list).at(epoch=0, batch=number)))[0] for number in range(60)
    ]
    assert found == alone
    if workers == 0 and rule in ("never", "always"):
        assert reads == list(range(60))


def test_a_failure_that_depends_on_a_draw_is_that_of_the_seeded_draw():
    def transform(number):
        if number == 6:
            raise ValueError(torch.rand(()).item())
        return number

    def message(batch):
        with pytest.raises(ValueError) as caught:
            list(Loader(list(range(8)), batch_size=2, transform=transform).at(epoch=0, batch=batch))
        return caught.value.args

    assert message(0) == message(2) == message(3)


def test_a_batcher_draws_by_the_batch_and_not_by_its_samples():
    def draw(samples):
        return torch.rand(()).item()

    whole = list(Loader([1, 2, 3, 4], batch_size=2, batcher=draw).at(epoch=0))
    assert whole == list(Loader(Rolls(), batch_size=2, batcher=draw).at(epoch=0))[:2]
    assert len({*whole, *Loader([1, 2, 3, 4], batch_size=2, batcher=draw).at(epoch=1)}) == 4


def test_a_stream_and_an_unshuffled_list_draw_with_seed_0():
    def draw(x, number):
        return torch.rand(())

    sources = [Stream(), list(Stream())]
    found = [plain(list(Loader(source, batch_size=4, transform=draw).at(epoch=2))) for source in sources]
    shuffled = Loader(take(sources[1], range(20)), batch_size=20, shuffle=0, transform=draw)
    assert found[0] == found[1]
    assert sorted(number for batch in found[0] for number in batch) == sorted(plain(list(shuffled.at(epoch=2)))[0])


def test_draws_never_change_from_release_to_release():
    def draw(number):
        return number, torch.rand(()).item(), np.random.rand(), random.random()

    # A resumed run draws again.
    [[sample]] = Loader([11], batch_size=1, shuffle=7, batcher=list, transform=draw).at(epoch=3)
    assert sample == (11, 0.22424101829528809, 0.5516571860214438, 0.26746912681787405)
