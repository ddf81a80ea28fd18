"""The events file: cut, damaged, locked, and read while it is written."""

import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import BadFile, RunExists
from stoker.record import Event, Record, Run
from tests.record.examples import WITHOUT_TORCH


def line(number):
    text = "ü\\n" * number
    return f'{{"kind":"log","time":{number}.0,"update":{number},"text":"{text}"}}\n'.encode()


LINES = [line(number) for number in range(5)]
AFTER = b'{"kind":"note","time":9.0,"text":"after"}\n'


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, len(b"".join(LINES))), rubbish=st.sampled_from([b"", b"\0\0\0", b"{", b"\xff\xfe"]))
def test_a_file_cut_anywhere_has_every_complete_line_and_can_be_continued(tmp_path_factory, cut, rubbish):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    data = b"".join(LINES)[:cut]
    path.write_bytes(data + rubbish)
    only_newline_missing = not rubbish and data + b"\n" in [b"".join(LINES[:count]) for count in range(1, 6)]
    complete = data.count(b"\n") + only_newline_missing
    assert [event.update for event in Record.open(path).events] == list(range(complete))
    record = Record(path)
    record.append(Event("note", 9.0, text="after"))
    record.close()
    assert path.read_bytes() == b"".join(LINES[:complete]) + AFTER
    assert Record.open(path).events == record.events


HUGE = b'{"kind":"x","time":1,"update":' + b"9" * 30 + b"}"
DAMAGED = [HUGE, b"{", b"[]", b'{"kind": 3, "time": 1}', b'{"kind":"x","time":1,"values":{"a":null}}', b"\xff"]


@pytest.mark.parametrize("damaged", DAMAGED)
def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(tmp_path, damaged):
    (tmp_path / "events.jsonl").write_bytes(LINES[0] + damaged + b"\n" + LINES[1])
    with pytest.raises(BadFile, match=r"events.jsonl, line 2: expected an event in JSON, but: .*strict=False"):
        Record.open(tmp_path)
    for record in (Record.open(tmp_path, strict=False), Run.open(tmp_path).record, Record(tmp_path)):
        assert [event.kind for event in record.events] == ["log", "damaged", "log"]
        record.close()


def test_unknown_kinds_are_kept_and_unknown_fields_and_empty_lines_ignored(tmp_path):
    unknown = b'{"kind":"weather","time":3,"values":{"rain":1},"colour":"red"}\n\n'
    (tmp_path / "events.jsonl").write_bytes(unknown + LINES[0])
    assert [event.kind for event in Record.open(tmp_path).events] == ["weather", "log"]


def test_a_path_without_a_run_is_an_error_with_a_suggestion(tmp_path):
    (tmp_path / "digits").mkdir()
    with pytest.raises(BadFile, match="there is no run at '.*digit'; did you mean 'digits'\\?"):
        Record.open(tmp_path / "digit")
    with pytest.raises(BadFile, match="digits' is not a run: it has no events.jsonl"):
        Record.open(tmp_path / "digits")


# Each line on stdin lets it write 200 events, so that readers can keep up.


HOLDER = (
    WITHOUT_TORCH
    + """
from stoker.record import Event, Run
run = Run.create(sys.argv[1])
run.record.append(Event("note"))
print("locked", flush=True)
sys.stdin.read()
"""
)

# A forked worker that outlives its killed parent, as long as its stdin is open.
FORKING = (
    WITHOUT_TORCH
    + """
import os
from stoker.record import Run
run = Run.create(sys.argv[1])
if os.fork() == 0:
    os.setsid()
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""
)

ENDING_FORK = (
    WITHOUT_TORCH
    + """
import os
from stoker.record import Event, Run
run = Run.create(sys.argv[1])
if os.fork() == 0:
    run.close()
    os._exit(0)
os.wait()
print("ended", flush=True)
sys.stdin.read()
run.record.append(Event("note", text="of the parent"))
run.close()
"""
)


def start(program, path):
    command = [sys.executable, "-c", program, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_the_process_that_holds_the_lock_is_named_and_a_kill_releases_it(tmp_path):
    path = tmp_path / "run"
    holder = start(HOLDER, path)
    try:
        assert Run.open(path).writer == f"process {holder.pid}"
        text = f"events.jsonl' is being written by process {holder.pid}; wait until it has ended, or choose another"
        with pytest.raises(RunExists, match=text):
            Record(path)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    assert Run.open(path).writer is None and (path / ".events.jsonl.lock").exists()
    record = Record(path)
    assert [event.kind for event in record.events] == ["note"]
    record.close()
    assert not (path / ".events.jsonl.lock").exists()


def test_a_lock_of_this_process_and_of_another_machine(tmp_path, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)
    record = Record(tmp_path / "events.jsonl")
    with pytest.raises(RunExists, match="by this process; close that run first"):
        Record(tmp_path / "events.jsonl")
    for note, writer in [
        ('{"pid": 17, "host": "node7"}', "process 17 on 'node7'; wait"),
        ("{", "another process; wait"),
        ('{"pid": "x"}', "another process; wait"),
        ("[]", "another process; wait"),
    ]:
        (tmp_path / ".events.jsonl.lock").write_text(note)
        with pytest.raises(RunExists, match=writer):
            Record(tmp_path / "events.jsonl")
    record.close()


def test_a_forked_worker_does_not_keep_the_lock_of_its_killed_parent(tmp_path):
    path = tmp_path / "run"
    parent = start(FORKING, path)
    try:
        assert Run.open(path).writer is not None
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert Run.open(path).writer is None
        Record(path).close()
    finally:
        parent.communicate()


def test_a_fork_that_ends_leaves_the_lock_and_its_note_to_the_parent(tmp_path):
    path = tmp_path / "run"
    parent = start(ENDING_FORK, path)
    try:
        assert Run.open(path).writer == f"process {parent.pid}"
    finally:
        parent.communicate()
    assert parent.returncode == 0 and not (path / ".events.jsonl.lock").exists()
    assert [event.text for event in Record.open(path).events] == ["of the parent"]
