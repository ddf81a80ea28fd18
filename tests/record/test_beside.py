"""Facts, config and log of a run, as they change."""

import json
import os

from stoker.record._beside import Beside


def test_what_is_there_is_read_once(tmp_path):
    beside = Beside(tmp_path)
    assert not beside.refresh() and (beside.facts, beside.config, list(beside.log)) == ({}, None, [])
    (tmp_path / "run.json").write_text('{"seed": 1}')
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "log.txt").write_text("one\ntwo\ntor")
    assert beside.refresh() and not beside.refresh()
    assert (beside.facts, beside.config, list(beside.log)) == ({"seed": 1}, {"lr": 0.1}, ["one", "two"])
    with (tmp_path / "log.txt").open("a") as file:
        file.write("n\n")
    assert beside.refresh() and list(beside.log) == ["one", "two", "torn"]


def test_another_file_in_its_place(tmp_path):
    beside = Beside(tmp_path)
    (tmp_path / "config.json").write_text("1")
    (tmp_path / "log.txt").write_text("one\ntwo\n")
    beside.refresh()
    (tmp_path / "new").write_text("2")
    (tmp_path / "new").replace(tmp_path / "config.json")
    (tmp_path / "log.txt").write_text("three\n")
    assert beside.refresh() and (beside.config, list(beside.log)) == (2, ["three"])
    (tmp_path / "config.json").unlink()
    assert beside.refresh() and beside.config is None


def test_what_is_damaged_counts_as_empty(tmp_path):
    beside = Beside(tmp_path)
    (tmp_path / "run.json").write_text("[1, 2]")
    (tmp_path / "config.json").write_bytes(b"\xff{")
    (tmp_path / "log.txt").write_bytes(b"\xff\x00\n")
    beside.refresh()
    assert (beside.facts, beside.config, list(beside.log)) == ({}, None, ["\ufffd\x00"])


def test_what_is_no_file_or_far_too_large_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "run.json")
    os.mkfifo(tmp_path / "log.txt")
    (tmp_path / "config.json").write_text(json.dumps("x" * 5_000_000))
    beside = Beside(tmp_path)
    beside.refresh()
    assert (beside.facts, beside.config, list(beside.log)) == ({}, None, [])


def test_of_a_long_log_the_end(tmp_path):
    (tmp_path / "log.txt").write_text("".join(f"line {number}\n" for number in range(100_000)))
    beside = Beside(tmp_path)
    beside.refresh()
    assert len(beside.log) == 1000 and beside.log[-1] == "line 99999"
