"""Saving beside the training: what is written is the state of that moment, and no failure is lost or told twice."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from stoker.checkpoint._checkpoint import Checkpoint
from stoker.checkpoint._place import Moment, Place
from stoker.checkpoint._policy import composed, every, keep_last
from stoker.checkpoint._saver import Saver
from stoker.checkpoint._store import Store
from stoker.errors import CheckpointFailed
from tests.checkpoint.test_policy import at, saved
from tests.checkpoint.test_writing import MemoryStore

POLICY = composed([every(10)], [keep_last(2)])
both = pytest.mark.parametrize("background", [True, False], ids=["thread", "here"])


def place(update, **more):
    return Place(**{"epoch": 1, "batch": update, "update": update, **more})


class Gate(MemoryStore):
    """A store whose writes wait until the test lets them go."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.begun, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.writers = []

    def write(self, state, place):
        self.writers.append(threading.current_thread())
        self.begun.release()
        assert self.go.acquire(timeout=60)
        return super().write(state, place)


def names(found):
    return [each.name for each in found]


@both
def test_saves_and_deletes_in_a_real_folder(tmp_path, background):
    store = Store(tmp_path, run="5f0c")
    saver = Saver(store, POLICY, background=background)
    for update in (10, 20, 30):
        saver.save({"weight": torch.full((3,), float(update)), "update": update}, place(update))
    saver.wait()
    assert names(saver.finished()) == ["00000010", "00000020", "00000030"] and saver.finished() == []
    assert names(store.saved()) == ["00000020", "00000030"]
    found = store.newest()
    assert found.state["weight"].tolist() == [30, 30, 30] and found.state["update"] == 30
    saver.close()
    assert sorted(os.listdir(tmp_path)) == ["00000020", "00000030"]


@both
def test_what_is_written_is_the_state_of_that_moment(background):
    store = MemoryStore() if not background else Gate()
    saver, weight = Saver(store, POLICY, background=background), nn.Parameter(torch.ones(2))
    for update in (10, 20):
        saver.save({"weight": weight}, place(update))
        with torch.no_grad():
            weight += 1  # the next update, while the thread has not begun to write
        if background:
            store.go.release()
    saver.wait()
    assert [state for _, state in store.states.values()] == [{"weight": [1, 1]}, {"weight": [2, 2]}]


def test_a_thread_writes_and_the_training_goes_on():
    store = Gate()
    saver = Saver(store, POLICY, background=True)
    saver.save({}, place(10))
    assert store.begun.acquire(timeout=60)  # it is being written
    assert saver.finished() == [] and store.states == {}
    store.go.release()
    saver.wait()
    assert names(saver.finished()) == ["00000010"]
    (writer,) = store.writers
    assert writer is not threading.main_thread() and not writer.is_alive()


def test_without_a_thread_it_is_written_when_save_returns():
    store = Gate()
    store.go.release()
    saver = Saver(store, POLICY, background=False)
    saver.save({}, place(10))
    assert store.writers == [threading.current_thread()] and names(saver.finished()) == ["00000010"]


def test_without_a_thread_nothing_is_copied():
    seen = []

    class Looks(MemoryStore):
        def write(self, state, place):
            seen.append(state["weight"])
            return super().write(state, place)

    weight = torch.ones(2)
    Saver(Looks(), POLICY, background=False).save({"weight": weight}, place(10))
    assert seen[0] is weight


def test_at_most_one_is_written_at_a_time():
    store = Gate()
    saver = Saver(store, POLICY, background=True)
    saver.save({}, place(10))
    assert store.begun.acquire(timeout=60)
    second = threading.Thread(target=saver.save, args=({}, place(20)))  # which waits for the first
    second.start()
    assert not store.begun.acquire(timeout=0.05) and len(store.writers) == 1
    store.go.release()
    assert store.begun.acquire(timeout=60)
    store.go.release()
    second.join()
    saver.wait()
    assert names(saver.finished()) == ["00000010", "00000020"]


