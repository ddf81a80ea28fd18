"""Damaged, forged and special files through the Python API: an error of stoker's, soon; and what users do to a run."""

import functools
import json
import shutil
import time

import pytest
import torch

import stoker
from stoker import callbacks
from stoker.checkpoint import Store
from stoker.errors import BadFile, StateMismatch
from stoker.record import Run
from tests.resume.scripts import fit
from torture.hostile import Bench, open_mutated, open_special
from torture.hostile import fit as small_fit
from torture.runs import checkpoints_of, digest

EVERY = stoker.Checkpoint(every=3)


@pytest.fixture(autouse=True)
def _restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_special_files_raise_errors_at_once(tmp_path):
    names = (
        "state.json",
        "model.safetensors",
        "events.jsonl",
        "safetensorsFalse.safetensors",
        "jsonFalse.json",
        "new.pt",
    )
    kinds = ("pipe", "link to /dev/zero", "sparse")
    ends, faults = open_special(tmp_path, kinds, names)
    assert faults == [] and ends["BadFile"] > 20


def test_mutated_files_raise_errors_or_are_read(tmp_path):
    ends, faults = open_mutated(100, 1, tmp_path, fits=3)
    assert faults == [] and ends["BadFile"] > 10


@pytest.mark.soak
def test_every_special_file_raises_an_error_at_once(tmp_path):
    """`python -m torture.hostile` opens more."""
    assert open_special(tmp_path)[1] == []


@pytest.mark.soak
def test_many_mutated_files_raise_errors_or_are_read(tmp_path):
    assert open_mutated(800, 2, tmp_path, fits=25)[1] == []


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("progress", "epoch"), "2"),
        (("progress", "best"), 3),
        (("identity", "fixed"), "x"),
        (("model", "trainable"), [{}]),
        (("callbacks", "EarlyStopping", "best"), []),
    ],
    ids=lambda each: ".".join(each) if isinstance(each, tuple) else "",
)
def test_values_of_other_types_in_a_state_with_valid_checksums_are_an_error(tmp_path, keys, value):
    bench = Bench(tmp_path)
    path = bench.checkpoint / "state.json"
    state = json.loads(path.read_bytes())
    *outer, last = keys
    functools.reduce(lambda inner, key: inner[key], outer, state)[last] = value
    path.write_text(json.dumps(state))
    bench.resign()
    with pytest.raises((BadFile, StateMismatch)):
        small_fit(bench.run, epochs=3)


def test_old_checkpoints_may_be_deleted_during_a_run(tmp_path):
    run = tmp_path / "run"

    def delete(ctx):
        for path in sorted((run / "checkpoints").glob("0*"))[:-1]:  # the newest one may still be read back
            shutil.rmtree(path, ignore_errors=True)

    fitted = fit(run, hooks=[callbacks.on(update=delete)], checkpoint=EVERY)
    assert fitted.stopped == "Completed 3 epochs"
    assert checkpoints_of(run).newest().problems == [] and not checkpoints_of(run).has_leftovers


def test_a_clock_before_1970(tmp_path, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3e9)
    run = tmp_path / "run"
    fitted = fit(run, checkpoint=EVERY)
    store = Store(run / "checkpoints", run=Run.open(run).id)
    assert store.saved()[-1].time < 0 and store.newest().problems == []
    assert stoker.Fitted.load(run).updates == fitted.updates
    assert digest(fit(run, checkpoint=EVERY), run) == digest(fitted, run)
