"""A store writes, finds, reads and deletes the checkpoints of one run."""

import ast
import errno
import json
import math
import os
import shutil
import zlib
from pathlib import Path

import pytest
import torch

import stoker.checkpoint
from stoker.checkpoint import Found, Moment, Store, _disk
from stoker.errors import BadFile, InvalidArgument, MissingFile, WrongType
from tests.checkpoint.states import place, same


def state_of(number):
    return {"model": {"w": torch.full((3,), float(number))}, "optimizer": {"m": [torch.ones(2)]}, "update": number}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "runs" / "a" / "checkpoints", run="5f0c")


def entries(store):
    return sorted(os.listdir(store.folder))


def damage(store, name, file="model.safetensors"):
    path = store.folder / name / file
    path.write_bytes(path.read_bytes()[:-1] + b"\xaa")


def open_files():
    return len(os.listdir("/dev/fd"))


# Writing and finding


def test_a_written_state_is_read_back(store):
    here = Moment(
        epoch=3, batch=12, update=120, minutes=1.5, reason="every 5 updates", epoch_ended=True,
        values={"loss": 1, "x": math.nan},
    )  # fmt: skip
    saved = store.write(state_of(120), here)
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


def test_without_checkpoints_nothing_is_found_or_created(store):
    assert store.newest() == Found(None, {}, [])
    assert store.saved() == []
    store.clean()
    store.delete("00000001")
    assert not store.folder.parent.exists()


def test_checkpoints_at_the_same_update_are_numbered(store):
    names = [store.write(state_of(number), place(5)).name for number in range(12)]
    assert names == ["00000005", *(f"00000005.{number}" for number in range(1, 12))]
    store.delete("00000005.3")
    store.write(state_of(99), place(4))
    assert [each.name for each in store.saved()] == ["00000004", *names[:3], *names[4:]]
    assert store.newest().state["update"] == 11
    store.write(state_of(100), place(100_000_000))
    assert store.newest().state["update"] == 100  # sorted by number, not by text
    assert store.write({}, place(5)).name == "00000005.12"  # the highest number plus one, so that it is the newest


def test_other_names_are_not_checkpoints(store):
    store.write(state_of(7), place(7))
    for name in (
        *("120", "0000012", "000000120", "00000120.0", "00000120.01", "00000120.", "00000120.1.2", "00000120\n"),
        *("-0000120", " 00000120", "0000012a", "٠٠٠٠٠١٢٠", "best", "9" * 19, "00000120." + "9" * 10, "1_000_000"),
    ):
        shutil.copytree(store.folder / "00000007", store.folder / name)
    assert [each.name for each in store.saved()] == ["00000007"]
    assert store.newest().problems == []


def test_newest_finds_the_newest_that_is_wanted_and_intact(store):
    for update in (1, 2, 3, 4):
        store.write(state_of(update), place(update, resumable=update != 3))
    assert store.newest(lambda saved: saved.update < 3).state["update"] == 2
    damage(store, "00000004")
    found = store.newest(lambda saved: saved.resumable)
    assert found.state["update"] == 2
    assert found.problems == ["00000004/model.safetensors is damaged: its checksum does not match"]
    damage(store, "00000002", "manifest.json")
    shutil.rmtree(store.folder / "00000001")
    (store.folder / "00000001").mkdir()
    found = store.newest(lambda saved: saved.resumable)
    assert found.saved is None and found.state == {}
    assert [line.split(" ")[0].rstrip(":") for line in found.problems] == [
        "00000004/model.safetensors", "00000002/manifest.json", "00000001/manifest.json",
    ]  # fmt: skip
    assert [each.name for each in store.saved()] == ["00000003", "00000004"]  # which reads manifests only


def test_checkpoints_of_other_runs_are_neither_returned_nor_deleted(store):
    other = Store(store.folder, run="beef")
    theirs = store.write(state_of(1), place(1))
    newer = other.write(state_of(3), place(3))
    assert [each.name for each in store.saved()] == ["00000001"]
    found = store.newest()
    assert found.state["update"] == 1 and found.problems == ["00000003 belongs to another run ('beef', not '5f0c')"]
    with pytest.raises(BadFile, match="belongs to another run"):
        store.delete("00000003")
    with pytest.raises(BadFile, match="belongs to another run"):
        other.read(theirs)
    assert same(other.read(newer), state_of(3))


