import errno
import os

import pytest
import torch

from stoker.checkpoint import _disk
from stoker.checkpoint._manifest import LARGEST
from stoker.checkpoint._place import Place
from stoker.checkpoint._store import Store
from stoker.errors import BadFile, MissingFile

STATE = {"model": {"w": torch.arange(6.0)}, "seen": (1, 2)}


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "checkpoints", run="r")
    store.write(STATE, Place(epoch=0, batch=0, update=7))
    return store


def where(store, name=""):
    return store.folder / "00000007" / name


def refused(store, text, kind=BadFile):
    [saved] = store.saved()
    with pytest.raises(kind, match=text):
        store.read(saved)


def test_every_kind_of_damage_is_named(store):
    weights = where(store, "model.safetensors")
    content = weights.read_bytes()
    for changed, text in (
        (content[:-1], r"00000007/model\.safetensors has \d+ bytes; \d+ were written"),
        (content + b"\0", r"model\.safetensors has \d+ bytes; \d+ were written"),
        (b"", r"model\.safetensors has 0 bytes; \d+ were written"),
        (
            content[:-1] + b"\1",
            r"model\.safetensors is damaged: its bytes are not those that were written \(checksum\)",
        ),
        (content[:9] + b"!" + content[10:], r"model\.safetensors: its header is not the JSON"),
        (bytes(len(content)), r"model\.safetensors: its header is not the JSON"),
        (b"\xff" * len(content), r"model\.safetensors: its header claims .* bytes; at most"),
    ):
        weights.write_bytes(changed)
        refused(store, text)
    weights.unlink()
    refused(store, r"model\.safetensors is not there", MissingFile)
    weights.write_bytes(content)
    where(store, "state.json").write_bytes(b"x" * where(store, "state.json").stat().st_size)
    refused(store, r"state\.json is damaged: its bytes are not those")


def test_links_pipes_and_folders_are_not_read(store, tmp_path):
    weights = where(store, "model.safetensors")
    weights.rename(tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    refused(store, r"model\.safetensors can't be read: it is a link, which is not followed")
    weights.unlink()
    os.mkfifo(weights)
    refused(store, r"model\.safetensors can't be read: it is no plain file")
    weights.unlink()
    weights.mkdir()
    refused(store, r"model\.safetensors can't be read: it is no plain file")


def test_a_checkpoint_behind_a_link_is_not_read(store, tmp_path):
    [saved] = store.saved()
    where(store).rename(tmp_path / "elsewhere")
    where(store).symlink_to(tmp_path / "elsewhere")
    assert store.saved() == []
    with pytest.raises(BadFile, match=r"00000007 can't be read: it is no folder, or a link to one"):
        store.read(saved)


def test_what_the_manifest_doesnt_name_is_not_opened(store, monkeypatch):
    (where(store) / "more.safetensors").write_bytes(b"junk")
    os.mkfifo(where(store) / "notes.txt")
    opened: list[str] = []
    real = _disk.open_file
    monkeypatch.setattr(_disk, "open_file", lambda name, within: (opened.append(name), real(name, within))[1])
    assert store.newest().problems == []
    assert set(opened) == {"manifest.json", "state.json", "model.safetensors"}


def test_sizes_are_compared_before_memory_is_taken(store, monkeypatch):
    def read(file, memory):
        raise AssertionError("read")

    saved = store.saved()[0]
    for name, size in (
        ("model.safetensors", 2**40),
        ("state.json", 2**40),
        ("manifest.json", LARGEST["manifest.json"] + 1),
    ):
        path = where(store, name)
        content = path.read_bytes()
        os.truncate(path, size)  # mostly a hole
        with monkeypatch.context() as patched:
            if name == "manifest.json":
                patched.setattr(_disk, "read", read)
            with pytest.raises(BadFile, match=f"{name} has {size:,} bytes"):
                store.read(saved)
        path.write_bytes(content)
    assert torch.equal(store.read(saved)["model"]["w"], STATE["model"]["w"])


def test_what_the_process_lacks_is_not_taken_for_damage(store, monkeypatch):
    """Nobody should lose an epoch because there were too many open files for a moment."""

    def failing(code):
        def open_file(name, within):
            raise OSError(code, os.strerror(code))

        return open_file

    for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        monkeypatch.setattr(_disk, "open_file", failing(code))
        with pytest.raises(OSError) as caught:
            store.newest()
        assert caught.value.errno == code and not isinstance(caught.value, BadFile)
    for code in (errno.EIO, errno.EACCES, errno.ESTALE):
        monkeypatch.setattr(_disk, "open_file", failing(code))
        assert store.newest().problems == [f"00000007/manifest.json can't be read: {os.strerror(code)}"]
