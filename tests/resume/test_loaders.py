"""Every kind of data resumes exactly: in memory, sample by sample, streamed, and with a torch DataLoader."""

import random
from pathlib import Path

import datasets
import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from stoker import Checkpoint, data
from stoker.data import Loader
from tests.resume.attempts import Stop, assert_same, run_with_stops, start
from tests.resume.scenarios import (
    COUNT,
    FAILING_SAMPLE,
    SIZE,
    Scenario,
    add_noise,
    columns,
    fit_arguments,
    learner,
    training_data,
)

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it

X, Y = columns()
NO_FLAG = Path("/a file that does not exist")


class Rows(Dataset):
    """Samples with noise of the global generators, and of its own generator if `own`."""

    def __init__(self, flag, *, own=False):
        self.flag, self.rng = flag, numpy.random.default_rng(8) if own else None

    def __len__(self):
        return COUNT

    def __getitem__(self, number):
        x, y = add_noise(X[number], Y[number], flag=self.flag, nan=False)
        return x + (0 if self.rng is None else self.rng.normal()), y


class Stream(IterableDataset):
    """Samples in an order that depends on the epoch, without a length."""

    def __init__(self, flag):
        self.flag, self.epoch = flag, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for number in torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epoch)).tolist():
            yield add_noise(X[number], Y[number], flag=self.flag, nan=False)


