"""A saver writes the state of the moment of `save`, deletes old checkpoints, and raises every failure once."""

import errno
import os
import subprocess
import sys
import threading
from collections import OrderedDict, deque, namedtuple

import pytest
import torch
from torch import nn

from stoker.checkpoint import Checkpoint, Saver, Store, _disk
from stoker.errors import CheckpointFailed
from tests.checkpoint.states import moment, place, same

POLICY = Checkpoint(every=10, keep_last=2).policy()
both = pytest.mark.parametrize("background", [True, False], ids=["thread", "no thread"])


class FaultyStore(Store):
    """A store that can be made to wait or to fail."""

    def __init__(self, folder, *updates):
        super().__init__(folder)
        self.started, self.proceed, self.waits = threading.Semaphore(0), threading.Semaphore(0), False
        self.fails = {}  # "write" or the name of a checkpoint to delete -> exception
        self.states, self.writers, self.deleted = [], [], []
        for update in updates:
            super().write({}, place(update))

    def write(self, state, place):
        self.writers.append(threading.current_thread())
        self.started.release()
        if self.waits:
            assert self.proceed.acquire(timeout=60)
        if "write" in self.fails:
            raise self.fails["write"]
        self.states.append(state)
        return super().write(state, place)

    def delete(self, name):
        self.deleted.append(name)
        if name in self.fails:
            raise self.fails[name]
        super().delete(name)


def names(found):
    return [each.name for each in found]


@both
def test_checkpoints_are_saved_and_old_ones_deleted(tmp_path, background):
    store = Store(tmp_path, run="5f0c")
    saver = Saver(store, POLICY, background=background)
    for update in (10, 20, 30):
        saver.save({"weight": torch.full((3,), float(update)), "update": update}, place(update))
    saver.wait()
    assert saver.slowest > 0  # seconds
    assert names(saver.take_finished()) == ["00000010", "00000020", "00000030"] and saver.take_finished() == []
    assert names(store.saved()) == ["00000020", "00000030"]
    found = store.newest()
    assert found.state["weight"].tolist() == [30, 30, 30] and found.state["update"] == 30
    saver.close()
    assert sorted(os.listdir(tmp_path)) == ["00000020", "00000030"]


def test_a_thread_writes_while_the_training_continues(tmp_path):
    store = FaultyStore(tmp_path)
    store.waits = True
    saver, weight = Saver(store, POLICY, background=True), nn.Parameter(torch.ones(2))
    saver.save({"weight": weight}, place(10))
    assert store.started.acquire(timeout=60)
    with torch.no_grad():
        weight += 1  # the next update, before the thread has written anything
    assert saver.take_finished() == [] and store.saved() == []
    store.proceed.release()
    saver.wait()
    assert names(saver.take_finished()) == ["00000010"] and store.newest().state["weight"].tolist() == [1, 1]
    (writer,) = store.writers
    assert writer is not threading.main_thread() and not writer.is_alive()


def test_one_checkpoint_is_written_at_a_time(tmp_path):
    store = FaultyStore(tmp_path)
    store.waits = True
    saver = Saver(store, POLICY, background=True)
    saver.save({}, place(10))
    assert store.started.acquire(timeout=60)
    second = threading.Thread(target=saver.save, args=({}, place(20)))  # waits for the first
    second.start()
    assert not store.started.acquire(timeout=0.05) and len(store.writers) == 1
    store.proceed.release()
    assert store.started.acquire(timeout=60)
    store.proceed.release()
    second.join()
    saver.wait()
    assert names(saver.take_finished()) == ["00000010", "00000020"]


# When it is due


def test_a_checkpoint_in_flight_counts_as_saved(tmp_path):
    store = FaultyStore(tmp_path, 0)
    store.waits = True
    saver = Saver(store, POLICY, background=True)
    assert saver.save_reason(moment(10)) == "every 10 updates"
    saver.save({}, place(10))
    assert saver.save_reason(moment(10, batch=11)) is None  # the next batch of an accumulation window
    assert saver.save_reason(moment(20)) == "every 10 updates"
    store.proceed.release()
    saver.wait()
    assert saver.save_reason(moment(10)) is None


