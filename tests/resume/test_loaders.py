"""Every kind of data resumes exactly: in memory, sample by sample, streamed, and through a torch DataLoader."""

import random
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler

from stoker import Checkpoint
from tests.resume.parts import Stop, assert_same, start, stopped
from tests.resume.scenes import COUNT, SHAKY, SIZE, Scene, columns, fit_settings, learner, shaken, training_data

X, Y = columns()


class Rows(Dataset):
    """Samples with noise of the global generators, and of one of its own; the flag makes one of them fail."""

    def __init__(self, flag, *, own=False):
        self.flag, self.rng = flag, numpy.random.default_rng(8) if own else None

    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        x, y = shaken(X[number], Y[number], flag=self.flag, nan=False)
        return x + (0 if self.rng is None else self.rng.normal()), y


class Stream(IterableDataset):
    """Samples one after the other, in an order of the epoch's, without a length."""

    def __init__(self, flag):
        self.flag, self.epoch = flag, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epoch)).tolist():
            yield shaken(X[number], Y[number], flag=self.flag, nan=False)


def generator():
    return torch.Generator().manual_seed(4)


KINDS = {
    "columns": lambda flag: (X, Y),
    "arrays": lambda flag: (X.numpy(), Y.numpy()),
    "samples": lambda flag: training_data(Scene(samples=True), flag),
    "samples, 2 workers": lambda flag: training_data(Scene(samples=True, workers=2), flag),
    "a dataset": lambda flag: Rows(flag),
    "a stream": lambda flag: Stream(flag),
    "DataLoader": lambda flag: DataLoader(Rows(flag), SIZE, shuffle=True),
    "DataLoader, in order": lambda flag: DataLoader(Rows(flag), SIZE, drop_last=True),
    "DataLoader, generator": lambda flag: DataLoader(Rows(flag), SIZE, shuffle=True, generator=generator()),
    "DataLoader, sampler": lambda flag: DataLoader(Rows(flag), SIZE, sampler=RandomSampler(Y, generator=generator())),
    "DataLoader, weights": lambda flag: DataLoader(Rows(flag), SIZE, sampler=WeightedRandomSampler(X[:, 0], 50)),
    "DataLoader, own rng": lambda flag: DataLoader(Rows(flag, own=True), SIZE, shuffle=True),
    "DataLoader, stream": lambda flag: DataLoader(Stream(flag), SIZE),
    "DataLoader, 2 workers": lambda flag: DataLoader(Rows(flag), SIZE, shuffle=True, num_workers=2),
    "DataLoader, 2 workers, generator": lambda flag: DataLoader(
        Rows(flag), SIZE, shuffle=True, num_workers=2, generator=generator()
    ),
}
STOPS = {
    "first batch": [Stop("raise", "on_train_batch_begin", 1, 1)],
    "mid-epoch, signal": [Stop("int", "on_train_batch_end", 2, 3)],
    "mid-epoch, exception": [Stop("raise", "on_train_batch_after_loss", 2, 4)],
    "mid-epoch, kill": [Stop("kill", "on_train_batch_end", 2, 5)],
    "last batch": [Stop("term", "on_train_batch_begin", 2, 6)],
    "epoch end": [Stop("raise", "on_epoch_begin", 2)],
    "epoch end, kill": [Stop("kill", "on_epoch_begin", 3)],
    "before the first batch": [Stop("int", "on_train_begin", 2)],
    "validation": [Stop("int", "on_valid_batch_end", 1, 1)],
    "several": [
        Stop("int", "on_train_batch_end", 1, 2),
        Stop("raise", "on_fit_begin"),
        Stop("raise", "on_train_batch_begin", 1, 5),
        Stop("kill", "on_train_batch_begin", 2, 2),
        Stop("term", "on_train_batch_end", 2, 3),
    ],
}
BROKEN = {kind: KINDS[kind] for kind in KINDS if kind not in ("columns", "arrays")}


def script_of(kind, *, accumulate=1, valid=None):
    scene = Scene(accumulate=accumulate)

    def script(run, trouble, watching):
        train = KINDS[kind](trouble.flag)
        return learner(scene, trouble.loss).fit(
            train,
            **fit_settings(scene)
            | {"checkpoint": Checkpoint(every=2, background=False)}
            | ({} if isinstance(train, DataLoader) or hasattr(train, "batch_size") else {"batch_size": SIZE})
            | ({} if valid is None else {"valid": valid()}),
            callbacks=[*watching, trouble],
            run=run,
            resume=True,
            show=False,
        )

    return script


@pytest.fixture(scope="module")
def truths(tmp_path_factory):
    known = {}

    def truth(name, script):
        if name not in known:
            seeded()
            known[name] = start(script, tmp_path_factory.mktemp("truth") / "run")
            assert known[name].error is None
        return known[name]

    return truth


def seeded():
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


FEW = ("first batch", "mid-epoch, signal", "epoch end", "several")  # where any batch can be had at once, or is dear
ALL = [kind for kind in KINDS if ("DataLoader" in kind or "stream" in kind) and "workers" not in kind]
EACH = [(kind, stops) for kind in KINDS for stops in (STOPS if kind in ALL else FEW)]


@pytest.mark.parametrize(("kind", "stops"), EACH)
def test_every_kind_of_data_resumes_exactly(kind, stops, tmp_path, truths, fast):
    script = script_of(kind)
    parts = stopped(script, tmp_path / "run", STOPS[stops])
    assert all(part.struck for part in parts[:-1])
    assert_same(parts, truths(kind, script))


@pytest.mark.parametrize("epoch", [1, 2])
@pytest.mark.parametrize("kind", BROKEN)
def test_data_that_fails_once_is_read_again(kind, epoch, tmp_path, truths, fast):
    script = script_of(kind)
    parts = stopped(script, tmp_path / "run", [Stop("data", "on_train_begin", epoch)])
    assert str(SHAKY) in str(parts[0].error) or "can't be read" in str(parts[0].error)
    assert_same(parts, truths(kind, script))


@pytest.mark.parametrize("stops", ["mid-epoch, signal", "mid-epoch, exception", "epoch end", "several"])
@pytest.mark.parametrize("kind", ["a stream", "DataLoader", "DataLoader, stream"])
def test_a_window_of_batches_goes_on_where_it_was(kind, stops, tmp_path, truths, fast):
    script = script_of(kind, accumulate=3)
    parts = stopped(script, tmp_path / "run", STOPS[stops])
    assert_same(parts, truths(f"{kind}, windows", script))


VALID = {
    "a DataLoader": lambda: DataLoader(list(zip(X[:17], Y[:17], strict=True)), SIZE, shuffle=True),
    "a DataLoader with a generator": lambda: DataLoader(
        list(zip(X[:17], Y[:17], strict=True)), 5, shuffle=True, generator=generator()
    ),
    "one that draws": lambda: DataLoader(Rows(Path("/there is none"), own=True), SIZE, shuffle=True),
    "a stream": lambda: Stream(Path("/there is none")),
}


@pytest.mark.parametrize("stops", ["mid-epoch, signal", "epoch end", "validation", "several"])
@pytest.mark.parametrize("kind", VALID)
def test_what_is_validated_on_resumes_exactly_too(kind, stops, tmp_path, truths, fast):
    script = script_of("columns", valid=VALID[kind])
    parts = stopped(script, tmp_path / "run", STOPS[stops])
    assert_same(parts, truths(f"valid on {kind}", script))
