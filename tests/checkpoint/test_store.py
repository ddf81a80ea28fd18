import math
import os
import shutil

import pytest
import torch

from stoker.checkpoint import _disk
from stoker.checkpoint._place import Moment, Place
from stoker.checkpoint._store import Found, Store
from stoker.errors import BadFile, InvalidArgument, MissingFile, WrongType
from tests.checkpoint.test_tree import same


def state_of(number):
    return {"model": {"w": torch.full((3,), float(number))}, "optimizer": {"m": [torch.ones(2)]}, "update": number}


def at(update, **fields):
    return Place(**{"epoch": 1, "batch": 2, "update": update, **fields})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs" / "a" / "checkpoints", run="5f0c")


def entries(store):
    return sorted(os.listdir(store.folder))


def damage(store, name, file="model.safetensors"):
    path = store.folder / name / file
    path.write_bytes(path.read_bytes()[:-1] + b"\xaa")


def test_what_is_written_comes_back(store):
    place = Moment(
        epoch=3, batch=12, update=120, minutes=1.5, reason="every 5 updates", epoch_ended=True,
        values={"loss": 1, "x": math.nan},
    )  # fmt: skip
    saved = store.write(state_of(120), place)
    assert (saved.name, saved.run, saved.epoch, saved.batch, saved.update) == ("00000120", "5f0c", 3, 12, 120)
    assert (saved.minutes, saved.reason, saved.ended, saved.resumable) == (1.5, "every 5 updates", None, True)
    assert saved.values["loss"] == 1.0 and math.isnan(saved.values["x"])
    folder = store.folder / "00000120"
    assert sorted(os.listdir(folder)) == ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert saved.bytes == sum(each.stat().st_size for each in folder.iterdir() if each.name != "manifest.json")
    assert repr(store.saved()) == repr([saved])
    assert same(store.read(saved), state_of(120))
    found = store.newest()
    assert found.saved is not None and found.saved.name == "00000120"
    assert same(found.state, state_of(120)) and found.problems == []


def test_an_empty_state_is_a_state(store):
    saved = store.write({}, at(0))
    assert saved.name == "00000000" and store.read(saved) == {}


def test_nothing_there_is_nothing_found(store):
    assert store.newest() == Found(None, {}, [])
    assert store.saved() == []
    store.clean()
    with pytest.raises(FileNotFoundError):
        store.delete("00000001")
    assert not store.folder.parent.exists()  # looking makes nothing


def test_several_at_one_update_are_numbered_and_sorted(store):
    names = [store.write(state_of(number), at(5)).name for number in range(12)]
    assert names == ["00000005", *(f"00000005.{number}" for number in range(1, 12))]
    store.delete("00000005.3")
    store.write(state_of(99), at(4))
    assert [each.name for each in store.saved()] == ["00000004", *names[:3], *names[4:]]
    assert store.newest().state["update"] == 11
    assert store.write({}, at(5)).name == "00000005.12"  # after all that there are, so that it is the newest


def test_a_name_that_is_taken_by_anything_is_not_used(store):
    store.folder.mkdir(parents=True)
    (store.folder / "00000005").mkdir()
    (store.folder / "00000005.1").write_text("mine")
    assert store.write({}, at(5)).name == "00000005.2"
    assert entries(store) == ["00000005", "00000005.1", "00000005.2"]


def test_newest_is_the_newest_that_is_wanted_and_whole(store):
    for update in (1, 2, 3, 4):
        store.write(state_of(update), at(update, resumable=update != 3))
    assert store.newest(lambda saved: saved.update < 3).state["update"] == 2
    damage(store, "00000004")
    found = store.newest(lambda saved: saved.resumable)
    assert found.state["update"] == 2
    assert found.problems == [
        "00000004/model.safetensors is damaged: its bytes are not those that were written (checksum)"
    ]
    damage(store, "00000002", "manifest.json")
    shutil.rmtree(store.folder / "00000001")
    (store.folder / "00000001").mkdir()
    found = store.newest(lambda saved: saved.resumable)
    assert found.saved is None and found.state == {}
    assert [line.split(" ")[0] for line in found.problems] == [
        "00000004/model.safetensors", "00000002/manifest.json", "00000001/manifest.json",
    ]  # fmt: skip
    assert [each.name for each in store.saved()] == ["00000003", "00000004"]  # as manifests say; the rest is not read


def test_other_runs_are_neither_given_nor_deleted(store):
    other = Store(store.folder, run="beef")
    theirs, ours = other.write(state_of(1), at(1)), store.write(state_of(2), at(2))
    newer = other.write(state_of(3), at(3))
    assert [each.name for each in store.saved()] == [ours.name]
    found = store.newest()
    assert found.state["update"] == 2
    assert found.problems == ["00000003 is of another run ('beef', not '5f0c')"]
    for name in (theirs.name, newer.name):
        with pytest.raises(BadFile, match=r"is of another run \('beef', not '5f0c'\)"):
            store.delete(name)
    with pytest.raises(BadFile, match="is of another run"):
        store.read(theirs)
    assert same(other.read(newer), state_of(3))


