"""Removing a checkpoint: first out of sight, and nothing that is not ours."""

import os

from stoker.checkpoint import _disk
from stoker.checkpoint._names import is_leftover
from stoker.checkpoint._remove import remove


def test_it_is_out_of_sight_before_a_file_goes(tmp_path, monkeypatch):
    (tmp_path / "00000010").mkdir()
    for name in ("manifest.json", "shard-00001-model-00001-of-00001.safetensors"):
        (tmp_path / "00000010" / name).touch()
    seen, real = [], _disk.unlink

    def unlink(name, within):
        seen.extend(os.listdir(tmp_path))
        real(name, within)

    monkeypatch.setattr(_disk, "unlink", unlink)
    with _disk.folder(tmp_path) as root:
        remove("00000010", root)
    assert len(seen) == 2 and all(map(is_leftover, seen)) and os.listdir(tmp_path) == []


def test_files_of_others_stay(tmp_path):
    (tmp_path / ".part-00000010-0123abcd").mkdir()
    (tmp_path / ".part-00000010-0123abcd" / "notes.txt").touch()
    with _disk.folder(tmp_path) as root:
        remove(".part-00000010-0123abcd", root)
    assert os.listdir(tmp_path / ".part-00000010-0123abcd") == ["notes.txt"]