class StatefulStream(Stream):
    """The same stream, which saves its own position."""

    place, start = 0, 0

    def __iter__(self):
        numbers = torch.randperm(COUNT, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        first, self.start = self.start, 0
        for self.place in range(first, COUNT):
            x, y = add_noise(X[numbers[self.place]], Y[numbers[self.place]], flag=self.flag, nan=False)
            yield x, y

    def state_dict(self):
        return {"place": numpy.int64(self.place + 1)}

    def load_state_dict(self, state):
        self.start = int(state["place"])


PAIRS = list(zip(X, Y, strict=True))


def hugging_face_stream():
    rows = datasets.Dataset.from_dict({"x": X.tolist(), "y": Y.tolist()})
    return rows.to_iterable_dataset(num_shards=4)


def collate_rows(rows):
    return torch.tensor([row["x"] for row in rows]), torch.tensor([row["y"] for row in rows], dtype=Y.dtype)


def join_parts(batch):
    parts = list(batch.values())
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def generator():
    return torch.Generator().manual_seed(4)


KINDS = {
    "columns": lambda flag: (X, Y),
    "arrays": lambda flag: (X.numpy(), Y.numpy()),
    "samples": lambda flag: training_data(Scenario(samples=True), flag),
    "samples, 2 workers": lambda flag: training_data(Scenario(samples=True, workers=2), flag),
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
SOURCES = {  # that save their own position, or are made of others
    "stateful DataLoader": lambda flag: StatefulDataLoader(Rows(flag), SIZE, shuffle=True, generator=generator()),
    "stateful DataLoader, 2 workers": lambda flag: StatefulDataLoader(
        PAIRS, SIZE, shuffle=True, num_workers=2, generator=generator()
    ),
    "stateful DataLoader, stream": lambda flag: StatefulDataLoader(
        hugging_face_stream(), SIZE, collate_fn=collate_rows
    ),
    "Hugging Face": lambda flag: Loader(hugging_face_stream(), batch_size=SIZE, batcher=collate_rows),
    "Hugging Face, shuffled": lambda flag: Loader(
        hugging_face_stream().shuffle(seed=3, buffer_size=9), batch_size=SIZE, batcher=collate_rows
    ),
    "stateful stream, 2 workers": lambda flag: Loader(StatefulStream(flag), batch_size=SIZE, workers=2),
    "zip": lambda flag: Loader(
        data.zip(one=data.cycle((X[:20], Y[:20])), other=Loader(Rows(flag), batch_size=5, shuffle=1)),
        batch_size=3,
        shuffle=2,
        transform=data.batchable(join_parts),
    ),
    "zip, DataLoaders": lambda flag: Loader(
        data.zip(
            one=data.cycle(DataLoader(PAIRS[:15], 4, shuffle=True, generator=generator())),
            other=DataLoader(Rows(flag), SIZE, shuffle=True),
        ),
        transform=data.batchable(join_parts),
    ),
    "mix": lambda flag: Loader(
        data.mix(one=(X[:20], Y[:20]), other=Rows(flag), weights={"one": 0.5, "other": 0.5}, length=6),
        batch_size=SIZE,
        shuffle=2,
        transform=data.batchable(join_parts),
    ),
    "mix, samples": lambda flag: Loader(
        data.mix(
            one=list(zip(X[:20], Y[:20], strict=True)),
            other=Rows(flag),
            weights={"one": 1, "other": 2},
            length=60,
            by="sample",
        ),
        batch_size=SIZE,
        shuffle=2,
    ),
    "by epoch": lambda flag: Loader(
        data.by_epoch(lambda epoch: (X[: 40 + 8 * epoch], Y[: 40 + 8 * epoch])), batch_size=SIZE
    ),
    "sampling weights": lambda flag: Loader(
        Rows(flag), batch_size=SIZE, shuffle=1, sampling_weights=torch.arange(COUNT)
    ),
}
STOPS = {
    "first batch": [Stop("raise", "on_train_batch_begin", 1, 1)],
    "mid-epoch, signal": [Stop("int", "on_train_batch_end", 2, 3)],
    "mid-epoch, exception": [Stop("raise", "on_train_batch_after_loss", 2, 4)],
    "mid-epoch, kill": [Stop("kill", "on_train_batch_end", 2, 5)],
    "mid-epoch, SIGTERM": [Stop("term", "on_train_batch_begin", 2, 6)],
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
FAULTS = [(kind, epoch) for kind in KINDS if kind not in ("columns", "arrays") for epoch in (1, 2)]
FAST_FAULTS = [("samples", 2), ("a stream", 1), ("DataLoader", 2), ("DataLoader, stream", 1)]


def script_of(kind, *, accumulate=1, valid=None):
    scenario = Scenario(accumulate=accumulate)

    def script(run, stopper, watchers):
        train = (KINDS | SOURCES)[kind](stopper.flag)
        return learner(scenario, stopper.loss).fit(
            train,
            **fit_arguments(scenario)
            | {"checkpoint": Checkpoint(every=2, background=False)}
            | ({} if isinstance(train, DataLoader) or hasattr(train, "batch_size") else {"batch_size": SIZE})
            | ({} if valid is None else {"valid": valid()}),
            callbacks=[*watchers, stopper],
            run=run,
            resume=True,
            show=False,
        )

    return script


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    known = {}

    def reference(name, script):
        if name not in known:
            seed_everything()
            known[name] = start(script, tmp_path_factory.mktemp("reference") / "run")
            assert known[name].error is None
        return known[name]

    return reference


def seed_everything():
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


FEW = ("several", "first batch", "mid-epoch, signal", "epoch end")  # for data whose batches are read at any position
READ_AGAIN = [kind for kind in KINDS if ("DataLoader" in kind or "stream" in kind) and "workers" not in kind]
CASES = [(kind, stops) for kind in KINDS for stops in (STOPS if kind in READ_AGAIN else FEW)]


def soak_unless(is_fast, cases):
    """The fast cases, and every second one of the others as soak tests."""
    slow = [case for case in cases if not is_fast(*case)]
    return [
        *(case for case in cases if is_fast(*case)),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in slow[::2]),
    ]


@pytest.mark.parametrize(("kind", "stops"), soak_unless(lambda kind, stops: stops == "several", CASES))
def test_every_kind_of_data_resumes_exactly(kind, stops, tmp_path, references, fast):
    script = script_of(kind)
    attempts = run_with_stops(script, tmp_path / "run", STOPS[stops])
    assert all(attempt.has_stopped for attempt in attempts[:-1])
    assert_same(attempts, references(kind, script))


FAST_SOURCES = ("stateful DataLoader", "zip")
SOURCE_CASES = [(kind, stops) for kind in SOURCES for stops in ("mid-epoch, kill", "several", "epoch end")]


@pytest.mark.parametrize(
    ("kind", "stops"), soak_unless(lambda kind, stops: stops == "several" and kind in FAST_SOURCES, SOURCE_CASES)
)
def test_sources_that_save_their_position_or_combine_others_resume_exactly(kind, stops, tmp_path, references, fast):
    script = script_of(kind)
    attempts = run_with_stops(script, tmp_path / "run", STOPS[stops])
    assert all(attempt.has_stopped for attempt in attempts[:-1])
    assert_same(attempts, references(kind, script))


@pytest.mark.parametrize(("kind", "epoch"), soak_unless(lambda kind, epoch: (kind, epoch) in FAST_FAULTS, FAULTS))
def test_data_that_raises_once_is_read_again(kind, epoch, tmp_path, references, fast):
    script = script_of(kind)
    attempts = run_with_stops(script, tmp_path / "run", [Stop("data", "on_train_begin", epoch)])
    assert str(FAILING_SAMPLE) in str(attempts[0].error) or "can't be read" in str(attempts[0].error)
    assert_same(attempts, references(kind, script))


WINDOW_STOPS = ["mid-epoch, signal", "mid-epoch, exception", "epoch end", "several"]
WINDOW_CASES = [(kind, stops) for kind in ("a stream", "DataLoader", "DataLoader, stream") for stops in WINDOW_STOPS]


@pytest.mark.parametrize(("kind", "stops"), soak_unless(lambda kind, stops: stops == "mid-epoch, signal", WINDOW_CASES))
def test_an_open_accumulation_window_resumes(kind, stops, tmp_path, references, fast):
    script = script_of(kind, accumulate=3)
    attempts = run_with_stops(script, tmp_path / "run", STOPS[stops])
    assert_same(attempts, references(f"{kind}, windows", script))


def test_a_window_that_the_end_of_a_stream_leaves_open_is_applied_after_a_resume(tmp_path, references, fast):
    script = script_of("a stream", accumulate=3)  # of eight batches
    attempts = run_with_stops(script, tmp_path / "run", [Stop("int", "on_train_batch_end", 1, 8)])
    assert_same(attempts, references("a stream, windows", script))


VALID = {
    "a DataLoader": lambda: DataLoader(list(zip(X[:17], Y[:17], strict=True)), SIZE, shuffle=True),
    "a DataLoader with a generator": lambda: DataLoader(
        list(zip(X[:17], Y[:17], strict=True)), 5, shuffle=True, generator=generator()
    ),
    "a DataLoader with random samples": lambda: DataLoader(Rows(NO_FLAG, own=True), SIZE, shuffle=True),
    "a stream": lambda: Stream(NO_FLAG),
}


VALID_STOPS = ["mid-epoch, signal", "epoch end", "validation", "several"]
VALID_CASES = [(kind, stops) for kind in VALID for stops in VALID_STOPS]


@pytest.mark.parametrize(("kind", "stops"), soak_unless(lambda kind, stops: stops == "validation", VALID_CASES))
def test_every_kind_of_validation_data_resumes_exactly(kind, stops, tmp_path, references, fast):
    script = script_of("columns", valid=VALID[kind])
    attempts = run_with_stops(script, tmp_path / "run", STOPS[stops])
    assert_same(attempts, references(f"valid on {kind}", script))
