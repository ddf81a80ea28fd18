"""Requests to a run through its control file."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from stoker.errors import InvalidArgument, MissingFile
from stoker.record import Control, Request, send_request


def test_a_request_is_returned_once(run):
    control = Control(run.path)
    assert control.poll() is None
    name = send_request(run.path, "save", by="watch")
    found = control.poll()
    assert isinstance(found, Request) and (found.action, found.by, found.id) == ("save", "watch", name)
    assert control.poll() is None
    name = send_request(run.path / "events.jsonl", "stop", by="\x1b[31mred\x07" + "x" * 1000)
    found = control.poll()
    assert found.action == "stop" and found.by.isprintable() and found.by.startswith("[31mred") and len(found.by) == 80
    written = json.loads((run.path / "control.json").read_text())
    assert written.keys() == {"ask", "id", "time", "by"} and written["id"] == name and written["time"] > 1e9
    assert not list(run.path.glob(".control*"))
    with pytest.raises(InvalidArgument, match='a run can be asked to "stop" or to "save"'):
        send_request(run.path, "explode")
    (run.path / "control.json").unlink()
    os.mkfifo(run.path / "control.json")  # to open it would wait for ever
    assert control.poll() is None


def test_a_request_to_an_earlier_process_is_ignored(run):
    send_request(run.path, "stop")
    control = Control(run.path)
    assert control.poll() is None
    os.utime(run.path / "control.json")  # touched, but the same request
    assert control.poll() is None


def test_a_request_to_a_run_without_a_process_is_an_error(run):
    run.close()
    with pytest.raises(InvalidArgument, match=r"digits' can't be asked to stop: the run has no living process"):
        send_request(run.path, "stop")
    assert not (run.path / "control.json").exists()
    with pytest.raises(MissingFile, match="there is no run at .*digit'; did you mean 'digits'"):
        send_request(run.path.parent / "digit", "stop")


def test_a_file_that_cannot_be_written_is_an_error(run):
    (run.path / "control.json").mkdir()
    with pytest.raises(InvalidArgument, match=r"can't be asked to save: .*[Dd]irectory"):
        send_request(run.path, "save")
    assert not list(run.path.glob(".control*"))
    assert Control(run.path).poll() is None


def test_of_many_simultaneous_requests_one_arrives(run):
    control = Control(run.path)
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda _: send_request(run.path, "save"), range(40)))
    assert control.poll().id in names
    assert control.poll() is None


HOSTILE = {
    "empty": b"",
    "torn": b'{"ask": "stop", "id"',
    "list": b'["stop"]',
    "unknown action": b'{"ask": "explode", "id": "1", "time": 1}',
    "large time": b'{"ask": "stop", "id": "1", "time": 1' + b"0" * 400 + b"}",
    "deep": b"[" * 4000,
    "huge": b'{"ask": "stop", "id": "1", "time": 1}' + b" " * 5000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_request_is_ignored(run, name):
    control = Control(run.path)
    (run.path / "control.json").write_bytes(HOSTILE[name])
    assert control.poll() is None
    send_request(run.path, "save")
    assert control.poll().action == "save"
