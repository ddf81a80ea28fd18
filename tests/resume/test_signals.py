"""Signals to a process that trains, wherever they arrive: it ends in order, and the next start goes on exactly."""

import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from stoker import callbacks
from stoker.errors import RunExists
from stoker.record import Record
from tests.learner.fits import line, linear
from tests.resume import scripts
from tests.resume.scripts import handlers, script, signalled
from torture.processes import Child, preload
from torture.runs import checkpoints_of

preload("tests.resume.scripts")


def told(child):
    """What a script has said, by what it is about."""
    return dict(row.split(": ", 1) for row in child.printed().splitlines() if ": " in row)


@pytest.fixture
def start(tmp_path):
    """Starts a function in a process of its own, with the run's folder as its first argument."""

    def start(program, *given, run=tmp_path / "run"):
        return Child(program, run, *given, prints=run.with_suffix(".txt"))

    return start


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What comes out of the script where no signal arrives, by the settings of the fit."""

    @functools.cache
    def whole(program):
        run = tmp_path_factory.mktemp("whole") / "run"
        child = Child(program, run, prints=run.with_suffix(".txt"))
        assert child.wait() == 0, child.printed()
        return told(child)["digest"]

    return whole


def goes_on(start, whole, program=script):
    """The next start ends in the same bits."""
    child = start(program)
    assert child.wait() == 0, child.printed()
    assert told(child)["digest"] == whole(program), child.printed()


def newest(run):
    saved = checkpoints_of(run).newest().saved
    return saved.epoch, saved.batch, saved.update


# --- SIGTERM at every milestone


PLACES = {  # of the signal: the milestone, epoch and batch; and where the checkpoint is: epoch, batch, update
    "before the first epoch": (("fit_begin", 0, 0), (0, 0, 0)),
    "before an epoch": (("epoch_begin", 2, 0), (2, 0, 4)),
    "before the training of an epoch": (("train_begin", 2, 0), (2, 0, 4)),
    "in a batch that ends no update": (("train_batch_begin", 2, 3), (2, 3, 5)),
    "in a batch that ends an update": (("train_batch_begin", 2, 4), (2, 4, 6)),
    "after a forward": (("train_batch_after_pred", 1, 2), (1, 2, 1)),
    "after a step": (("train_batch_after_step", 2, 4), (2, 4, 6)),
    "at an update": (("update", 2, 4), (2, 4, 6)),
    "after a batch": (("train_batch_end", 2, 5), (2, 5, 6)),
    "in the last batch of an epoch": (("train_batch_begin", 2, 8), (2, 8, 8)),
    "after the training of an epoch": (("train_end", 2, 8), (2, 8, 8)),
    "before a validation": (("valid_begin", 2, 8), (2, 8, 8)),
    "in a validation": (("valid_batch_begin", 2, 1), (2, 8, 8)),
    "in the last batch of a validation": (("valid_batch_end", 2, 2), (2, 8, 8)),
    "after a validation": (("validation", 2, 8), (2, 8, 8)),
    "after an epoch": (("epoch_end", 2, 8), (2, 8, 8)),
    "in the last batch": (("train_batch_end", 3, 8), (3, 8, 12)),
    "in the last validation": (("valid_batch_begin", 3, 1), (3, 8, 12)),
    "after the last epoch": (("epoch_end", 3, 8), (3, 8, 12)),
}


@pytest.mark.parametrize(("place", "saved"), PLACES.values(), ids=PLACES)
def test_sigterm_ends_the_batch_saves_and_exits_with_143(start, whole, tmp_path, place, saved):
    child = start(signalled, *place, [signal.SIGTERM])
    assert child.wait() == 143, child.printed()
    assert told(child) == {"ends": "interrupt, fit end", "handlers as before": "True"}
    assert newest(tmp_path / "run") == saved
    assert (
        Record.open(tmp_path / "run")
        .events_of("stop")[-1]
        .text.startswith("Terminated (SIGTERM) in epoch" if place != ("epoch_end", 3, 8) else "Terminated")
    )
    goes_on(start, whole)


@pytest.mark.parametrize("hook", ["valid_begin", "valid_batch_begin", "valid_batch_end", "valid_end", "validation"])
def test_sigterm_in_a_validation_inside_an_epoch(start, whole, tmp_path, hook):
    batch = {"valid_begin": 4, "valid_end": 2, "validation": 4}.get(hook, 1)  # of the training, or of the set
    child = start(scripts.in_between, (hook, 2, batch))
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (2, 4, 6)
    goes_on(start, whole, scripts.in_between)


def test_sigterm_when_the_fit_is_over_changes_nothing_about_it(start, whole, tmp_path):
    child = start(signalled, "fit_end", 3, 8, [signal.SIGTERM])
    assert child.wait() == 143, child.printed()
    assert checkpoints_of(tmp_path / "run").newest().saved.ended == "Completed 3 epochs"
    goes_on(start, whole)


# --- several of them


SEVERAL = {
    "twice": [signal.SIGTERM] * 2,
    "many times": [signal.SIGTERM] * 50,
    "Ctrl-C, then SIGTERM": [signal.SIGINT, signal.SIGTERM],
    "SIGTERM, then Ctrl-C": [signal.SIGTERM, signal.SIGINT],
    "SIGUSR1, then SIGTERM": [signal.SIGUSR1, signal.SIGTERM],
    "SIGTERM, then SIGUSR1": [signal.SIGTERM, signal.SIGUSR1],
}


@pytest.mark.parametrize("signals", SEVERAL.values(), ids=SEVERAL)
def test_several_at_once(start, whole, tmp_path, signals):
    child = start(signalled, "train_batch_begin", 2, 3, signals)
    assert child.wait() == 143, child.printed()
    assert told(child) == {"ends": "interrupt, fit end", "handlers as before": "True"}
    assert newest(tmp_path / "run") == (2, 3, 5)
    goes_on(start, whole)


def test_again_and_again_until_it_has_ended(start, whole, tmp_path):
    child = start(scripts.at_all_of_them)
    assert child.wait() == 143, child.printed()
    assert told(child)["ends"] == "interrupt, fit end"
    assert newest(tmp_path / "run") == (2, 0, 4)
    goes_on(start, whole)


def test_from_outside_again_and_again(start, whole, tmp_path):
    """A storm of them, from the first moment of the training until the process is gone; nothing is half done."""
    child = start(scripts.slowly)
    while not (tmp_path / "run" / "events.jsonl").exists() or len(Record.open(tmp_path / "run")) < 2:
        time.sleep(0.001)
    while not child.is_over():
        child.send(signal.SIGTERM)
        time.sleep(0.001)
    # Once the fit is over, one more is the script's own, which it ends in the same way.
    assert child.wait() in (143, -signal.SIGTERM), child.printed()
    goes_on(start, whole)


# --- in what takes long


def test_sigterm_in_a_slow_forward(start, whole, tmp_path):
    child = start(scripts.in_a_forward)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (1, 4, 2)
    goes_on(start, whole)


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_sigterm_in_a_save(start, whole, tmp_path, background):
    child = start(scripts.in_a_save, background)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run")[2] >= 3
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    goes_on(start, whole)


def test_sigterm_while_workers_are_started(start, whole, tmp_path):
    """None of them is forgotten: the process would wait for it, for ever, when it ends."""
    child = start(scripts.starting_workers)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (1, 0, 0)
    goes_on(start, whole)


@pytest.mark.parametrize("for_what", ["transform", "judged"], ids=["training", "validation"])
def test_sigterm_does_not_wait_for_a_worker_that_sleeps(start, whole, tmp_path, for_what):
    child = start(scripts.while_waiting, for_what)
    assert child.wait() == 143, child.printed()
    with pytest.raises(ProcessLookupError):  # nor does the worker outlive it
        os.kill(int((tmp_path / "asleep").read_text()), 0)
    goes_on(start, whole)


@pytest.mark.parametrize("signals", SEVERAL.values(), ids=SEVERAL)
def test_to_the_whole_process_group(start, whole, tmp_path, signals):
    child = start(scripts.with_workers, signals)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (2, 3, 5)
    goes_on(start, whole)


# --- SIGUSR1, and what is the user's own


@pytest.mark.parametrize("hook", ["fit_begin", "train_batch_begin", "valid_batch_begin", "epoch_end", "fit_end"])
def test_sigusr1_saves_and_goes_on(start, whole, tmp_path, hook):
    place = {"fit_begin": (0, 0), "fit_end": (3, 8), "epoch_end": (2, 8)}.get(hook, (2, 1))
    child = start(signalled, hook, *place, [signal.SIGUSR1])
    assert child.wait() == 0, child.printed()
    assert told(child)["digest"] == whole(script)
    asked = [event.extra["reason"] for event in Record.open(tmp_path / "run").events_of("checkpoint")]
    begun = ["asked for by SIGUSR1"] if hook == "fit_begin" else ["the beginning"]
    assert asked == begun + (["asked for by SIGUSR1"] if hook not in ("fit_begin", "fit_end") else []) + ["the end"]


def test_handlers_of_the_users_own_are_left_alone(start, whole):
    child = start(scripts.with_handlers_of_its_own)
    assert child.wait() == 0, child.printed()
    assert told(child)["digest"] == whole(script)
    assert told(child)["heard"] == "SIGINT SIGTERM SIGUSR1"
    assert told(child)["handlers as before"] == "True"


def test_ignored_signals_stay_ignored(start, whole):
    child = start(scripts.ignoring)
    assert child.wait() == 0, child.printed()
    assert told(child)["digest"] == whole(script)


def test_a_fit_in_a_thread_touches_no_handler(start, whole):
    child = start(scripts.in_a_thread)
    assert child.wait() == 0, child.printed()
    assert told(child)["digest"] == whole(script)
    assert told(child)["touched"] == "False"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit], ids=lambda each: each.__name__)
def test_handlers_are_put_back_after_an_exception(tmp_path, error):
    before, seen = handlers(), []

    def fail(ctx):
        seen.append(handlers())
        raise error

    with pytest.raises(error):
        linear().fit(line(), epochs=1, callbacks=[callbacks.on(train_begin=fail)], run=tmp_path / "run", show=False)
    assert handlers() == before
    assert all(ours is not theirs for ours, theirs in zip(seen[0], before, strict=True))


# --- a limit in time


@pytest.mark.parametrize("program", [scripts.past, scripts.ending_job])
def test_a_deadline_is_met_and_the_run_goes_on_later(start, whole, tmp_path, program):
    child = start(program)
    assert child.wait() == 0, child.printed()
    assert told(child)["stopped"] == "Stopped before the deadline, in epoch 1, batch 1"
    assert newest(tmp_path / "run") == (1, 1, 0)
    goes_on(start, whole)


def test_a_deadline_that_is_far_away_changes_nothing(start, whole):
    child = start(scripts.far_away)
    assert child.wait() == 0, child.printed()
    assert told(child)["digest"] == whole(script)


def test_after_its_minutes_it_is_saved_and_goes_on_later(start, whole, tmp_path):
    child = start(scripts.few_minutes)
    assert child.wait() == 0, child.printed()
    assert told(child)["stopped"] == "Stopped after 1e-09 minutes"
    kept = [(saved.batch, saved.resumable) for saved in checkpoints_of(tmp_path / "run").saved()]
    assert kept == [(1, True), (1, False)]
    goes_on(start, whole)


# --- two processes


def test_a_run_belongs_to_one_process_until_that_is_killed(start, whole, tmp_path):
    first = start(scripts.lingering)
    while not (tmp_path / "trains").exists() and not first.is_over():
        time.sleep(0.005)
    with pytest.raises(RunExists, match=f"is being written by process {first.pid}; wait until it has ended"):
        scripts.fit(tmp_path / "run")
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, first.printed()
    goes_on(start, whole)  # whether or not its workers are gone already


def test_a_shell_sees_143(tmp_path):
    """A whole Python, as users start it, to its very end."""
    program = (
        "import pathlib, signal, sys; from tests.resume.scripts import signalled; "
        "signalled(pathlib.Path(sys.argv[1]), 'train_batch_begin', 2, 3, [signal.SIGTERM])"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", program, tmp_path / "run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "")
    assert newest(tmp_path / "run") == (2, 3, 5)
