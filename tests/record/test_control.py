"""The control file: who may ask, what is heard, and what is ignored."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.errors import InvalidArgument, MissingFile
from stoker.record import Control, Request, Run, ask


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path / "digits")
    yield run
    run.close()


def test_a_request_is_heard_once(run):
    control = Control(run.path)
    assert control.asked() is None
    name = ask(run.path, "save", by="watch")
    found = control.asked()
    assert isinstance(found, Request) and (found.what, found.by, found.id) == ("save", "watch", name)
    assert control.asked() is None
    ask(run.path / "events.jsonl", "stop")
    assert control.asked().what == "stop"


def test_the_file_is_what_the_contract_says_and_nothing_else_is_left(run):
    name = ask(run.path, "stop", by="ui")
    found = json.loads((run.path / "control.json").read_text())
    assert found.pop("time") > 1e9
    assert found == {"ask": "stop", "id": name, "by": "ui"}
    assert not list(run.path.glob(".control*"))


def test_what_was_asked_before_the_process_began_is_not_obeyed(run):
    ask(run.path, "stop")
    control = Control(run.path)
    assert control.asked() is None
    os.utime(run.path / "control.json")  # touched, but the same request
    assert control.asked() is None


def test_a_run_that_nobody_writes_is_refused(run):
    run.close()
    with pytest.raises(InvalidArgument, match=r"digits' can't be asked to stop: no living process writes that run"):
        ask(run.path, "stop")
    assert not (run.path / "control.json").exists()
    with pytest.raises(MissingFile, match="there is no run at .*digit'; did you mean 'digits'"):
        ask(run.path.parent / "digit", "stop")


def test_other_wishes_are_refused(run):
    with pytest.raises(InvalidArgument, match='a run can be asked to "stop" or to "save"'):
        ask(run.path, "explode")


def test_a_directory_that_cannot_be_written_is_told(run):
    (run.path / "control.json").mkdir()
    with pytest.raises(InvalidArgument, match=r"can't be asked to save: .*[Dd]irectory"):
        ask(run.path, "save")
    assert not list(run.path.glob(".control*"))
    assert Control(run.path).asked() is None


def test_many_ask_at_once_and_one_of_them_is_heard(run):
    control = Control(run.path)
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: ask(run.path, "save"), range(40)))
    assert control.asked().id in names
    assert control.asked() is None


HOSTILE = {
    "empty": b"",
    "torn": b'{"ask": "stop", "id"',
    "binary": bytes(range(256)),
    "list": b'["stop"]',
    "other wish": b'{"ask": "explode", "id": "1", "time": 1}',
    "wish of another type": b'{"ask": {"stop": 1}, "id": "1", "time": 1}',
    "no id": b'{"ask": "stop", "time": 1}',
    "number for an id": b'{"ask": "stop", "id": 7, "time": 1}',
    "no time": b'{"ask": "stop", "id": "1"}',
    "large time": b'{"ask": "stop", "id": "1", "time": 1' + b"0" * 400 + b"}",
    "deep": b"[" * 4000,
    "huge": b'{"ask": "stop", "id": "1", "time": 1}' + b" " * 5000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_request_is_ignored(run, name):
    control = Control(run.path)
    (run.path / "control.json").write_bytes(HOSTILE[name])
    assert control.asked() is None
    ask(run.path, "save")
    assert control.asked().what == "save"


def test_a_pipe_in_its_place_does_not_hold_the_run_up(run):
    control = Control(run.path)
    os.mkfifo(run.path / "control.json")
    assert control.asked() is None


def test_who_asked_goes_to_terminals_and_is_cleaned(run):
    control = Control(run.path)
    ask(run.path, "stop", by="\x1b[31mred\x07" + "x" * 1000)
    by = control.asked().by
    assert by.isprintable() and by.startswith("[31mred") and len(by) == 80


def test_a_look_without_news_reads_nothing(run, monkeypatch):
    control = Control(run.path)
    ask(run.path, "stop")
    control.asked()
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda _: pytest.fail("it was read"))
    assert control.asked() is None
