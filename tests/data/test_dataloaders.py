"""A torch DataLoader as a source: used as it is, and resumed inside an epoch with the batches it would have given."""

import io
import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    TensorDataset,
)

from stoker.data import Loader
from stoker.errors import InvalidArgument, StateMismatch, WrongType
from tests.data.batches import Letters, plain, random_state, set_random_state

SIZE, BATCHES = 20, 5


class Noisy(Dataset):
    """Samples of a number and three draws: in a worker, or in this process if there is none."""

    def __len__(self):
        return SIZE

    def __getitem__(self, number):
        return number, torch.rand(()).item(), random.random(), np.random.rand()


class WithGenerators(Noisy):
    def __init__(self):
        self.rng, self.draw = np.random.default_rng(0), random.Random(0)

    def __getitem__(self, number):
        return number, self.rng.random(), self.draw.random()


class Permuted(Sampler):
    """A user's sampler with a generator that lives across epochs."""

    def __init__(self):
        self.numbers = np.random.RandomState(3)

    def __iter__(self):
        return iter(self.numbers.permutation(SIZE).tolist())

    def __len__(self):
        return SIZE


def seeded():
    return torch.Generator().manual_seed(5)


def one_thread(worker):
    torch.set_num_threads(1)


KINDS = {
    "global": lambda **options: DataLoader(Noisy(), batch_size=4, shuffle=True, **options),
    "generator": lambda **options: DataLoader(Noisy(), batch_size=4, shuffle=True, generator=seeded(), **options),
    "sampler": lambda **options: DataLoader(
        Noisy(), batch_size=4, sampler=RandomSampler(range(SIZE), replacement=True, generator=seeded()), **options
    ),
    "batches": lambda **options: DataLoader(Noisy(), batch_sampler=BatchSampler(Permuted(), 4, False), **options),
    "plain": lambda **options: DataLoader(Noisy(), batch_size=4, **options),
    "dataset": lambda **options: DataLoader(WithGenerators(), batch_size=4, shuffle=True, **options),
}


@pytest.fixture(autouse=True)
def keep_random_state():
    before = random_state()
    yield
    set_random_state(before)


def reseed(seed):
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)


def test_it_is_used_as_it_is():
    ours, theirs = Loader(KINDS["generator"]()), KINDS["generator"]()
    for _ in range(2):
        reseed(1)
        expected = plain(list(theirs))
        reseed(1)
        assert plain(list(ours)) == expected
    assert len(ours) == BATCHES
    assert len(ours.at(epoch=0, batch=2)) == 3
    with pytest.raises(InvalidArgument, match="batch 6 does not exist: an epoch has 5 batches, counted from 0"):
        ours.at(epoch=0, batch=6)
    with pytest.raises(WrongType, match=r"a DataLoader does not tell its number of samples"):
        ours.samples


def test_one_without_a_length_is_read_to_its_end():
    loader = Loader(DataLoader(Letters(), batch_size=3))
    assert list(loader.at(epoch=0, batch=2)) == [["g"]] and list(loader.at(epoch=0, batch=3)) == []
    with pytest.raises(WrongType, match="this DataLoader has no length"):
        len(loader)
    with pytest.raises(InvalidArgument, match="batch 4 of epoch 1 does not exist: the DataLoader ended after 3"):
        iter(loader.at(epoch=1, batch=4))


def test_a_distributed_sampler_gets_the_epoch():
    data = TensorDataset(torch.arange(50))
    sampler = DistributedSampler(data, num_replicas=1, rank=0, seed=0)
    loader = Loader(DataLoader(data, batch_size=50, sampler=sampler))
    first, second = (plain(list(loader)) for _ in range(2))
    assert first != second
    assert plain(list(loader.at(epoch=0))) == first


# --- resuming