def test_the_directory_may_be_a_link_but_not_a_file(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    store = Store(tmp_path / "link")
    store.write(state_of(1), place(1))
    assert store.newest().state["update"] == 1
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    for ask in (store.saved, store.newest):
        with pytest.raises(BadFile, match="file cannot be read: Not a directory"):
            ask()
    with pytest.raises(NotADirectoryError):
        store.write({}, place(1))


def test_a_state_that_cannot_be_saved_leaves_nothing(store):
    for wrong, error in (
        ({"a": {1}}, WrongType),
        ({"a": torch.ones(1, device="meta")}, InvalidArgument),
        ([], WrongType),
    ):
        with pytest.raises(error):
            store.write(wrong, place(1))
    with pytest.raises(InvalidArgument, match="update of a checkpoint is an integer"):
        store.write({}, place(-1, batch=0))
    assert not store.folder.exists()
    with pytest.raises(BadFile, match=r"manifest has at most 1,048,576"):
        store.write({}, place(1, reason="x" * 2**20))
    assert os.listdir(store.folder) == []


# Deleting and cleaning


def test_only_checkpoints_of_the_run_are_deleted(store, tmp_path):
    for update in (1, 2, 3):
        store.write(state_of(update), place(update))
    store.delete("00000001")
    assert entries(store) == ["00000002", "00000003"]
    damage(store, "00000002", "manifest.json")
    with pytest.raises(BadFile, match=r"00000002/manifest\.json"):
        store.delete("00000002")
    store.delete("00000009")  # somebody has deleted it already
    for name in ("..", "../a", "", "/", "00000003/", "notes.txt", ".part-00000003-abcdef01"):
        with pytest.raises(InvalidArgument, match="is not the name of a checkpoint; expected one such as '00000120'"):
            store.delete(name)
    (store.folder / "00000003").rename(tmp_path / "real")
    (store.folder / "00000003").symlink_to(tmp_path / "real")
    with pytest.raises(BadFile, match="00000003 cannot be read"):
        store.delete("00000003")
    assert entries(store) == ["00000002", "00000003"]
    assert (tmp_path / "real" / "state.json").exists()


def test_a_checkpoint_is_renamed_before_a_file_of_it_is_deleted(store, monkeypatch):
    store.write(state_of(10), place(10))
    seen, unlink = [], _disk.unlink

    def watched_unlink(path):
        seen.extend(os.listdir(store.folder))
        unlink(path)

    monkeypatch.setattr(_disk, "unlink", watched_unlink)
    store.delete("00000010")
    assert len(seen) == 4 and all(name.startswith(".gone-00000010-") for name in seen) and entries(store) == []


def test_files_that_the_user_put_into_a_checkpoint_stay(store):
    store.write(state_of(1), place(1))
    (store.folder / "00000001" / "notes.txt").write_text("mine")
    store.delete("00000001")
    [left] = entries(store)
    store.clean()
    assert left.startswith(".gone-00000001-")
    assert [each.name for each in (store.folder / left).iterdir()] == ["notes.txt"]


def test_clean_removes_leftovers_and_nothing_else(store, tmp_path):
    store.write(state_of(1), place(1))
    assert not store.has_leftovers
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "state.json").write_text("mine")
    kept = ["00000001", ".part-x", ".gone-00000001-abcdef01.txt", "notes.txt"]
    kept += [".part-00000002-00000003", ".part-00000002-00000004", ".part-120-abcdef01", ".other-00000120-abcdef01"]
    for name in (".part-x", "notes.txt", ".part-120-abcdef01", ".other-00000120-abcdef01"):
        (store.folder / name).mkdir()
    (store.folder / ".gone-00000001-abcdef01.txt").write_text("mine")
    (store.folder / ".part-00000002-00000003").symlink_to(tmp_path / "real")
    (store.folder / ".part-00000002-00000004").write_text("a file of that name")
    for name in (".part-00000002-00000001", ".gone-00000002.1-00000002"):
        (store.folder / name).mkdir()
        (store.folder / name / "model.safetensors").write_bytes(b"half")
    assert store.has_leftovers
    store.clean()
    assert entries(store) == sorted(kept)
    assert (tmp_path / "real" / "state.json").read_text() == "mine"


# Reading


