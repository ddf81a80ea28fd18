"""Kills at random moments and at every change of the disk; and that the torture itself notices faults."""

import itertools
import os
import shutil
import signal
import traceback

import pytest
import torch
from torch import nn

import stoker
from stoker import optim
from torture.__main__ import main
from torture.processes import Child
from torture.programs import train
from torture.runs import EVERY, checkpoints_of, counter_path, digest, inspect_run, leftovers

# --- at random moments


def assert_survives(arguments, capfd):
    code = main(arguments)
    printed = capfd.readouterr().out
    assert code == 0, printed
    table = {line[:20].strip(): line[20:] for line in printed.splitlines()}
    assert table["mismatches"] == "0" and int(table["kills"]) > 0 and int(table["resumes"]) > 0


def test_a_killed_run_ends_with_the_same_bits(capfd):
    assert_survives(["--kind", "best", "--kills", "3", "--seconds", "0", "--seed", "0"], capfd)


@pytest.mark.soak
def test_runs_of_every_kind_that_are_killed_dozens_of_times_end_with_the_same_bits(capfd):
    assert_survives(["--kills", "24", "--seconds", "30", "--seed", "0"], capfd)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "seed"), [("windows", "3"), ("shards", "13")], ids=["agent", "one rank"])
def test_killed_ranks_end_with_the_same_bits(capfd, kind, seed):
    """With these seeds the first strike hits the agent, or one rank, during training."""
    assert_survives(["--ranks", "2", "--kind", kind, "--kills", "1", "--seconds", "0", "--seed", seed], capfd)


def test_an_unknown_kind_is_an_error_that_names_the_known_ones():
    with pytest.raises(SystemExit, match="--kind sharded: there are whole, windows, shards"):
        main(["--ranks", "2", "--kind", "sharded"])


# --- at every change that a fit makes to the disk, in two saves that each delete an old checkpoint


def fit(folder, background):
    """Has 4 updates in each of 2 epochs, and saves at updates 0, 2, 4, 6 and 8."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(5))
    learner = stoker.Learner(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1)),
        loss=nn.MSELoss(),
        optimizer=optim.SGD(momentum=0.9),
        lr=0.05,
        seed=0,
    )
    data, checkpoint = (x, x.sum(1, keepdim=True)), stoker.Checkpoint(every=2, keep_last=1, background=background)
    return learner.fit(
        data, valid=data, epochs=2, batch_size=16, run=folder, resume=True, checkpoint=checkpoint, show=False
    )


class DiskChanges:
    """Lists the calls of this process that change the disk, and kills it in the n-th: a write after its first half."""

    def __init__(self, kill_at=0):
        self.calls, self._kill_at = [], kill_at
        for name in ("mkdir", "rename", "unlink", "rmdir", "open", "write"):
            setattr(os, name, self._counting(name, getattr(os, name)))
        os.fsync = lambda file: None  # a kill does not undo what the operating system has; waiting is only slow

    def _counting(self, name, function):
        def call(*arguments, **options):
            if name != "open" or arguments[1] & os.O_CREAT:
                self.calls.append((name, arguments[0]))
                if len(self.calls) == self._kill_at:
                    if name == "write":
                        function(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call


def train_uninterrupted(folder, background):
    """The digest, the number of the first change of the second save, and that of the last change of the third."""
    changes = DiskChanges()
    end = digest(fit(folder, background), folder)
    saves = [n for n, (name, what) in enumerate(changes.calls, 1) if name == "mkdir" and ".part-" in str(what)]
    return f"{end} {saves[1]} {saves[3] - 1}"


def train_until_killed(folder, background, at):
    DiskChanges(kill_at=at)
    fit(folder, background)
    return "not killed"


def resume(folder, background):
    """Reads every checkpoint; returns the newest update, and the digest and leftovers of the resumed run."""
    store = checkpoints_of(folder)
    for saved in store.saved():
        store.read(saved)
    newest = store.newest().saved.update
    return f"{newest} {digest(fit(folder, background), folder)} {leftovers(folder)}"


def in_a_fork(function, *arguments):
    """The exit code and the result of a function that runs in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        write, leave = os.write, os._exit
        try:
            text = function(*arguments)
        except BaseException:
            text = traceback.format_exc()
        write(writing, text.encode())
        leave(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def kill_at_each_change(folder, background, step):
    """Prints a line for each kill: the newest checkpoint that it left, and the result after resuming."""
    torch.set_num_threads(1)
    _, text = in_a_fork(train_uninterrupted, folder / "whole", background)
    end, first, last = text.split()
    for at in [*range(int(first), int(last), step), int(last)]:
        code, text = in_a_fork(train_until_killed, folder / str(at), background, at)
        assert code == -signal.SIGKILL, text
        _, text = in_a_fork(resume, folder / str(at), background)
        print(text.replace(end, "the same bits"))
        shutil.rmtree(folder / str(at))


@pytest.mark.parametrize(
    ("background", "step"),
    [(False, 7), pytest.param(False, 1, marks=pytest.mark.soak), pytest.param(True, 1, marks=pytest.mark.soak)],
    ids=["foreground, every 7th", "foreground", "background"],
)
def test_a_kill_at_any_change_of_the_disk_costs_nothing(tmp_path, background, step):
    child = Child(kill_at_each_change, tmp_path, background, step, prints=tmp_path / "printed.txt")
    assert child.wait() == 0, child.printed()
    ends = [line for line, _ in itertools.groupby(child.printed().splitlines())]
    saved = [f"{update} the same bits []" for update in (0, 2, 4, 6)]
    if background:  # training and saving change the disk in any order: the n-th change is not the same in each run
        assert set(saved[:3]) <= set(ends) <= set(saved)
    else:  # the newest checkpoint is the previous one until the new one is complete
        assert ends == saved[:3]


# --- the torture notices faults


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torture") / "best"
    child = Child(train, "best", folder, prints=folder.with_suffix(".txt"))
    assert child.wait() == 0, child.printed()
    return folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "best")
    shutil.copy(counter_path(finished), counter_path(tmp_path / "best"))
    return tmp_path / "best"


