"""A torch DataLoader goes on inside an epoch with the batches that it would have given."""

import random

import numpy as np
import pytest
import torch
from stoker.data._generators import generators_of, set_states, states_of
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, WeightedRandomSampler

from stoker import StateMismatch
from stoker.checkpoint import random_state, set_random_state
from stoker.data import Loader
from stoker.loop import put_back
from tests.checkpoint.trees import through

SIZE, BATCHES = 20, 5


class Noisy(Dataset):
    """Samples that are a number, and something drawn: in the worker, or in this process where there is none."""

    def __len__(self):
        return SIZE

    def __getitem__(self, number):
        return number, torch.rand(()).item(), random.random(), np.random.rand()


class Own(Noisy):
    def __init__(self):
        self.rng, self.draw = np.random.default_rng(0), random.Random(0)

    def __getitem__(self, number):
        return number, self.rng.random(), self.draw.random()


class Shuffled(Sampler):
    """A sampler of a user's own, with a generator that goes on from epoch to epoch."""

    def __init__(self):
        self.numbers = np.random.RandomState(3)

    def __iter__(self):
        return iter(self.numbers.permutation(SIZE).tolist())

    def __len__(self):
        return SIZE


def seeded():
    return torch.Generator().manual_seed(5)


def quietly(worker):
    torch.set_num_threads(1)


KINDS = {
    "global": lambda **given: DataLoader(Noisy(), batch_size=4, shuffle=True, **given),
    "generator": lambda **given: DataLoader(Noisy(), batch_size=4, shuffle=True, generator=seeded(), **given),
    "sampler": lambda **given: DataLoader(
        Noisy(), batch_size=4, sampler=RandomSampler(range(SIZE), replacement=True, generator=seeded()), **given
    ),
    "weighted": lambda **given: DataLoader(
        Noisy(), batch_size=4, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE, generator=seeded()), **given
    ),
    "batches": lambda **given: DataLoader(Noisy(), batch_sampler=BatchSampler(Shuffled(), 4, False), **given),
    "plain": lambda **given: DataLoader(Noisy(), batch_size=4, **given),
    "dataset": lambda **given: DataLoader(Own(), batch_size=4, shuffle=True, **given),
}


def listed(batch):
    return [column.tolist() for column in batch]


def epochs(loader, count, seen, *, stop=None, resume=None):
    """Epochs as a fit walks them, drawing random numbers of its own; it may stop, and go on from where it stopped."""
    opened = None
    for epoch in range(resume["epoch"] if resume else 0, count):
        done = 0
        if resume is not None and resume["batch"]:
            loader.load_generator_states(resume["opened"]["generators"])
            set_random_state(resume["opened"]["random"])
            done, opened = resume["batch"], resume["opened"]
            walk = iter(loader.at(epoch=epoch, batch=done))
            set_random_state(resume["random"])
        else:
            if resume is not None:
                loader.load_generator_states(resume["generators"])
                set_random_state(resume["random"])
            opened = {"generators": loader.generator_states(), "random": random_state()}
            walk = iter(loader.at(epoch=epoch))
        resume = None
        for number, batch in enumerate(walk, start=done + 1):
            seen.append((epoch, number, listed(batch), torch.rand(()).item(), random.random()))  # dropout, say
            if stop == (epoch, number):
                last = number == BATCHES
                place = {"epoch": epoch + last, "batch": 0 if last else number, "opened": opened}
                if last:
                    assert next(walk, None) is None
                return through(place | {"random": random_state(), "generators": loader.generator_states()})
    return None


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_on_exactly_wherever_it_was_stopped(kind, workers):
    given = {"num_workers": workers, "worker_init_fn": quietly} if workers else {}
    stops = [(1, 3)] if workers else [(0, 1), (0, 5), (1, 3), (1, 4)]
    with put_back():
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        start, whole = random_state(), []
        epochs(Loader(KINDS[kind](**given)), 3, whole)
        for stop in stops:
            set_random_state(start)
            seen = []
            place = epochs(Loader(KINDS[kind](**given)), 3, seen, stop=stop)
            assert seen == whole[: len(seen)]
            torch.manual_seed(99), random.seed(99), np.random.seed(99)  # another process
            epochs(Loader(KINDS[kind](**given)), 3, seen, resume=place)
            assert seen == whole, stop


def test_workers_that_live_on_keep_the_order_and_say_what_they_can_not_keep():
    def made():
        return Loader(KINDS["global"](num_workers=1, persistent_workers=True, worker_init_fn=quietly))

    def numbers(seen):
        return [(epoch, number, batch[0], *rest) for epoch, number, batch, *rest in seen]

    with put_back():
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        start, whole, seen = random_state(), [], []
        epochs(made(), 3, whole)
        set_random_state(start)
        place = epochs(made(), 3, seen, stop=(1, 3))
        torch.manual_seed(99)
        loader = made()
        epochs(loader, 3, seen, resume=place)
    assert numbers(seen) == numbers(whole)
    text = (
        "the workers of this DataLoader live on from epoch to epoch (persistent_workers=True), and where their random"
    )
    assert loader.resume_warning.startswith(text)


def test_what_is_no_dataloader_needs_no_generators():
    loader = Loader(torch.arange(6), batch_size=2, shuffle=0)
    assert (loader.needs_rng_state, loader.resume_warning, loader.generator_states()) == (False, None, {})
    loader.load_generator_states({})
    assert Loader(KINDS["plain"]()).needs_rng_state and Loader(KINDS["plain"]()).resume_warning is None


def test_every_generator_is_found_once_by_where_it_is():
    found = {kind: list(generators_of(make())) for kind, make in KINDS.items()}
    assert found == {
        "global": [],
        "generator": ["generator"],  # its sampler has the same
        "sampler": ["sampler.generator"],
        "weighted": ["sampler.generator"],
        "batches": ["batch_sampler.sampler.numbers"],
        "plain": [],
        "dataset": ["dataset.rng", "dataset.draw"],
    }


@pytest.mark.parametrize(
    "make",
    [seeded, lambda: np.random.default_rng(1), lambda: np.random.RandomState(1), lambda: random.Random(1),
     lambda: np.random.Generator(np.random.Philox(1)), lambda: np.random.Generator(np.random.MT19937(1))],
    ids=["torch", "numpy", "legacy", "python", "philox", "twister"],
)  # fmt: skip
def test_each_kind_of_generator_goes_on_to_the_same_numbers(make):
    def drawn(generator):
        if isinstance(generator, torch.Generator):
            return torch.randn(3, generator=generator).tolist()
        return [getattr(generator, "normal", random.Random(0).gauss)(0, 1), generator.random()]

    generator, other = make(), make()
    for _ in range(3):
        state = through(states_of({"it": generator}))
        expected = drawn(generator)
        set_states({"it": other}, state)
        assert drawn(other) == expected


def test_other_generators_are_refused_and_nothing_is_changed():
    loader = Loader(KINDS["generator"]())
    with pytest.raises(StateMismatch, match="other generators: sampler.generator in the state, generator here"):
        loader.load_generator_states(Loader(KINDS["sampler"]()).generator_states())
    with pytest.raises(StateMismatch, match="other generators: none in the state, generator here"):
        loader.load_generator_states({})
    pair = {"a": random.Random(1), "b": np.random.default_rng(1)}
    before = pair["a"].getstate()
    with pytest.raises(StateMismatch, match="the DataLoader's generator 'b' can't be set to its state"):
        set_states(pair, {**states_of({"a": random.Random(2)}), "b": {"bit_generator": "SFC64"}})
    assert pair["a"].getstate() == before