def saved(state):
    """The state after a round trip through a file that holds only tensors and plain values."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def train(loader, epochs, seen, *, stop=None, resume=None):
    """Iterates as a fit does, drawing random numbers of its own; may stop, and resume from where it stopped."""
    for epoch in range(resume["epoch"] if resume else 0, epochs):
        if resume is not None and resume["batch"]:
            done, started = resume["batch"], resume["started"]
            loader.load_generator_states(saved(started["generators"]))
            set_random_state(started["random"])
            batches = iter(loader.at(epoch=epoch, batch=done))
            set_random_state(resume["random"])
        else:
            if resume is not None:
                loader.load_generator_states(saved(resume["generators"]))
                set_random_state(resume["random"])
            done, started = 0, {"generators": loader.generator_states(), "random": random_state()}
            batches = iter(loader.at(epoch=epoch))
        resume = None
        for number, batch in enumerate(batches, start=done + 1):
            seen.append((epoch, number, plain(batch), torch.rand(()).item(), random.random()))  # as dropout draws
            if stop == (epoch, number):
                is_last = number == BATCHES
                if is_last:
                    assert next(batches, None) is None
                position = {"epoch": epoch + is_last, "batch": 0 if is_last else number, "started": started}
                return position | {"random": random_state(), "generators": loader.generator_states()}
    return None


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", KINDS)
def test_resuming_gives_the_batches_of_an_uninterrupted_run(kind, workers):
    options = {"num_workers": workers, "worker_init_fn": one_thread} if workers else {}
    stops = [(1, 3)] if workers else [(0, 1), (0, 5), (1, 3), (1, 4)]
    reseed(1)
    start, whole = random_state(), []
    train(Loader(KINDS[kind](**options)), 3, whole)
    for stop in stops:
        set_random_state(start)
        seen = []
        position = train(Loader(KINDS[kind](**options)), 3, seen, stop=stop)
        assert seen == whole[: len(seen)]
        reseed(99)  # as in another process
        train(Loader(KINDS[kind](**options)), 3, seen, resume=position)
        assert seen == whole, stop


def test_persistent_workers_keep_the_order_and_warn_about_their_draws():
    def make():
        return Loader(KINDS["global"](num_workers=1, persistent_workers=True, worker_init_fn=one_thread))

    def without_draws(seen):
        return [(epoch, number, batch[0], *rest) for epoch, number, batch, *rest in seen]

    reseed(1)
    start, whole, seen = random_state(), [], []
    train(make(), 3, whole)
    set_random_state(start)
    position = train(make(), 3, seen, stop=(1, 3))
    reseed(99)
    loader = make()
    train(loader, 3, seen, resume=position)
    assert without_draws(seen) == without_draws(whole)
    assert loader.resume_warning.startswith(
        "the workers of this DataLoader live across epochs (persistent_workers=True), and their random state can't be"
    )


def test_which_loaders_need_a_random_state_or_warn():
    loader = Loader(torch.arange(6), batch_size=2, shuffle=0)
    assert (loader.needs_rng_state, loader.resume_warning, loader.generator_states()) == (False, None, {})
    loader.load_generator_states({})
    for kind in ("plain", "dataset"):  # the states of its generators are saved
        assert Loader(KINDS[kind]()).needs_rng_state and Loader(KINDS[kind]()).resume_warning is None
    assert Loader(Noisy(), batch_size=2).resume_warning is None
    assert Loader(WithGenerators(), batch_size=2).resume_warning.startswith(
        "the WithGenerators draws from its own generator (rng, draw), whose state can't be restored; draw from torch's"
    )


def test_every_generator_is_found_once_by_its_path():
    assert {kind: list(Loader(make()).generator_states()) for kind, make in KINDS.items()} == {
        "global": [],
        "generator": ["generator"],  # its sampler has the same one
        "sampler": ["sampler.generator"],
        "batches": ["batch_sampler.sampler.numbers"],
        "plain": [],
        "dataset": ["dataset.rng", "dataset.draw"],
    }


class Drawing(Dataset):
    """A dataset with one generator of any kind."""

    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 3

    def __getitem__(self, number):
        if isinstance(self.generator, torch.Generator):
            return torch.randn(3, generator=self.generator)
        normal = getattr(self.generator, "normal", getattr(self.generator, "gauss", None))
        return torch.tensor([normal(0, 1), self.generator.random()], dtype=torch.float64)


@pytest.mark.parametrize(
    "make",
    [seeded, lambda: np.random.default_rng(1), lambda: np.random.RandomState(1), lambda: random.Random(1)],
    ids=["torch", "numpy", "legacy", "python"],
)
def test_each_kind_of_generator_continues_with_the_same_numbers(make):
    loader, other = (Loader(DataLoader(Drawing(make()))) for _ in range(2))
    for _ in range(3):
        states = saved(loader.generator_states())
        expected = plain(list(loader))
        other.load_generator_states(states)
        assert plain(list(other)) == expected


def test_states_that_fail_half_way_change_no_generator():
    loader = Loader(DataLoader(Drawing(seeded()), shuffle=True, generator=seeded()))
    before, states = saved(loader.generator_states()), loader.generator_states()
    list(loader)
    first, *_, last = states
    states[last] = "damaged"
    moved = saved(loader.generator_states())
    assert len(states) == 2 and not torch.equal(moved[first], before[first])
    with pytest.raises(StateMismatch, match="can't be loaded"):
        loader.load_generator_states(states)
    assert all(torch.equal(each, moved[name]) for name, each in loader.generator_states().items())


def test_states_that_do_not_fit_raise():
    loader = Loader(KINDS["generator"]())
    for states, text in (
        (Loader(KINDS["sampler"]()).generator_states(), "expected sampler.generator, found generator"),
        ({}, "expected none, found generator"),
    ):
        with pytest.raises(StateMismatch, match=f"other generators than the saved state: {text}"):
            loader.load_generator_states(states)
    loader = Loader(KINDS["dataset"]())
    states = loader.generator_states() | {"dataset.draw": {"version": 99}}
    with pytest.raises(StateMismatch, match="the saved state of the DataLoader's generator 'dataset.draw' can't be lo"):
        loader.load_generator_states(states)