def test_what_is_being_written_counts_as_saved():
    store = Gate([saved(0)])
    saver = Saver(store, POLICY, background=True)
    assert saver.due(at(10)) == "every 10 updates"
    saver.save({}, place(10))
    assert saver.due(at(10, batch=11)) is None  # the next batch of a window
    assert saver.due(at(20)) == "every 10 updates"
    store.go.release()
    saver.wait()
    assert saver.due(at(10)) is None


def test_what_could_not_be_written_does_not():
    store = MemoryStore(fails={"write": OSError("full")})
    saver = Saver(store, POLICY, background=True)
    saver.save({}, place(10))
    with pytest.raises(CheckpointFailed):
        saver.wait()
    assert saver.due(at(10)) == "every 10 updates"


def test_why_it_is_due():
    saver = Saver(
        MemoryStore(), Checkpoint(every=5, keep_best="valid/loss").policy(lambda name: "min"), background=True
    )
    assert saver.due(at(4)) is None
    assert saver.due(at(5, loss=0.5)) == "every 5 updates; best valid/loss so far: 0.5000"
    assert saver.due(Moment(epoch=1, batch=6, update=6, values={"valid/loss": float("nan")})) is None


@pytest.mark.parametrize(
    ("policy", "updates"),
    [(every("epoch"), []), (every(3), [0, 3, 6]), (every("1 minute"), [0, 1, 2, 3, 4, 5, 6, 7])],
    ids=["epoch", "updates", "minutes"],
)
def test_when_it_may_be_due(policy, updates):
    saver = Saver(MemoryStore(), policy, background=True)
    assert [update for update in range(8) if saver.may_be_due(update)] == updates


def test_checkpoints_that_are_ignored_neither_count_nor_go():
    store = MemoryStore([saved(10), saved(20), saved(30)])
    saver = Saver(store, composed([every(10)], [keep_last(1)]), background=False, ignored=["00000020", "00000030"])
    assert saver.due(at(20)) == "every 10 updates"
    saver.save({}, place(15))
    assert store.deleted == ["00000010"] and list(store.states) == ["00000020", "00000030", "00000015"]


@pytest.mark.parametrize("ask", ["finished", "wait", "save"])
def test_a_failure_is_raised_once_by_whoever_asks_next(ask):
    cause = OSError(28, "No space left on device")
    store = MemoryStore([saved(0)], fails={"write": cause})
    saver = Saver(store, POLICY, background=True)
    saver.save({"weight": torch.ones(2)}, place(10))
    saver.close()  # says nothing, and keeps it
    store.fails = {}
    with pytest.raises(CheckpointFailed, match="update 10 .*No space left on device.*00000000 is whole") as caught:
        {"finished": saver.finished, "wait": saver.wait, "save": lambda: saver.save({}, place(20))}[ask]()
    assert caught.value.__cause__ is cause
    assert saver.finished() == []
    saver.wait()
    assert list(store.states) == ["00000000"]
    saver.save({"weight": torch.ones(2)}, place(20))
    saver.wait()
    assert names(saver.finished()) == ["00000020"]


def test_without_a_thread_the_failure_comes_from_save():
    store = MemoryStore(fails={"write": OSError("full")})
    saver = Saver(store, POLICY, background=False)
    with pytest.raises(CheckpointFailed, match="update 10"):
        saver.save({}, place(10))
    assert saver.finished() == [] and saver.due(at(10)) == "every 10 updates"


@both
def test_an_old_one_that_can_not_be_deleted_is_told_and_the_new_one_is_saved(background):
    store = MemoryStore([saved(1), saved(2)], fails={"00000001": OSError("stuck")})
    saver = Saver(store, POLICY, background=background)
    with pytest.raises(CheckpointFailed, match="00000001 could not be deleted"):
        saver.save({}, place(10))
        saver.wait()
    assert names(saver.finished()) == ["00000010"]
    saver.save({}, place(20))
    saver.wait()
    assert names(saver.finished()) == ["00000020"] and store.deleted == ["00000001", "00000002"]


