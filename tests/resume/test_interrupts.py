"""A second Ctrl-C raises `KeyboardInterrupt`, and the fit has given everything back by then, as a notebook needs it."""

import signal
import threading
import time

import pytest
import torch

import stoker
from stoker import callbacks
from stoker.checkpoint import _disk
from stoker.record import Run
from tests.resume.scripts import FRESH, Net, fit, handlers
from torture.interrupts import interrupt_fits
from torture.runs import checkpoints_of, digest


def press(times=1):
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


def writers():
    return [thread for thread in threading.enumerate() if thread.name == "stoker-checkpoint"]


@pytest.fixture
def slow_disk(monkeypatch):
    """A checkpoint takes a while, so that the thread is still writing when the interrupt comes."""
    real = _disk.sync
    monkeypatch.setattr(_disk, "sync", lambda file: (time.sleep(0.05), real(file)))


def assert_given_back(run):
    assert handlers() == FRESH and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    assert writers() == [] and Run.open(run).writer is None
    found = checkpoints_of(run).newest()
    assert found.problems == [] and not checkpoints_of(run).has_leftovers


def test_everything_is_given_back_before_the_interrupt_is_raised(tmp_path, slow_disk):
    run, seen = tmp_path / "run", []

    def interrupt(ctx):
        if ctx.batch_number == 7:  # after update 3, whose checkpoint is being written
            seen.append(len(writers()))
            press(2)

    hooks = [callbacks.on(train_batch_end=interrupt, exception=lambda ctx: press(3))]  # and it is pressed on and on
    with pytest.raises(KeyboardInterrupt):
        fit(run, hooks=hooks, checkpoint=stoker.Checkpoint(every=3))
    assert seen and max(seen) == 1, "the thread was writing"
    assert_given_back(run)
    whole = digest(fit(tmp_path / "whole", checkpoint=stoker.Checkpoint(every=3)), tmp_path / "whole")
    assert digest(fit(run, checkpoint=stoker.Checkpoint(every=3)), run) == whole


def test_an_interrupt_while_a_run_is_opened_stops_the_fit_and_leaves_no_lock(tmp_path, monkeypatch):
    run, real = tmp_path / "run", Run.create.__func__

    def create(cls, *args, **kwargs):
        opened = real(cls, *args, **kwargs)
        press()
        return opened

    monkeypatch.setattr(Run, "create", classmethod(create))
    fitted = fit(run, checkpoint=stoker.Checkpoint(every=3))
    assert fitted.stopped.startswith("Interrupted in epoch") and fitted.updates == 0
    assert_given_back(run)
    assert fit(run, checkpoint=stoker.Checkpoint(every=3)).stopped == "Completed 3 epochs"


def test_an_interrupt_while_the_fit_is_prepared_is_raised_at_once(tmp_path):
    def model():
        press()
        pytest.fail("it was not raised")

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "run", model=model, checkpoint=stoker.Checkpoint(every=3))
    assert handlers() == FRESH and not (tmp_path / "run").exists()


def test_sigusr1_while_the_fit_is_prepared_does_not_end_the_process(tmp_path):
    def model():
        signal.raise_signal(signal.SIGUSR1)
        return Net()

    assert fit(tmp_path / "run", model=model, checkpoint=stoker.Checkpoint(every=3)).epochs == 3


@pytest.mark.soak
# An interrupt between opening a file and keeping it leaves the closing to the collector, which warns.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning")
def test_random_interrupts_leave_nothing_behind_and_lose_nothing(tmp_path):
    """`python -m torture.interrupts` sends more."""
    threads = torch.get_num_threads()
    report = interrupt_fits(100, seed=3, folder=tmp_path)
    torch.set_num_threads(threads)
    assert report.faults == [] and report.raised > 10 and report.finished > 10
