"""Small files of JSON: whole or as they were."""

import json

import pytest

from stoker.errors import BadFile
from stoker.record._jsonfile import read_json, write_json


def test_what_is_written_is_read(tmp_path):
    write_json(tmp_path / "a.json", {"lr": 0.1, "ü": [1, None]})
    assert read_json(tmp_path / "a.json") == {"lr": 0.1, "ü": [1, None]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert read_json(tmp_path / "b.json") is None


def test_a_kill_while_it_is_written_leaves_the_old_one(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", 1)

    def killed(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "a.json", 2)
    monkeypatch.undo()
    assert read_json(tmp_path / "a.json") == 1
    write_json(tmp_path / "a.json", 3)
    assert read_json(tmp_path / "a.json") == 3


def test_strict_json_only(tmp_path):
    with pytest.raises(ValueError, match="Out of range float values"):
        write_json(tmp_path / "a.json", float("nan"))
    for bad in ("{", "[" * 100_000, "\xff"):
        (tmp_path / "a.json").write_bytes(bad.encode("latin-1"))
        with pytest.raises(BadFile, match=r"a\.json: expected JSON, but: "):
            read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(json.dumps({"a": 1}))
    assert read_json(tmp_path / "a.json") == {"a": 1}
