"""The lock of a run: who has it is named, and a kill gives it back."""

import io
import signal
import subprocess
import sys

import pytest

from stoker.errors import RunExists
from stoker.record import Record
from stoker.record._lock import give_back, is_written, take
from tests.record.stories import LIGHT

HOLDER = (
    LIGHT
    + """
from stoker.record import Event, Record
record = Record(sys.argv[1])
record.append(Event("note"))
print("taken", flush=True)
sys.stdin.read()
"""
)

# A worker is forked and outlives its killed parent, as long as its stdin is open.
FORKING = (
    LIGHT
    + """
import os
from stoker.record import Event, Record
record = Record(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""
)

ENDING_FORK = (
    LIGHT
    + """
import os
from stoker.record import Event, Record
record = Record(sys.argv[1])
if os.fork() == 0:
    record.close()
    os._exit(0)
os.wait()
print("ended", flush=True)
sys.stdin.read()
record.append(Event("note", text="of the parent"))
record.close()
"""
)


def started(text, path):
    command = [sys.executable, "-c", text, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_the_one_who_has_it_is_named_and_its_kill_gives_it_back(tmp_path):
    path = tmp_path / "events.jsonl"
    holder = started(HOLDER, path)
    try:
        assert is_written(path)
        text = f"events.jsonl' is being written by process {holder.pid}; wait until it has ended, or choose another"
        with pytest.raises(RunExists, match=text):
            Record(path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert not is_written(path) and (tmp_path / ".events.jsonl.lock").exists()
    record = Record(path)
    assert [event.kind for event in record.events] == ["note"]
    record.close()
    assert [path.name for path in tmp_path.iterdir()] == ["events.jsonl"]


def test_this_process_itself_and_a_process_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.record._lock._TRIES", 1)
    record = Record(tmp_path / "events.jsonl")
    with pytest.raises(RunExists, match="by this process; close that run first"):
        Record(tmp_path / "events.jsonl")
    note = tmp_path / ".events.jsonl.lock"
    for said, told in [
        ('{"pid": 17, "host": "node7"}', "process 17 on 'node7'; wait"),
        ("{", "another process; wait"),
        ('{"pid": "x"}', "another process; wait"),
        ("[]", "another process; wait"),
    ]:
        note.write_text(said)
        with pytest.raises(RunExists, match=told):
            Record(tmp_path / "events.jsonl")
    record.close()


def test_a_worker_that_outlives_its_killed_parent_does_not_hold_the_lock(tmp_path):
    path = tmp_path / "events.jsonl"
    parent = started(FORKING, path)
    try:
        assert is_written(path)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert not is_written(path)
        Record(path).close()
    finally:
        parent.communicate()


def test_a_fork_that_ends_leaves_the_lock_and_its_note_to_the_parent(tmp_path):
    parent = started(ENDING_FORK, tmp_path / "events.jsonl")
    try:
        assert is_written(tmp_path / "events.jsonl") and (tmp_path / ".events.jsonl.lock").exists()
    finally:
        parent.communicate()
    assert parent.returncode == 0 and not (tmp_path / ".events.jsonl.lock").exists()
    assert [event.text for event in Record.open(tmp_path).events] == ["of the parent"]


def test_a_folder_that_takes_no_note_takes_the_lock(tmp_path):
    (tmp_path / ".events.jsonl.lock").mkdir()
    file = io.FileIO(tmp_path / "events.jsonl", "a+")
    take(file)
    assert is_written(tmp_path / "events.jsonl")
    give_back(file)
    assert not is_written(tmp_path / "events.jsonl") and file.closed


def test_a_program_that_closes_nothing_ends_without_a_word(tmp_path):
    text = LIGHT + "from stoker.record import Record; record = Record(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", text, tmp_path / "events.jsonl"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