def test_deleting_takes_only_what_is_ours(store, tmp_path):
    for update in (1, 2, 3):
        store.write(state_of(update), at(update))
    store.delete("00000001")
    assert entries(store) == ["00000002", "00000003"]
    damage(store, "00000002", "manifest.json")
    with pytest.raises(BadFile, match=r"00000002/manifest\.json"):
        store.delete("00000002")
    with pytest.raises(MissingFile, match="00000009 is not there"):
        store.delete("00000009")
    for name in ("..", "../a", "", "/", "00000003/", "notes.txt", ".part-00000003-abcdef01"):
        with pytest.raises(InvalidArgument, match="is no checkpoint's name; expected one like '00000120'"):
            store.delete(name)
    (store.folder / "00000003").rename(tmp_path / "real")
    (store.folder / "00000003").symlink_to(tmp_path / "real")
    with pytest.raises(BadFile, match="it is no folder, or a link to one"):
        store.delete("00000003")
    assert entries(store) == ["00000002", "00000003"]
    assert (tmp_path / "real" / "state.json").exists()


def test_files_that_somebody_put_into_a_checkpoint_stay(store):
    store.write(state_of(1), at(1))
    (store.folder / "00000001" / "notes.txt").write_text("mine")
    store.delete("00000001")
    [left] = entries(store)
    store.clean()
    assert left.startswith(".gone-00000001-")
    assert [each.name for each in (store.folder / left).iterdir()] == ["notes.txt"]


def test_a_copied_checkpoint_is_not_taken_for_another(store):
    store.write(state_of(1), at(1))
    shutil.copytree(store.folder / "00000001", store.folder / "00000009")
    found = store.newest()
    assert found.state["update"] == 1
    assert found.problems == ["00000009/manifest.json belongs to the checkpoint 00000001, not to 00000009"]


def test_clean_removes_leftovers_and_nothing_else(store, tmp_path):
    store.write(state_of(1), at(1))
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "state.json").write_text("mine")
    keep = [
        "00000001",
        ".part-x",
        ".gone-00000001-abcdef01.txt",
        "notes.txt",
        ".part-00000002-00000003",
        ".part-00000002-00000004",
    ]
    for name in (".part-x", "notes.txt"):
        (store.folder / name).mkdir()
    (store.folder / ".gone-00000001-abcdef01.txt").write_text("mine")
    (store.folder / ".part-00000002-00000003").symlink_to(tmp_path / "real")
    (store.folder / ".part-00000002-00000004").write_text("a file of that name")
    for name in (".part-00000002-00000001", ".gone-00000002.1-00000002"):
        (store.folder / name).mkdir()
        (store.folder / name / "model.safetensors").write_bytes(b"half")
    store.clean()
    assert entries(store) == sorted(keep)
    assert (tmp_path / "real" / "state.json").read_text() == "mine"


def test_a_state_that_cant_be_saved_leaves_nothing(store):
    for wrong, error in (
        ({"a": {1}}, WrongType),
        ({"a": torch.ones(1, device="meta")}, InvalidArgument),
        ([], WrongType),
    ):
        with pytest.raises(error):
            store.write(wrong, at(1))
    with pytest.raises(InvalidArgument, match="a checkpoint's update is a whole number"):
        store.write({}, at(-1))
    with pytest.raises(InvalidArgument, match="manifest would have"):
        Store(store.folder.parent, run="x" * 2**20).write({}, at(1))
    assert not store.folder.exists() and os.listdir(store.folder.parent) == []


def test_what_was_not_written_as_meant_is_taken_away_again(store, monkeypatch):
    """A disk that says yes and writes something else."""
    store.write(state_of(1), at(1))
    real = _disk.write

    def write(file, data):
        return real(file, bytes(data).replace(b"\0\0\0\x40", b"\0\0\1\x40"))

    monkeypatch.setattr(_disk, "write", write)
    with pytest.raises(BadFile, match=r"00000002/model\.safetensors is damaged: its bytes are not those"):
        store.write(state_of(2), at(2))
    assert entries(store) == ["00000001"]


def test_the_folder_is_the_same_after_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store("checkpoints")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.write(state_of(1), at(1))
    assert (tmp_path / "checkpoints" / "00000001" / "manifest.json").exists()


def test_the_folder_may_be_behind_a_link_of_the_users(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk")
    store = Store(tmp_path / "checkpoints")
    store.write(state_of(1), at(1))
    assert store.newest().state["update"] == 1


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "checkpoints").write_text("")
    store = Store(tmp_path / "checkpoints")
    for ask in (store.saved, store.newest):
        with pytest.raises(BadFile, match="checkpoints can't be read: it is no folder"):
            ask()
    with pytest.raises(NotADirectoryError):
        store.write({}, at(1))


def test_no_file_stays_open(store):
    store.write(state_of(1), at(1))
    before = len(os.listdir("/dev/fd"))
    store.write(state_of(2), at(2))
    damage(store, "00000002")
    store.newest()
    store.delete("00000001")
    store.clean()
    assert len(os.listdir("/dev/fd")) == before


def test_folders_that_are_made_are_on_the_disk_as_well(store, tmp_path, monkeypatch):
    synced: list[str] = []
    real = _disk.sync
    monkeypatch.setattr(_disk, "sync", lambda file: (synced.append(os.readlink(f"/proc/self/fd/{file}")), real(file)))
    store.write({}, at(1))
    assert synced[:3] == [str(each) for each in (tmp_path, tmp_path / "runs", tmp_path / "runs" / "a")]