def test_ignored_checkpoints_neither_count_nor_are_deleted(tmp_path):
    store = FaultyStore(tmp_path, 10, 20, 30)
    policy = Checkpoint(every=10, keep_last=1).policy()
    saver = Saver(store, policy, background=False, ignored=["00000020", "00000030"])
    assert saver.save_reason(moment(20)) == "every 10 updates"
    saver.save({}, place(15))
    assert store.deleted == ["00000010"] and names(store.saved()) == ["00000015", "00000020", "00000030"]


# Failures


@pytest.mark.parametrize("ask", ["take_finished", "wait", "save"])
def test_a_failure_is_raised_once_by_the_next_call(tmp_path, ask):
    cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    store = FaultyStore(tmp_path, 0)
    store.fails["write"] = cause
    saver = Saver(store, POLICY, background=True)
    saver.save({"weight": torch.ones(2)}, place(10))
    saver.close()  # raises nothing and keeps the failure
    assert saver.has_failed
    store.fails.clear()
    calls = {"take_finished": saver.take_finished, "wait": saver.wait, "save": lambda: saver.save({}, place(20))}
    with pytest.raises(CheckpointFailed, match="update 10 .*No space left on device.*00000000 is complete") as caught:
        calls[ask]()
    assert caught.value.__cause__ is cause and not saver.has_failed
    assert saver.save_reason(moment(10)) == "every 10 updates"  # it does not count as saved
    assert saver.take_finished() == []
    saver.wait()
    assert names(store.saved()) == ["00000000"]
    saver.save({"weight": torch.ones(2)}, place(20))
    saver.wait()
    assert names(saver.take_finished()) == ["00000020"]


@pytest.mark.parametrize(
    ("updates", "advice"), [((), "start the run again"), ((80, 90), "resume the run: 00000090 is complete")]
)
def test_the_error_says_what_where_why_and_what_to_do(tmp_path, updates, advice):
    store = FaultyStore(tmp_path, *updates)
    Store.write(store, {}, place(100, resumable=False))
    store.fails["write"] = PermissionError(errno.EACCES, "denied")
    saver = Saver(store, POLICY, background=False)
    with pytest.raises(CheckpointFailed) as caught:
        saver.save({}, place(120))
    assert str(caught.value) == (
        f"the checkpoint at update 120 could not be written to {tmp_path}: PermissionError: [Errno 13] denied. "
        f"Make it writable, then {advice}"
    )
    assert saver.take_finished() == [] and store.deleted == []


@both
def test_an_old_checkpoint_that_cannot_be_deleted_is_reported_and_the_new_one_is_saved(tmp_path, background):
    store = FaultyStore(tmp_path, 1, 2, 3)
    store.fails["00000001"] = PermissionError(errno.EPERM, "not permitted")
    saver = Saver(store, POLICY, background=background)
    with pytest.raises(CheckpointFailed) as caught:
        saver.save({}, place(10))
        saver.wait()
    assert str(caught.value) == (
        f"the old checkpoint 00000001 could not be deleted from {tmp_path}: PermissionError: [Errno 1] not permitted. "
        "Make it writable, then resume the run: 00000010 is complete"
    )
    assert names(saver.take_finished()) == ["00000010"]
    assert store.deleted == ["00000001", "00000002"]  # the others are deleted all the same
    saver.save({}, place(20))
    saver.wait()
    assert names(saver.take_finished()) == ["00000020"] and store.deleted == ["00000001", "00000002", "00000003"]


def test_a_state_that_cannot_be_saved_raises_at_once(tmp_path):
    class Own(torch.Tensor):
        pass

    saver = Saver(Store(tmp_path), POLICY, background=True)
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta"), torch.ones(2).as_subclass(Own)):
        with pytest.raises(CheckpointFailed, match=r"at update 10 could not be written .*'model\.0\.mask'"):
            saver.save({"model": [{"mask": tensor}]}, place(10))
    assert saver.save_reason(moment(10)) == "every 10 updates"
    endless = []
    endless.append(endless)
    for value in (namedtuple("Pair", "left right")(1, 2), object(), endless):
        with pytest.raises(CheckpointFailed, match="'value"):
            saver.save({"value": value}, place(10))
    saver.save({"weight": torch.ones(2)}, place(10))
    saver.wait()
    assert names(saver.take_finished()) == ["00000010"]


