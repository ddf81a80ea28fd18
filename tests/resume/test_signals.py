"""Signals to a training process at any moment: it saves and exits, and the next start resumes exactly."""

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
SOAK = pytest.mark.soak


def printed(child):
    """The lines that a script printed, as a dict."""
    return dict(row.split(": ", 1) for row in child.printed().splitlines() if ": " in row)


@pytest.fixture
def start(tmp_path):
    """Starts a function in a child process, with the run directory as its first argument."""

    def start(program, *arguments, run=tmp_path / "run"):
        return Child(program, run, *arguments, prints=run.with_suffix(".txt"))

    return start


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The digest of the script without a signal."""

    @functools.cache
    def whole(program):
        run = tmp_path_factory.mktemp("whole") / "run"
        child = Child(program, run, prints=run.with_suffix(".txt"))
        assert child.wait() == 0, child.printed()
        return printed(child)["digest"]

    return whole


def assert_resumes(start, whole, program=script):
    """The next start ends with the same bits."""
    child = start(program)
    assert child.wait() == 0, child.printed()
    assert printed(child)["digest"] == whole(program), child.printed()


def newest(run):
    saved = checkpoints_of(run).newest().saved
    return saved.epoch, saved.batch, saved.update


# --- SIGTERM in every hook


PLACES = {  # hook, epoch and batch of the signal; epoch, batch and update of the checkpoint
    "before the first epoch": (("fit_begin", 0, 0), (0, 0, 0)),
    "before an epoch": (("epoch_begin", 2, 0), (2, 0, 4)),
    "before the training of an epoch": (("train_begin", 2, 0), (2, 0, 4)),
    "in a batch without an update": (("train_batch_begin", 2, 3), (2, 3, 5)),
    "in a batch with an update": (("train_batch_begin", 2, 4), (2, 4, 6)),
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


FAST = {
    *("before the first epoch", "in a batch without an update", "at an update", "in the last batch of an epoch"),
    *("in a validation", "after an epoch", "in the last batch", "after the last epoch"),
}


@pytest.mark.parametrize(
    ("place", "saved"),
    [pytest.param(*PLACES[each], id=each, marks=[] if each in FAST else [SOAK]) for each in PLACES],
)
def test_sigterm_completes_the_batch_saves_and_exits_with_143(start, whole, tmp_path, place, saved):
    child = start(signalled, *place, [signal.SIGTERM])
    assert child.wait() == 143, child.printed()
    assert printed(child) == {"ends": "interrupt, fit end", "handlers as before": "True"}
    assert newest(tmp_path / "run") == saved
    assert Record.open(tmp_path / "run").events_of("stop")[-1].text.startswith("Terminated")
    assert_resumes(start, whole)


@pytest.mark.parametrize(
    "hook",
    [
        "valid_batch_begin",
        *(pytest.param(hook, marks=SOAK) for hook in ("valid_begin", "valid_batch_end", "valid_end", "validation")),
    ],
)
def test_sigterm_in_a_validation_inside_an_epoch(start, whole, tmp_path, hook):
    batch = {"valid_begin": 4, "valid_end": 2, "validation": 4}.get(hook, 1)  # of the training or the validation
    child = start(scripts.validate_inside, (hook, 2, batch))
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (2, 4, 6)
    assert_resumes(start, whole, scripts.validate_inside)


def test_sigterm_after_the_fit_does_not_change_its_result(start, whole, tmp_path):
    child = start(signalled, "fit_end", 3, 8, [signal.SIGTERM])
    assert child.wait() == 143, child.printed()
    assert checkpoints_of(tmp_path / "run").newest().saved.ended == "Completed 3 epochs"
    assert_resumes(start, whole)


# --- several signals


SEVERAL = {
    "twice": [signal.SIGTERM] * 2,
    "many times": [signal.SIGTERM] * 50,
    "Ctrl-C, then SIGTERM": [signal.SIGINT, signal.SIGTERM],
    "SIGTERM, then Ctrl-C": [signal.SIGTERM, signal.SIGINT],
    "SIGUSR1, then SIGTERM": [signal.SIGUSR1, signal.SIGTERM],
    "SIGTERM, then SIGUSR1": [signal.SIGTERM, signal.SIGUSR1],
}


def several_signals(*fast):
    return [pytest.param(SEVERAL[each], id=each, marks=[] if each in fast else [SOAK]) for each in SEVERAL]


@pytest.mark.parametrize("signals", several_signals("many times", "Ctrl-C, then SIGTERM"))
def test_several_signals_at_once(start, whole, tmp_path, signals):
    child = start(signalled, "train_batch_begin", 2, 3, signals)
    assert child.wait() == 143, child.printed()
    assert printed(child) == {"ends": "interrupt, fit end", "handlers as before": "True"}
    assert newest(tmp_path / "run") == (2, 3, 5)
    assert_resumes(start, whole)


def test_sigterm_in_all_hooks(start, whole, tmp_path):
    child = start(scripts.signal_in_all_hooks)
    assert child.wait() == 143, child.printed()
    assert printed(child)["ends"] == "interrupt, fit end"
    assert newest(tmp_path / "run") == (2, 0, 4)
    assert_resumes(start, whole)


@pytest.mark.soak
def test_sigterm_every_millisecond_until_the_process_ends(start, whole, tmp_path):
    child = start(scripts.train_slowly)
    while not (tmp_path / "run" / "events.jsonl").exists() or len(Record.open(tmp_path / "run")) < 2:
        time.sleep(0.001)
    while not child.is_over():
        child.send(signal.SIGTERM)
        time.sleep(0.001)
    # After the fit, a signal has its default action again, which also ends the script.
    assert child.wait() in (143, -signal.SIGTERM), child.printed()
    assert_resumes(start, whole)


# --- signals while something takes long


def test_sigterm_in_a_slow_forward(start, whole, tmp_path):
    child = start(scripts.signal_in_forward)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (1, 4, 2)
    assert_resumes(start, whole)


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_sigterm_in_a_save(start, whole, tmp_path, background):
    child = start(scripts.signal_in_save, background)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run")[2] >= 3
    assert not list((tmp_path / "run" / "checkpoints").glob(".*"))
    assert_resumes(start, whole)


def test_sigterm_while_worker_processes_start(start, whole, tmp_path):
    """All of them are ended: otherwise the process would wait for them at its end."""
    child = start(scripts.signal_at_worker_start)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (0, 0, 0)  # the first workers are those that check the validation set
    assert_resumes(start, whole)


@pytest.mark.parametrize("argument", ["transform", "valid_transform"], ids=["training", "validation"])
def test_sigterm_does_not_wait_for_a_slow_worker(start, whole, tmp_path, argument):
    child = start(scripts.wait_for_worker, argument)
    assert child.wait() == 143, child.printed()
    with pytest.raises(ProcessLookupError):  # the worker has ended too
        os.kill(int((tmp_path / "asleep").read_text()), 0)
    assert_resumes(start, whole)


@pytest.mark.parametrize("signals", several_signals("twice"))
def test_signals_to_the_whole_process_group(start, whole, tmp_path, signals):
    child = start(scripts.signal_group_with_workers, signals)
    assert child.wait() == 143, child.printed()
    assert newest(tmp_path / "run") == (2, 3, 5)
    assert_resumes(start, whole)


# --- SIGUSR1, and handlers of the user


@pytest.mark.parametrize(
    "hook",
    [
        "fit_begin",
        "train_batch_begin",
        "fit_end",
        pytest.param("valid_batch_begin", marks=SOAK),
        pytest.param("epoch_end", marks=SOAK),
    ],
)
def test_sigusr1_saves_and_the_fit_continues(start, whole, tmp_path, hook):
    place = {"fit_begin": (0, 0), "fit_end": (3, 8), "epoch_end": (2, 8)}.get(hook, (2, 1))
    child = start(signalled, hook, *place, [signal.SIGUSR1])
    assert child.wait() == 0, child.printed()
    assert printed(child)["digest"] == whole(script)
    reasons = [event.extra["reason"] for event in Record.open(tmp_path / "run").events_of("checkpoint")]
    first = "requested by SIGUSR1" if hook == "fit_begin" else "the beginning"
    requested = [] if hook in ("fit_begin", "fit_end") else ["requested by SIGUSR1"]
    assert reasons == [first, *requested, "the end"]


def test_handlers_of_the_user_are_not_replaced(start, whole):
    child = start(scripts.with_own_handlers)
    assert child.wait() == 0, child.printed()
    assert printed(child)["digest"] == whole(script)
    assert printed(child)["received"] == "SIGINT SIGTERM SIGUSR1"
    assert printed(child)["handlers as before"] == "True"


def test_ignored_signals_stay_ignored(start, whole):
    child = start(scripts.ignore_signals)
    assert child.wait() == 0, child.printed()
    assert printed(child)["digest"] == whole(script)


def test_a_fit_in_a_thread_installs_no_handlers(start, whole):
    child = start(scripts.fit_in_thread)
    assert child.wait() == 0, child.printed()
    assert printed(child)["digest"] == whole(script)
    assert printed(child)["installed"] == "False"


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit], ids=lambda each: each.__name__)
def test_handlers_are_restored_after_an_exception(tmp_path, error):
    before, seen = handlers(), []

    def fail(ctx):
        seen.append(handlers())
        raise error

    with pytest.raises(error):
        linear().fit(line(), epochs=1, callbacks=[callbacks.on(train_begin=fail)], run=tmp_path / "run", show=False)
    assert handlers() == before
    assert all(ours is not theirs for ours, theirs in zip(seen[0], before, strict=True))


# --- deadlines


@pytest.mark.parametrize("program", [scripts.near_deadline, scripts.near_job_end])
def test_a_fit_stops_before_a_deadline_and_resumes(start, whole, tmp_path, program):
    child = start(program)
    assert child.wait() == 0, child.printed()
    assert printed(child)["stopped"] == "Stopped before the deadline, in epoch 1, batch 1"
    assert newest(tmp_path / "run") == (1, 1, 0)
    assert_resumes(start, whole)


def test_a_distant_deadline_changes_nothing(start, whole):
    child = start(scripts.distant_job_end)
    assert child.wait() == 0, child.printed()
    assert printed(child)["digest"] == whole(script)


def test_a_fit_with_a_limit_in_minutes_resumes(start, whole, tmp_path):
    child = start(scripts.limit_minutes)
    assert child.wait() == 0, child.printed()
    assert printed(child)["stopped"] == "Stopped after 1e-09 minutes"
    checkpoints = [(saved.batch, saved.resumable) for saved in checkpoints_of(tmp_path / "run").saved()]
    assert checkpoints == [(1, True), (1, False)]
    assert_resumes(start, whole)


# --- two processes


def test_a_run_is_locked_by_its_process_until_that_is_killed(start, whole, tmp_path):
    first = start(scripts.train_and_wait)
    while not (tmp_path / "trains").exists() and not first.is_over():
        time.sleep(0.005)
    with pytest.raises(RunExists, match=f"is being written by process {first.pid}; wait until it has ended"):
        scripts.fit(tmp_path / "run")
    first.send(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, first.printed()
    assert_resumes(start, whole)


@pytest.mark.soak  # the other tests fork their processes
def test_the_exit_code_of_a_python_process_is_143(tmp_path):
    program = (
        "import pathlib, signal, sys; from tests.resume.scripts import signalled; "
        "signalled(pathlib.Path(sys.argv[1]), 'train_batch_begin', 2, 3, [signal.SIGTERM])"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", program, tmp_path / "run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "")
    assert newest(tmp_path / "run") == (2, 3, 5)
