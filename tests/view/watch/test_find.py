"""Which run is the newest, and waiting for one."""

import os
import threading
from pathlib import Path

import pytest

from stoker.errors import MissingFile
from stoker.view.watch import newest, wait_for


def put(path, age=0):
    path.mkdir(parents=True)
    (path / "events.jsonl").touch()
    os.utime(path / "events.jsonl", (1e9 - age, 1e9 - age))
    return path


def test_the_one_that_was_written_last(tmp_path):
    put(tmp_path / "old", age=100)
    fresh = put(tmp_path / "deep" / "er" / "fresh")
    put(tmp_path / "older", age=200)
    put(tmp_path / ".hidden" / "run", age=-100)
    assert newest(tmp_path) == fresh and newest(tmp_path / "old") == tmp_path / "old"
    assert newest(tmp_path / "nowhere") is None


def test_waiting_ends_when_the_run_begins(tmp_path):
    soon = threading.Timer(0.05, put, [tmp_path / "run"])
    soon.start()
    assert wait_for(tmp_path / "run", every=0.01) == tmp_path / "run"
    soon.join()


def test_waiting_where_no_run_can_begin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFile, match="no run can begin at 'rnus/a': there is no folder 'rnus'; look for a slip"):
        wait_for(Path("rnus/a"))