@both
def test_an_interrupt_while_writing_is_raised(tmp_path, background):
    store = FaultyStore(tmp_path)
    store.fails["write"] = KeyboardInterrupt()
    saver = Saver(store, POLICY, background=background)
    with pytest.raises(KeyboardInterrupt):
        saver.save({}, place(10))
        saver.wait()
    saver.wait()


def test_if_no_thread_can_be_started_save_writes(tmp_path, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    saver = Saver(Store(tmp_path), POLICY, background=True)
    saver.save({"weight": torch.ones(2)}, place(10))
    assert names(saver.take_finished()) == ["00000010"]
    saver.close()


# The events of the run


def test_events_are_synced_before_the_checkpoint_is_written(tmp_path, monkeypatch):
    synced, events = [], tmp_path / "events.jsonl"
    events.write_text("{}\n")
    saver = Saver(Store(tmp_path / "checkpoints"), POLICY, background=False)
    monkeypatch.setattr(_disk, "sync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    saver.save({}, place(10), events=events)
    assert synced[0] == str(events) and len(synced) > 1


@pytest.mark.parametrize("problem", ["missing", "failing"])
def test_events_that_cannot_be_synced_prevent_the_checkpoint(tmp_path, monkeypatch, problem):
    store, events = FaultyStore(tmp_path / "checkpoints"), tmp_path / "events.jsonl"
    saver = Saver(store, POLICY, background=True)
    opened = len(os.listdir("/proc/self/fd"))
    if problem == "failing":
        events.touch()

        def fail(file):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(_disk, "sync", fail)
    saver.save({}, place(10), events=events)
    with pytest.raises(CheckpointFailed, match=r"events\.jsonl|Input/output error"):
        saver.wait()
    assert store.writers == [] and len(os.listdir("/proc/self/fd")) == opened
    monkeypatch.undo()
    events.touch()
    saver.save({}, place(10), events=events)
    saver.wait()
    assert names(saver.take_finished()) == ["00000010"]


# Copies for the thread


def state():
    """One value of every kind that a state may hold."""
    whole = torch.arange(12.0).reshape(3, 4)
    return {
        "model": OrderedDict(weight=nn.Parameter(torch.arange(6.0).reshape(2, 3)), count=torch.tensor(7)),
        "optimizer": {0: [torch.ones(2), {"betas": (0.9, torch.zeros(1))}], None: deque([torch.ones(1), 2], maxlen=3)},
        "plain": [None, True, 3, 0.5, "text", b"bytes", torch.float16, {"list": [1, [2]]}],
        "views": [whole[1:, ::2], torch.tensor([3.0]).expand(4), whole.T, torch.tensor([1 + 2j]).conj().resolve_conj()],
        "nothing": torch.empty(0, 4),
    }


def change(tree):
    """Changes every value that can be changed in place."""
    if isinstance(tree, torch.Tensor):
        with torch.no_grad():
            tree.copy_(tree - 1) if 0 not in tree.stride() else None
    elif isinstance(tree, dict):
        for value in tree.values():
            change(value)
        tree["new"] = 1
    elif isinstance(tree, list | deque | tuple):
        for value in tree:
            change(value)
        if not isinstance(tree, tuple):
            tree.append("new")


def test_later_changes_do_not_reach_the_copy(tmp_path):
    store = FaultyStore(tmp_path)
    store.waits = True
    saver = Saver(store, POLICY, background=True)
    expected = Store(tmp_path / "expected")
    expected.write(state(), place(1))
    for update in (10, 20):  # the second one reuses the memory of the first
        given = state()
        saver.save(given, place(update))
        change(given)
        store.proceed.release()
        saver.wait()
        assert same(store.newest().state, expected.newest().state)
    saver.close()
    saver.close()


def pointers(tree):
    if isinstance(tree, torch.Tensor):
        return [tree.data_ptr()] if tree.numel() else []
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple | deque) else ()
    return [pointer for value in values for pointer in pointers(value)]


def test_the_memory_of_copies_is_reused_if_it_fits(tmp_path):
    store = FaultyStore(tmp_path)
    saver = Saver(store, POLICY, background=True)

    def copy_of(given):
        saver.save(given, place(10))
        saver.wait()
        return store.states[-1].tensors

    first = pointers(copy_of(state()))
    assert pointers(copy_of(state())) == first
    before = copy_of({"x": {"a": torch.zeros(2), "b": torch.zeros(2)}})["x"]
    for other in (torch.ones(2, 1), torch.ones(2, dtype=torch.float64)):
        after = copy_of({"x": {"a": other, "b": torch.ones(2)}})["x"]
        assert same(after["a"], other) and after["a"] is not before["a"] and after["b"] is before["b"]
    with torch.inference_mode():
        inference = copy_of({"a": torch.ones(2) * 2})["a"]["a"]
    later = copy_of({"a": nn.Parameter(torch.ones(2)) * 3})["a"]["a"]
    assert later is inference and later.tolist() == [3, 3] and not later.requires_grad and later.grad_fn is None


UNCLOSED = """
import sys, torch
from stoker.checkpoint import Checkpoint, Place, Saver, Store

saver = Saver(Store(sys.argv[1]), Checkpoint(keep_last=9).policy(), background=True)
for update in range(1, 4):
    saver.save({"weight": torch.full((1 << 20,), float(update))}, Place(epoch=1, batch=update, update=update))
"""


def test_a_program_that_exits_while_saving_completes_the_checkpoint(tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", UNCLOSED, str(tmp_path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(os.listdir(tmp_path)) == ["00000001", "00000002", "00000003"]
    found = Store(tmp_path).newest()
    assert found.problems == [] and found.state["weight"].unique().tolist() == [3]


# GPUs


@pytest.mark.cuda
@pytest.mark.parametrize("free", [True, False], ids=["on the GPU", "pinned"])
@both
def test_the_state_of_a_gpu_is_that_between_two_updates(tmp_path, monkeypatch, background, free):
    if not free:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 1))
        torch.cuda.empty_cache()
    store = FaultyStore(tmp_path)
    saver, weight = Saver(store, POLICY, background=background), torch.zeros(1 << 22, device="cuda")
    for update in (10, 20, 30):
        for _ in range(50):  # so that the copy is queued behind unfinished work
            weight.add_(1)
        saver.save({"model": {"weight": weight}, "cpu": torch.ones(1)}, place(update))
        for _ in range(50):
            weight.add_(1)
        saver.wait()
        if background:
            copy = store.states[-1].tensors["model"]["weight"]
            assert copy.is_cuda is free and copy.is_pinned() is not free
        assert store.newest().state["model"]["weight"].unique().tolist() == [10 * update - 50]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.cuda