def test_a_state_that_can_not_be_saved_is_told_at_once_and_harms_nothing():
    store = MemoryStore()
    saver = Saver(store, POLICY, background=True)
    with pytest.raises(CheckpointFailed, match="'mask'"):
        saver.save({"mask": torch.eye(2).to_sparse()}, place(10))
    assert saver.due(at(10)) == "every 10 updates"
    saver.save({"weight": torch.ones(2)}, place(10))
    saver.wait()
    assert names(saver.finished()) == ["00000010"]


@both
def test_ctrl_c_while_it_is_written_comes_through(background):
    store = MemoryStore(fails={"write": KeyboardInterrupt()})
    saver = Saver(store, POLICY, background=background)
    with pytest.raises(KeyboardInterrupt):
        saver.save({}, place(10))
        saver.wait()
    saver.wait()


def test_where_no_thread_is_to_be_had_it_is_written_here(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    store = MemoryStore()
    saver = Saver(store, POLICY, background=True)
    saver.save({"weight": torch.ones(2)}, place(10))
    assert names(saver.finished()) == ["00000010"]
    saver.close()


def test_closing_gives_the_copies_back_and_may_be_done_again():
    saver = Saver(MemoryStore(), POLICY, background=True)
    saver.close()
    saver.save({"weight": torch.ones(2)}, place(10))
    saver.close()
    assert not saver._copies._kept
    saver.close()
    assert names(saver.finished()) == ["00000010"]


@both
def test_the_slowest_is_remembered(background):
    saver = Saver(MemoryStore(), POLICY, background=background)
    assert saver.slowest == 0
    saver.save({"weight": torch.ones(2)}, place(10))
    saver.wait()
    first = saver.slowest
    assert first > 0
    saver.save({"weight": torch.ones(2)}, place(20))
    saver.wait()
    assert saver.slowest >= first


def test_a_journal_goes_first(tmp_path):
    saver = Saver(Store(tmp_path / "checkpoints"), POLICY, background=True)
    saver.save({}, place(10), events=tmp_path / "events.jsonl")
    with pytest.raises(CheckpointFailed, match=r"events\.jsonl"):
        saver.wait()
    (tmp_path / "events.jsonl").touch()
    saver.save({}, place(10), events=tmp_path / "events.jsonl")
    saver.wait()
    assert names(saver.finished()) == ["00000010"]


UNCLOSED = """
import sys, torch
from stoker.checkpoint._place import Place
from stoker.checkpoint._saver import Saver
from stoker.checkpoint._store import Store

saver = Saver(Store(sys.argv[1]), lambda here, there: [], background=True)
for update in range(1, 4):
    saver.save({"weight": torch.full((1 << 20,), float(update))}, Place(epoch=1, batch=update, update=update))
"""


def test_a_program_that_ends_in_the_middle_of_a_save_ends_when_it_is_whole(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNCLOSED, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["00000001", "00000002", "00000003"]
    found = Store(tmp_path).newest()
    assert found.problems == [] and found.state["weight"].unique().tolist() == [3]


@pytest.mark.cuda
@both
def test_what_is_written_from_a_gpu_is_the_state_of_that_moment(tmp_path, background):
    store = Store(tmp_path)
    saver, weight = Saver(store, POLICY, background=background), torch.zeros(1 << 22, device="cuda")
    for update in (10, 20):
        for _ in range(50):
            weight.add_(1)
        saver.save({"model": {"weight": weight}}, place(update))
        for _ in range(50):
            weight.add_(1)
    saver.wait()
    values = [store.read(each)["model"]["weight"].unique().tolist() for each in saver.finished()]
    assert values == [[50], [150]]