def test_a_finished_run_has_no_fault(run):
    found = inspect_run(run)
    assert (found.resumes, found.lost, found.in_a_save, found.faults) == (True, 0, False, [])
    assert leftovers(run) == []


def test_a_damaged_checkpoint_is_a_fault(run):
    name = checkpoints_of(run).saved()[-1].name
    file = run / "checkpoints" / name / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert any(name in fault for fault in inspect_run(run).faults)


def test_unknown_files_are_faults_and_temporary_ones_are_leftovers(run):
    (run / "checkpoints" / "00000099").mkdir()
    (run / "checkpoints" / ".part-00000099-0123abcd").mkdir()
    found = inspect_run(run)
    assert found.faults == ["00000099 is not a checkpoint"] and found.in_a_save
    assert leftovers(run) == [".part-00000099-0123abcd", "00000099"]


def test_checkpoints_that_were_not_deleted_are_leftovers(run):
    store = checkpoints_of(run)
    found, first = store.newest(), store.saved()[0].name
    for _ in range(3):
        store.write(found.state, found.saved)
    assert inspect_run(run).faults == []  # a kill may leave them
    assert first in leftovers(run)


def test_lost_updates_are_counted_and_too_many_are_a_fault(run):
    last = checkpoints_of(run).saved()[-1].update
    counter_path(run).write_bytes((last + 2).to_bytes(8, "big"))
    assert inspect_run(run).lost == 2
    counter_path(run).write_bytes((last + 2 * EVERY + 1).to_bytes(8, "big"))
    assert inspect_run(run).faults == [f"{2 * EVERY + 1} updates are lost, with a checkpoint every {EVERY}"]


def test_one_other_bit_gives_another_digest(run):
    """A finished run that is started again prints its digest at once; with one bit changed it prints another one."""
    prints = run.with_suffix(".txt")
    digests = []
    for function, arguments in ((train, ("best", run)), (train_after_a_changed_bit, (run,))):
        child = Child(function, *arguments, prints=prints)
        assert child.wait() == 0, child.printed()
        digests.append(child.printed())
    assert digests[0] != digests[1]


def train_after_a_changed_bit(run):
    store = checkpoints_of(run)
    found = store.newest()
    state = dict(found.state)
    state["random"] = {**state["random"], "torch": state["random"]["torch"].clone()}
    state["random"]["torch"][-1] ^= 1
    store.write(state, found.saved)
    train("best", run)