def test_memory_of_a_gpu_is_reused_and_freed(tmp_path):
    store, weight = FaultyStore(tmp_path), torch.zeros(1 << 22, device="cuda")
    torch.cuda.synchronize()
    before, saver = torch.cuda.memory_allocated(), Saver(store, POLICY, background=True)
    allocated = []
    for update in (10, 20):
        saver.save({"weight": weight}, place(update))
        saver.wait()
        allocated.append(torch.cuda.memory_allocated())
    first, second = (state.tensors["weight"]["weight"].data_ptr() for state in store.states)
    assert first == second
    assert allocated[0] == allocated[1] > before
    store.states.clear()
    saver.close()
    assert torch.cuda.memory_allocated() == before


@pytest.mark.cuda
def test_reading_a_copy_does_not_wait_for_the_training(tmp_path):
    training, seen = torch.cuda.Event(), []

    class ObservingStore(FaultyStore):
        def write(self, state, place):
            if self.waits:
                assert self.proceed.acquire(timeout=60)
                seen.append((state.tensors["weight"]["weight"].cpu().sum().item(), training.query()))
                self.waits = False
            return super().write(state, place)

    store, weight = ObservingStore(tmp_path), torch.ones(1 << 20, device="cuda")
    saver = Saver(store, POLICY, background=True)
    saver.save({"weight": weight}, place(10))  # allocates the memory, which is done once
    saver.wait()
    torch.cuda.synchronize()
    store.waits = True
    saver.save({"weight": weight}, place(20))
    torch.cuda._sleep(int(2e9))  # about a second of work on the training's stream
    training.record()
    store.proceed.release()
    saver.wait()
    assert seen == [(1 << 20, False)]
    torch.cuda.synchronize()