def test_every_kind_of_damage_is_named(store):
    saved = store.write(state_of(7), place(7))
    weights = store.folder / "00000007" / "model.safetensors"
    content = weights.read_bytes()

    def refused(text, kind=BadFile):
        with pytest.raises(kind, match=text):
            store.read(saved)

    for changed, text in (
        (content[:-1], r"00000007/model\.safetensors has \d+ bytes; expected \d+"),
        (content + b"\0", r"model\.safetensors has \d+ bytes; expected \d+"),
        (content[:-1] + b"\1", r"model\.safetensors is damaged: its checksum does not match"),
        (content[:9] + b"!" + content[10:], r"model\.safetensors: the header: expected JSON"),
        (b"\xff" * len(content), r"model\.safetensors: the header claims .* bytes; at most"),
    ):
        weights.write_bytes(changed)
        refused(text)
    weights.unlink()
    refused(r"model\.safetensors does not exist", MissingFile)
    before = open_files()
    os.mkfifo(weights)
    refused(r"model\.safetensors cannot be read: it is not a regular file")
    assert open_files() == before


def test_only_the_files_of_the_manifest_are_opened(store, monkeypatch):
    store.write({"model": {"w": torch.ones(2)}}, place(7))
    (store.folder / "00000007" / "more.safetensors").write_bytes(b"junk")
    os.mkfifo(store.folder / "00000007" / "notes.txt")
    opened: list[str] = []
    real = _disk.open_file
    monkeypatch.setattr(_disk, "open_file", lambda path: (opened.append(path.name), real(path))[1])
    assert store.newest().problems == []
    assert set(opened) == {"manifest.json", "state.json", "model.safetensors"}


def test_errors_of_the_process_are_not_taken_for_damage(store, monkeypatch):
    """Too many open files for a moment must not make a run fall back to an older checkpoint."""
    store.write(state_of(7), place(7))

    def fail(code):
        def open_file(path):
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(_disk, "open_file", open_file)

    for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        fail(code)
        with pytest.raises(OSError) as caught:
            store.newest()
        assert caught.value.errno == code and not isinstance(caught.value, BadFile)
    for code in (errno.EIO, errno.EACCES, errno.ESTALE):
        fail(code)
        assert store.newest().problems == [f"00000007/manifest.json cannot be read: {os.strerror(code)}"]


# The disk


def test_short_writes_are_continued_and_checksums_are_those_of_the_files(store, monkeypatch):
    real = _disk.write
    monkeypatch.setattr(_disk, "write", lambda file, data: real(file, data[: max(1, len(data) // 2)]))
    saved = store.write({"model": {"w": torch.randn(50)}, "loader": {"order": torch.arange(9)}}, place(1))
    assert store.newest().problems == []
    folder = store.folder / saved.name
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        assert entry == {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}


def test_a_disk_that_writes_something_else_is_noticed(store, monkeypatch):
    store.write(state_of(1), place(1))
    real = _disk.write
    monkeypatch.setattr(
        _disk, "write", lambda file, data: real(file, bytes(data).replace(b"\0\0\0\x40", b"\0\0\1\x40"))
    )
    with pytest.raises(BadFile, match=r"00000002/model\.safetensors is damaged: its checksum does not match"):
        store.write(state_of(2), place(2))
    assert entries(store) == ["00000001"]


def test_new_directories_are_synced(store, tmp_path, monkeypatch):
    synced: list[str] = []
    real = _disk.sync_folder
    monkeypatch.setattr(_disk, "sync_folder", lambda path: (synced.append(path), real(path)))
    store.write({}, place(1))
    assert synced[:3] == [tmp_path, tmp_path / "runs", tmp_path / "runs" / "a"]


def test_only_one_module_touches_the_disk():
    """Fault injection replaces the functions of that module, so other uses of the disk would not be tested."""
    for path in Path(stoker.checkpoint.__file__).parent.glob("*.py"):
        if path.name == "_disk.py":
            continue
        tree = ast.parse(path.read_text())
        used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        allowed = {"os.PathLike", "os.path", "os.path.abspath", "os.sep"}
        assert {each for each in used if each.startswith("os.")} <= allowed, path
        called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        assert "open" not in called
        assert not {each for each in called if each.endswith((".open", ".read_bytes", ".write_bytes"))}
