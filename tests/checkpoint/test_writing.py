"""One checkpoint on its way to the disk: the journal first, then it, then old ones go; and what failures say."""

import errno
import os
from pathlib import Path

import pytest
import torch

from stoker.checkpoint import _disk
from stoker.checkpoint._copy import Copied, Copies
from stoker.checkpoint._place import Place, Saved, fields_of
from stoker.checkpoint._policy import composed, every, keep_last
from stoker.checkpoint._writing import Writing, with_new
from stoker.distributed import World
from stoker.errors import CheckpointFailed
from tests.checkpoint.test_policy import saved

POLICY = composed([every("epoch")], [keep_last(1)])


class MemoryStore:
    """A store without a disk, which fails where it is told to."""

    folder = Path("runs/digits/checkpoints")
    world = World()

    def __init__(self, saved=(), *, fails=None):
        self.states = {each.name: (each, None) for each in saved}
        self.fails = fails or {}  # "write" or the name of a checkpoint: the exception
        self.deleted = []

    def saved(self):
        return [each for each, _ in self.states.values()]

    def write(self, state, place):
        if "write" in self.fails:
            raise self.fails["write"]
        new = Saved(**fields_of(place), name=f"{place.update:08}", run="5f0c", time=0.0, bytes=8)
        self.states[new.name] = (new, {key: value.tolist() for key, value in state.items()})
        return new

    def delete(self, name):
        self.deleted.append(name)
        if name in self.fails:
            raise self.fails[name]
        del self.states[name]


def written(store, place=None, *, events=None, policy=POLICY):
    writing = Writing(store, policy, place or Place(epoch=1, batch=4, update=120), events, store.saved())
    writing.run(Copied({"weight": torch.ones(2)}))
    assert writing.over and writing.seconds >= 0
    return writing


def test_a_checkpoint_is_written_and_old_ones_are_deleted():
    store = MemoryStore([saved(80), saved(100)])
    writing = written(store)
    assert store.states["00000120"][1] == {"weight": [1, 1]}
    assert [each.name for each in writing.written] == ["00000120"] == [each.name for each in writing.saved]
    assert store.deleted == ["00000080", "00000100"] and writing.failure is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
            "OSError: [Errno 28] No space left on device. Make room there",
        ),
        (
            PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
            "PermissionError: [Errno 13] Permission denied. Make it writable",
        ),
        (ValueError("odd"), "ValueError: odd. See to that"),
    ],
    ids=["full", "denied", "odd"],
)
@pytest.mark.parametrize(
    ("there", "rest"),
    [
        ([], "start the run again: there is no other one"),
        ([saved(80), saved(100), saved(110, resumable=False)], "resume the run: 00000100 is whole"),
    ],
    ids=["first", "later"],
)
def test_a_failure_says_what_where_why_and_what_is_left(error, text, there, rest):
    store = MemoryStore(there, fails={"write": error})
    writing = written(store)
    assert isinstance(writing.failure, CheckpointFailed) and writing.failure.__cause__ is error
    assert str(writing.failure) == (
        f"the checkpoint at update 120 could not be written to runs/digits/checkpoints: {text}, then {rest}"
    )
    assert writing.written == [] and writing.saved == there and store.deleted == []


def test_an_old_one_that_stays_is_a_failure_and_the_new_one_is_saved():
    denied = PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    store = MemoryStore([saved(80), saved(100)], fails={"00000080": denied})
    writing = written(store)
    assert str(writing.failure) == (
        "the old checkpoint 00000080 could not be deleted from runs/digits/checkpoints: PermissionError: [Errno 1] "
        "Operation not permitted. Make it writable, then resume the run: 00000120 is whole"
    )
    assert writing.failure.__cause__ is denied
    assert [each.name for each in writing.written] == ["00000120"] == [each.name for each in writing.saved]
    assert store.deleted == ["00000080", "00000100"]  # the others are deleted all the same


def test_a_state_that_can_not_be_copied_is_a_failure_as_well():
    writing = Writing(MemoryStore(), POLICY, Place(epoch=1, batch=4, update=120), None, [])
    with pytest.raises(CheckpointFailed, match=r"at update 120 could not be written .*'mask'.*See to that, then start"):
        writing.copy({"mask": torch.eye(2).to_sparse()}, Copies())


def test_a_policy_that_fails_is_its_own_failure():
    def broken(here, there):
        raise ZeroDivisionError("mine")

    writing = written(MemoryStore(), policy=composed([], [broken]))
    assert isinstance(writing.failure, ZeroDivisionError) and len(writing.written) == 1


def test_the_policy_is_asked_about_the_place_that_was_saved():
    asked = []

    def policy(here, there):
        asked.append((here, [each.update for each in there]))
        return []

    place = Place(epoch=2, batch=4, update=90, minutes=3.5, values={"valid/loss": 0.5})
    written(MemoryStore([saved(80), saved(100)]), place, policy=composed([], [policy]))
    ((here, updates),) = asked
    assert fields_of(here) == fields_of(place) and updates == [80, 90, 100]


def test_the_journal_is_on_the_disk_before_the_checkpoint(tmp_path, monkeypatch):
    order, journal = [], tmp_path / "events.jsonl"
    journal.write_text("{}\n")
    monkeypatch.setattr(_disk, "sync", lambda file: order.append(os.readlink(f"/proc/self/fd/{file}")))

    class Store(MemoryStore):
        def write(self, state, place):
            order.append("write")
            return super().write(state, place)

    assert written(Store(), events=journal).failure is None
    assert order == [str(journal), "write"]


def test_a_journal_that_can_not_be_synced_leaves_no_checkpoint(tmp_path, monkeypatch):
    store = MemoryStore([saved(100)])
    writing = written(store, events=tmp_path / "events.jsonl")
    assert isinstance(writing.failure.__cause__, FileNotFoundError) and list(store.states) == ["00000100"]

    def broken(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(_disk, "sync", broken)
    (tmp_path / "events.jsonl").touch()
    opened = len(os.listdir("/proc/self/fd"))
    writing = written(store, events=tmp_path / "events.jsonl")
    assert writing.failure.__cause__.errno == errno.EIO and list(store.states) == ["00000100"]
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_new_one_comes_after_those_of_its_update():
    there = [saved(1), saved(2), saved(2, suffix=".1"), saved(3)]
    assert [each.name for each in with_new(there, saved(2, suffix=".2"))] == [
        *("00000001", "00000002", "00000002.1", "00000002.2", "00000003")
    ]
