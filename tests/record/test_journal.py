"""The file of events: torn, cut, broken, killed, and read while it is written."""

import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import BadFile
from stoker.record import Event, Record, Run
from stoker.record._event import to_line
from stoker.record._journal import Journal, read_events
from stoker.record._lock import is_written
from tests.record.stories import LIGHT

LINES = [to_line(Event("log", float(number), update=number, text="ü\n" * number)) for number in range(5)]

# Each line that it reads lets it write 200 events, so that readers can keep up.
WRITER = (
    LIGHT
    + """
from stoker.record import Event, Run
run = Run.create(sys.argv[1])
for block, _ in enumerate(sys.stdin):
    for number in range(200 * block, 200 * block + 200):
        run.record.append(Event("log", epoch=1, update=number, values={"x": number / 3}, text="x" * (number % 1000)))
    print(number, flush=True)
"""
)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, len(b"".join(LINES))), rubbish=st.sampled_from([b"", b"\0\0\0", b"{", b"\xff\xfe"]))
def test_a_file_cut_anywhere_has_every_whole_line_and_can_go_on(tmp_path_factory, cut, rubbish):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    data = b"".join(LINES)[:cut]
    whole = data.count(b"\n")
    path.write_bytes(data + rubbish)
    complete = (
        bool(data)
        and not rubbish
        and not data.endswith(b"\n")
        and data + b"\n" in [b"".join(LINES[:count]) for count in range(6)]
    )  # only its newline is missing
    events = read_events(path)
    assert [event.update for event in events] == list(range(whole + complete))
    record = Record(path)
    record.append(Event("note", 9.0, text="after"))
    record.close()
    again = path.read_bytes()
    assert again == b"".join(LINES[: whole + complete]) + to_line(Event("note", 9.0, text="after"))
    assert read_events(path) == list(record.events)


def test_a_long_torn_line_is_cut_off_whole(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(LINES[0] + b"{" + b"x" * 200_000)
    Record(path).close()
    assert path.read_bytes() == LINES[0]


def test_a_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(LINES[0] + b"nonsense\n" + LINES[1])
    with pytest.raises(BadFile, match=r"events.jsonl, line 2: expected an event in JSON, but: .*without that line"):
        Record.open(tmp_path)


def test_unknown_kinds_are_kept_and_empty_lines_passed_over(tmp_path):
    (tmp_path / "events.jsonl").write_bytes(b'{"kind":"weather","time":3,"values":{"rain":1}}\n\n' + LINES[0])
    assert [event.kind for event in Record.open(tmp_path).events] == ["weather", "log"]


def test_a_path_without_a_run(tmp_path):
    (tmp_path / "digits").mkdir()
    with pytest.raises(BadFile, match="there is no run at '.*digit'; did you mean 'digits'\\?"):
        Record.open(tmp_path / "digit")
    with pytest.raises(BadFile, match="digits' is no run: there is no events.jsonl in it"):
        Record.open(tmp_path / "digits")


def test_a_line_is_with_the_operating_system_when_write_is_back(tmp_path):
    journal = Journal(tmp_path / "events.jsonl")
    for count, line in enumerate(LINES, 1):
        journal.write(line)
        assert (tmp_path / "events.jsonl").read_bytes() == b"".join(LINES[:count])


def test_readers_see_who_is_alive(tmp_path):
    journal = Journal(tmp_path / "events.jsonl")
    assert not is_written(journal.path)
    journal.write(LINES[0])
    assert is_written(journal.path) and is_written(journal.path)
    journal.close()
    assert not is_written(journal.path)


def test_a_killed_process_leaves_a_record_that_opens_and_readers_saw_it_grow(tmp_path):
    """A real process, killed in the middle of appending, while two readers read."""
    path = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(path)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert writer.stdin is not None and writer.stdout is not None
    seen: dict[str, list[int]] = {"one": [], "other": []}

    def read(name):
        for _ in range(8):
            writer.stdin.write("go\n")
            updates = [event.update for event in Record.open(path).events]
            assert updates == list(range(len(updates)))
            seen[name].append(len(updates))

    try:
        writer.stdin.write("go\n")
        writer.stdout.readline()
        readers = [threading.Thread(target=read, args=[name]) for name in seen]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert Run.open(path).summary()["state"] == "running"
        writer.stdin.write("go\n" * 300)
        for _ in range(20):
            said = int(writer.stdout.readline())
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    assert all(len(counts) == 8 and counts == sorted(counts) and counts[0] >= 200 for counts in seen.values())
    events = Record.open(path).events
    assert [event.update for event in events] == list(range(len(events))) and said < len(events) < 200 * 317
    assert all(event.values["x"] == event.update / 3 for event in events)
    assert Run.open(path).summary()["state"] == "died"
    Record(path).append(Event("note"))
    assert len(Record.open(path).events) == len(events) + 1
