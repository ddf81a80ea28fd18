import errno
import os
import zlib

import pytest
import torch
from safetensors.torch import load_file

from stoker.checkpoint import _disk, _write
from stoker.checkpoint._manifest import Sum
from stoker.checkpoint._tree import split
from stoker.checkpoint._write import new_file, write_state
from stoker.errors import InvalidArgument


@pytest.fixture
def root(tmp_path):
    with _disk.folder(tmp_path) as opened:
        yield opened


def test_sums_are_those_of_the_files(tmp_path, root, monkeypatch):
    monkeypatch.setattr(_write, "_PIECE", 7)  # many pieces, also of a small state
    state = {
        "model": {"w": torch.randn(50), "c": torch.ones(2, dtype=torch.complex128)},
        "loader": {"order": torch.arange(9)},
        "seen": 3,
    }
    sums = write_state(*split(state), root)
    assert list(sums) == ["state.json", "model.safetensors", "loader.safetensors"]
    assert sorted(sums) == sorted(os.listdir(tmp_path))
    for name, said in sums.items():
        content = (tmp_path / name).read_bytes()
        assert said == Sum(len(content), f"{zlib.crc32(content):08x}")
    assert torch.equal(load_file(tmp_path / "model.safetensors")["w"], state["model"]["w"])


def test_what_the_system_takes_in_bites_is_written_whole(tmp_path, root, monkeypatch):
    real = _disk.write
    monkeypatch.setattr(_disk, "write", lambda file, data: real(file, data[: max(1, len(data) // 2)]))
    with new_file("x", root) as file:
        file.write(bytes(range(256)) * 9)
    assert (tmp_path / "x").read_bytes() == bytes(range(256)) * 9


def test_a_file_is_synced_before_it_is_closed_and_not_after_an_exception(root, monkeypatch):
    done: list[str] = []
    for name in ("sync", "close"):
        real = getattr(_disk, name)
        monkeypatch.setattr(_disk, name, lambda file, name=name, real=real: (done.append(name), real(file)))
    with new_file("a", root):
        pass
    assert done == ["sync", "close"]
    with pytest.raises(ZeroDivisionError), new_file("b", root):
        1 / 0
    assert done == ["sync", "close", "close"]


def test_a_failing_close_of_what_was_written_is_a_failure(root, monkeypatch):
    def close(file):
        os.close(file)
        raise OSError(errno.EDQUOT, "no more")

    monkeypatch.setattr(_disk, "close", close)
    with pytest.raises(OSError, match="no more"), new_file("a", root):
        pass


def test_too_long_a_text_is_refused_before_anything_is_written(tmp_path, root, monkeypatch):
    monkeypatch.setitem(_write.LARGEST, "state.json", 10)
    with pytest.raises(
        InvalidArgument, match=r"plain part of the state has 12 bytes as text, at most 10 are saved; keep long lists"
    ):
        write_state({"a": "long"}, {}, root)
    assert os.listdir(tmp_path) == []
