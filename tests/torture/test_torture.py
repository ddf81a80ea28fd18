"""Kills at random moments, a few dozen of them (`make torture` has hundreds); and that the torture sees faults."""

import shutil

import pytest
import torch

from torture.__main__ import main
from torture._children import Child
from torture._digest import checkpoints_of
from torture._look import litter, look
from torture._programs import EVERY, counter_of, train


def test_killed_runs_end_in_the_same_bits(capfd):
    assert_survived(["--kills", "36", "--seconds", "60", "--seed", "0"], capfd)


@pytest.mark.parametrize(("kind", "seed"), [("windows", "3"), ("shards", "13")], ids=["agent", "one rank"])
def test_killed_ranks_end_in_the_same_bits(capfd, kind, seed):
    """One kill inside of the training each; the seeds are of those whose first strike is that."""
    assert_survived(["--ranks", "2", "--kind", kind, "--kills", "1", "--seconds", "0", "--seed", seed], capfd)


def assert_survived(asked, capfd):
    code = main(asked)
    printed = capfd.readouterr().out
    assert code == 0, printed
    table = {line[:20].strip(): line[20:] for line in printed.splitlines()}
    assert table["mismatches"] == "0"
    assert int(table["kills"]) > 0 and int(table["resumes"]) > 0


def test_a_kind_that_there_is_none_of_is_told():
    with pytest.raises(SystemExit, match="--kind sharded: there are whole, windows, shards"):
        main(["--ranks", "2", "--kind", "sharded"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torture") / "best"
    child = Child(train, "best", folder, prints=folder.with_suffix(".txt"))
    assert child.wait() == 0, child.printed()
    return folder


@pytest.fixture
def run(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "best")
    shutil.copy(counter_of(finished), counter_of(tmp_path / "best"))
    return tmp_path / "best"


def test_a_whole_run_has_no_fault(run):
    left = look(run)
    assert (left.resumes, left.lost, left.in_a_save, left.faults) == (True, 0, False, [])
    assert litter(run) == []


def test_a_damaged_checkpoint_is_seen(run):
    there = checkpoints_of(run).saved()[-1].name
    file = run / "checkpoints" / there / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert any(there in fault for fault in look(run).faults)


def test_what_is_no_checkpoint_is_seen(run):
    (run / "checkpoints" / "00000099").mkdir()
    (run / "checkpoints" / ".part-00000099-0123abcd").mkdir()
    left = look(run)
    assert left.faults == ["00000099 is no checkpoint"]
    assert left.in_a_save
    assert litter(run) == [".part-00000099-0123abcd", "00000099"]


def test_checkpoints_that_were_not_deleted_are_litter(run):
    store = checkpoints_of(run)
    found = store.newest()
    first = store.saved()[0].name
    for _ in range(3):
        store.write(found.state, found.saved)
    assert look(run).faults == []  # as a kill may leave it
    assert first in litter(run)


def test_updates_that_are_lost_are_counted(run):
    last = checkpoints_of(run).saved()[-1].update
    counter_of(run).write_bytes((last + 2).to_bytes(8, "big"))
    assert look(run).lost == 2
    counter_of(run).write_bytes((last + 2 * EVERY + 1).to_bytes(8, "big"))
    assert look(run).faults == [f"{2 * EVERY + 1} updates are lost, with a checkpoint every {EVERY}"]


def test_other_bits_are_another_digest(run):
    """Started again it is over at once and prints its end; with one bit changed it prints another one."""
    prints = run.with_suffix(".txt")
    child = Child(train, "best", run, prints=prints)
    assert child.wait() == 0
    end = child.printed()
    child = Child(changed, run, prints=prints)
    assert child.wait() == 0
    assert child.printed() != end


def changed(run):
    """The same end of the same run, with one random number drawn less."""
    store = checkpoints_of(run)
    found = store.newest()
    state = dict(found.state)
    state["random"] = {**state["random"], "torch": state["random"]["torch"].clone()}
    state["random"]["torch"][-1] ^= 1
    assert not torch.equal(state["random"]["torch"], found.state["random"]["torch"])
    store.write(state, found.saved)
    train("best", run)
