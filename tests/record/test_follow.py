"""A run read from outside: the numbers of its record, whatever happens to the directory."""

import itertools
import json
import math
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import InvalidArgument, MissingFile
from stoker.record import Control, Event, Follower, Record, Run, _follow
from stoker.record._event import to_line
from tests.record.stories import LIGHT, fill, same

NAMES = ["train/loss", "valid/loss", "lr"]
SAID = ("note", "warning", "stop", "error", "resume", "checkpoint")
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(["begin", "progress", "train", "valid", "epoch", "log", *SAID[:4], "checkpoint", "end"]),
    time=st.integers(0, 100).map(float),
    epoch=st.integers(0, 3),
    batch=st.integers(0, 2),
    update=st.integers(0, 9),
    # -0.0 is taken for the 0.0 of the same update: it is no news.
    values=st.dictionaries(st.sampled_from(NAMES), st.floats(width=16).map(lambda value: value + 0.0), max_size=3),
    text=st.sampled_from(["", "why"]),
    extra=st.sampled_from(
        [
            {},
            {"epochs": 2, "monitor": "lr", "metrics": {"lr": {"direction": "max"}}},
            {"seconds": 1.5},
            {"losses": ["lr"]},
        ]
    ),
)
RESUMES = st.integers(0, 12).map(lambda kept: Event("resume", 50.0, epoch=1, update=3, extra={"kept": kept}))


def agree(follower, path):
    """Whether a follower says what the record says, as far as it is written."""
    record = Record.open(path)
    for name in NAMES:
        finals, rows = follower._columns.finals(name), follower.points(name, source="epochs")
        told = record.all(name)
        assert same([*finals.update, *finals.value], [update for update, _ in told] + [value for _, value in told])
        by_epoch = {epoch: row[name] for epoch, row in record.rows.items() if name in row}
        assert same([by_epoch[epoch] for epoch in rows.epoch], [*rows.value]) and len(rows) == len(by_epoch)
        running = [event.values[name] for event in record.events_of("progress") if name in event.values]
        assert same([*follower.points(name, source="running").value], running)
        assert follower.direction(name) == record.direction(name)
        for direction in ("min", "max"):
            assert follower._answers.best(name, direction) == record.best(name, direction)
    assert repr(follower.said) == repr([event for event in record.events if event.kind in SAID])
    assert repr(dict(follower.summary)) == repr(Run.open(path).summary())
    assert follower.status.when == (record.events[-1].time if record.events else 0.0)


@settings(max_examples=120, deadline=None)
@given(
    story=st.lists(st.one_of(EVENTS, EVENTS, RESUMES), max_size=20),
    cuts=st.lists(st.floats(0, 1), max_size=5),
    whole=st.booleans(),
)
def test_any_story_in_any_pieces_is_what_the_record_says(tmp_path_factory, story, cuts, whole):
    path = tmp_path_factory.mktemp("run")
    text = b"".join(map(to_line, story))
    text = text if whole else text[:-1]  # a kill between the last line and its newline
    places = [0, *sorted(round(cut * len(text)) for cut in cuts), len(text)]
    (path / "events.jsonl").touch()
    follower = Follower(path)
    for start, end in itertools.pairwise(places):
        with (path / "events.jsonl").open("ab") as file:
            file.write(text[start:end])
        follower.refresh()
        agree(follower, path)
    assert (follower.damaged, follower.problem) == (0, "")


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path / "digits", config={"lr": 0.1}, facts={"seed": 3})
    yield run
    run.close()


def following(run):
    follower = Follower(run.path)
    assert follower.refresh()
    return follower


def test_a_run_from_its_beginning_to_its_end(run):
    follower = following(run)
    assert (follower.state, follower.name, follower.begin) == ("running", "digits", None)
    assert follower.status.phase == "starting" and follower.names == []
    fill(run.record)
    assert follower.refresh() and not follower.refresh() and not follower.behind
    assert follower.state == "finished" and follower.status.phase == "over"
    assert follower.begin.extra["epochs"] == 5
    assert follower.names == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"]
    assert follower.points("valid/loss", source="epochs").epoch.tolist() == [1, 2, 3, 4, 5]
    assert follower.best("valid/loss").epoch == 3 and follower.best("lr") is None
    assert (follower.direction("valid/accuracy"), follower.unit("valid/accuracy")) == ("max", "%")
    assert len(follower.points("nothing")) == 0
    assert follower.config == {"lr": 0.1} and follower.facts["seed"] == 3
    run.close()
    follower.refresh()
    agree(follower, run.path)


def test_the_last_words(run):
    run.record.append(Event("note", text="hello"))
    run.record.append(Event("error", text="CUDA out of memory"))
    follower = following(run)
    assert (follower.state, follower.reason) == ("died", "CUDA out of memory")
    assert [event.kind for event in follower.said] == ["note", "error"]
    assert [line[21:] for line in follower.log] == ["hello", "error: CUDA out of memory"]


def test_a_path_without_a_run_is_told_as_ever(tmp_path):
    with pytest.raises(MissingFile, match="is no run: there is no events.jsonl in it"):
        Follower(tmp_path)
    with pytest.raises(MissingFile, match="there is no run at"):
        Follower(tmp_path / "nothing")


def test_the_events_file_means_its_run(run):
    assert Follower(run.path / "events.jsonl").path == run.path


def test_a_torn_line_waits_and_nothing_is_lost(run):
    follower = following(run)
    line = to_line(Event("valid", 1.0, epoch=1, update=7, values={"valid/loss": 0.5}))
    with (run.path / "events.jsonl").open("ab", buffering=0) as file:
        file.write(line[:30])
        follower.refresh()
        assert follower.names == [] and follower.damaged == 0
        file.write(line[30:-1])
        follower.refresh()
        assert follower.points("valid/loss").value.tolist() == [0.5], "whole, but for its newline"
        file.write(b"\n" + line)
        follower.refresh()
    assert follower.points("valid/loss").value.tolist() == [0.5, 0.5]


def test_a_torn_line_that_the_next_process_cuts_off(run):
    fill(run.record, end=False)
    run.close()
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(b'{"kind":"valid","time":1.0,"epo')
    follower = following(run)
    again = Run.resume(run.path)
    again.record.rewind(5, Event("resume", 2000.0, epoch=1, update=10))
    follower.refresh()
    assert (follower.damaged, follower.problem, follower.state) == (0, "", "running")
    assert follower.points("valid/loss").update.tolist() == [10]
    again.close()


def test_damaged_lines_are_left_out_and_counted(run):
    fill(run.record, epochs=2)
    lines = (run.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    junk = [b"nonsense\n", bytes(range(11, 256)) + b"\n", b'{"kind":"valid","time":1,"values":[]}\n']
    (run.path / "events.jsonl").write_bytes(b"".join([*junk[:1], *lines[:3], *junk[1:], *lines[3:]]))
    follower = following(run)
    assert follower.damaged == 3 and follower.problem == "3 damaged lines were left out"
    assert follower.points("valid/loss", source="epochs").epoch.tolist() == [1, 2] and follower.state == "finished"
    (run.path / "events.jsonl").write_bytes(junk[0])
    follower.refresh()
    assert follower.problem == "a damaged line was left out; its events were replaced, and are read anew"


def test_nothing_but_junk(run):
    (run.path / "events.jsonl").write_bytes(os.urandom(0) + bytes(range(256)) * 100)
    follower = following(run)
    assert follower.damaged > 0 and follower.names == [] and follower.status.epoch == 0


def test_an_empty_file_is_a_run_that_has_said_nothing(run):
    run.close()
    follower = following(run)
    assert (follower.state, follower.reason) == ("died", "the process went away without a word")
    assert follower.summary["updates"] == 0 and follower.status.fraction is None


def test_a_file_that_is_cut_is_read_anew(run):
    fill(run.record, epochs=4)
    follower = following(run)
    lines = (run.path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run.path / "events.jsonl").write_bytes(b"".join(lines[:5]))
    assert follower.refresh()
    assert follower.summary["epochs"] == 1 and "read anew" in follower.problem


def test_another_run_in_its_place(run):
    fill(run.record, epochs=2)
    follower = following(run)
    run.close()
    shutil.rmtree(run.path)
    assert follower.refresh() and not follower.refresh()
    assert (follower.state, follower.reason) == ("gone", "the run's directory is gone")
    assert follower.problem == "the run's directory is gone"
    assert follower.config == {"lr": 0.1} and follower.summary["epochs"] == 2, "what was read can still be looked at"
    again = Run.create(run.path, facts={"seed": 4})
    fill(again.record, epochs=5, end=False)
    assert follower.refresh()
    assert (follower.state, follower.config, follower.facts["seed"]) == ("running", None, 4)
    assert follower.summary["epochs"] == 5
    again.close()


def test_a_directory_in_place_of_the_file(run):
    follower = following(run)
    (run.path / "events.jsonl").rename(run.path / "elsewhere")
    (run.path / "events.jsonl").mkdir()
    assert follower.refresh()
    assert follower.state == "gone" and follower.problem == "events.jsonl can't be read: it is no file"
    (run.path / "events.jsonl").rmdir()
    follower.refresh()
    assert follower.problem == "events.jsonl can't be read: No such file or directory"
    (run.path / "elsewhere").rename(run.path / "events.jsonl")
    assert follower.refresh() and follower.state == "running" and follower.problem == ""


def test_a_pipe_in_place_of_the_files_is_not_waited_for(run):
    follower = following(run)
    for name in ("events.jsonl", "log.txt", "config.json", "run.json"):
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)
    follower.refresh()
    assert follower.state == "gone"


def test_a_resume_that_arrives_while_following(run):
    fill(run.record, epochs=4, end=False)
    follower = following(run)
    assert follower.best("valid/loss").epoch == 3
    run.record.rewind(9, Event("resume", 3000.0, epoch=2, batch=4, update=24))
    follower.refresh()
    assert follower.points("valid/loss").epoch.tolist() == [1, 2] and follower.best("valid/loss").epoch == 2
    assert follower.status.epoch == 2 and follower.status.batch == 4
    run.record.append(Event("valid", 3010.0, epoch=2, update=30, values={"valid/loss": 0.01}))
    follower.refresh()
    agree(follower, run.path)
    assert follower.best("valid/loss").value == 0.01


def test_values_that_are_no_numbers(run):
    for update, value in enumerate([math.nan, math.inf, 0.5, -math.inf, math.nan]):
        run.record.append(Event("valid", 1.0, epoch=update + 1, update=update, values={"valid/loss": value}))
    follower = following(run)
    agree(follower, run.path)
    assert follower.best("valid/loss").value == -math.inf and math.isnan(follower.status.latest["valid/loss"])


def test_a_hostile_beginning(run):
    wrong = {"epochs": "many", "batches": -3, "metrics": [1], "monitor": {}, "plan": 5, "updates": 1e400}
    events = [
        {"kind": "begin", "time": 1.0, "extra": wrong},
        {"kind": "progress", "time": 2.0, "epoch": -4, "batch": 2, "extra": {"batches": 0, "phase": []}},
        {
            "kind": "train",
            "time": 2.0,
            "epoch": 1,
            "extra": {"losses": 7},
            "values": {"__proto__": 1.0, "x" * 10_000: 2.0},
        },
        {"kind": "stop", "time": 2.0, "text": ["why"]},
        {"kind": "end", "time": 3.0, "extra": {"seconds": "long", "epochs": None}},
    ]
    (run.path / "events.jsonl").write_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in events))
    for name, text in (("run.json", "[1]"), ("config.json", "{"), ("log.txt", "\x1b[2J\n")):
        (run.path / name).write_text(text)
    follower = following(run)
    assert follower.damaged == 0 and follower.names == ["__proto__", "x" * 10_000]
    assert (follower.state, follower.reason) == ("stopped", "['why']")
    assert (follower.facts, follower.config, follower.status.seconds) == ({}, None, 2.0)


@pytest.mark.parametrize("kind", ["begin", "progress", "train", "valid", "epoch", "note", "resume", "end"])
@pytest.mark.parametrize("value", [b'"\xff"', b"9" * 5000], ids=["no utf-8", "an endless integer"])
def test_an_extra_that_cannot_be_read_costs_no_number(run, kind, value):
    line = b'{"kind":"%s","time":2.0,"epoch":1,"update":3,"values":{"lr":0.5},"extra":{"x":%s}}\n'
    more = to_line(Event("valid", 3.0, epoch=1, update=4, values={"lr": 0.25}))
    (run.path / "events.jsonl").write_bytes(line % (kind.encode(), value) + more)
    follower = following(run)
    assert follower.points("lr").value.tolist()[-1] == 0.25 and follower.status.update == 4
    assert follower.damaged == (1 if kind == "resume" else 0), "a resume must say what stands"


def test_a_file_that_cannot_be_opened_is_gone_and_not_behind(run, monkeypatch):
    """As with other rights, which root would not notice."""
    fill(run.record)

    def refused(self):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(_follow.Tail, "blocks", refused)
        follower = following(run)
        for seconds in (None, 0, 1e-9):
            assert (follower.state, follower.behind) == ("gone", False)
            assert follower.problem == "events.jsonl can't be read: Permission denied"
            follower.refresh(seconds=seconds)
    assert follower.refresh(seconds=0) and follower.state == "finished" and not follower.behind


@pytest.mark.parametrize("name", ["events.jsonl", "log.txt", "config.json", "run.json"])
@pytest.mark.parametrize("large", [False, True])
def test_nothing_outside_of_its_folder_is_read(run, name, large, monkeypatch):
    """The server checks links before; this is for one that is put there after."""
    monkeypatch.setattr(_follow, "_LARGE", 10 if large else 1 << 22)
    fill(run.record)
    secret = run.path.parent / "secret"
    secret.write_bytes(b'{"kind":"note","time":1.0,"text":"secret"}\n')
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(secret)
    follower, free = Follower(run.path, inside=run.path.resolve()), Follower(run.path)
    for each in (follower, free):
        each.refresh(seconds=0)
        each.refresh()
    assert ["secret" in repr([each.said, each.log, each.config, each.facts]) for each in (follower, free)] == [
        False,
        True,
    ]
    assert (follower.state == "gone") == (name == "events.jsonl")


def test_that_not_all_notes_are_kept_is_told(run, monkeypatch):
    monkeypatch.setattr("stoker.record._columns._SPOKEN", 2)
    for number in range(6):
        run.record.append(Event("note", text=f"{number}"))
    follower = following(run)
    assert [event.text for event in follower.said] == ["0", "1", "4", "5"]
    assert follower.problem == "2 notes and warnings from the middle were left out"


WRITER = f"""{LIGHT}
import itertools, time
from stoker.record import Event, Run
run = Run.create(sys.argv[1])
run.record.append(Event("begin", extra={{"updates": 100}}))
print("ready", flush=True)
for update in itertools.count(1):
    run.record.append(Event("log", epoch=1, update=update, values={{"lr": float(update)}}))
    if update % 50 == 0:
        time.sleep(0.001)
"""


def test_a_process_that_writes_while_it_is_read_and_then_is_killed(tmp_path):
    path = tmp_path / "run"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "ready\n"
        follower, looks = Follower(path), 0
        while len(follower.points("lr")) < 3000:
            looks += follower.refresh()
            assert follower.state == "running" and follower.damaged == 0
    finally:
        writer.kill()
        writer.communicate()
    follower.refresh()
    assert (follower.state, follower.reason) == ("died", "the process went away without a word")
    points = follower.points("lr")
    assert points.value.tolist() == points.update.tolist() == list(range(1, len(points) + 1)) and looks > 2


def test_asking_goes_to_the_run(run):
    control, follower = Control(run.path), following(run)
    follower.ask("stop", by="watch")
    assert control.asked().by == "watch"
    run.close()
    with pytest.raises(InvalidArgument, match="no living process"):
        follower.ask("save")


@pytest.fixture
def large(run, monkeypatch):
    """A run whose file counts as large: some 3 MB, the limit being a hundredth of that."""
    monkeypatch.setattr(_follow, "_LARGE", 30_000)
    at = [{"time": 1000.0 + update, "epoch": update // 1000 + 1, "update": update} for update in range(20_000)]
    events = [Event("begin", 1000.0, extra={"epochs": 30})]
    for each in at:
        events.append(Event("progress", values={"train/loss": float(each["update"])}, **each))
        if each["update"] % 1000 == 999:
            events.append(Event("epoch", values={"valid/loss": 1 / each["epoch"]}, **each))
    (run.path / "events.jsonl").write_bytes(b"".join(map(to_line, events)))
    return run


def test_a_large_file_is_seen_at_a_glance_and_then_read(large):
    follower = Follower(large.path)
    assert follower.refresh(seconds=1e-9) and follower.behind
    glanced = follower.points("train/loss")
    assert 1000 < len(glanced) < 20_000 and (glanced.update[0], glanced.update[-1]) == (0, 19_999)
    assert follower.status.update == 19_999 and follower.status.epoch == 20 and follower.begin is not None
    large.record.append(Event("note", 30_000.0, text="meanwhile"))
    while follower.behind:
        assert follower.refresh(seconds=1e-9)
        assert [event.text for event in follower.said] == ["meanwhile"], "the newest is seen before the rest is read"
    agree(follower, large.path)
    assert follower.points("train/loss").value.tolist() == [float(update) for update in range(20_000)]


def test_with_no_time_a_large_file_stays_a_sample(large):
    follower = Follower(large.path)
    assert follower.refresh(seconds=0) and not follower.refresh(seconds=0) and follower.behind
    large.record.append(Event("note", 30_000.0, text="meanwhile"))
    assert follower.refresh(seconds=0) and follower.said and len(follower.points("train/loss")) < 20_000
    assert follower.refresh() and not follower.behind
    agree(follower, large.path)


@pytest.mark.parametrize("seconds", [0, 1e-9, None])
def test_a_large_file_that_is_replaced(large, seconds):
    follower = Follower(large.path)
    follower.refresh(seconds=seconds)
    (large.path / "events.jsonl").write_bytes(to_line(Event("note", 1.0, text="anew")))
    follower.refresh(seconds=seconds)
    assert [event.text for event in follower.said] == ["anew"] and not follower.behind
    assert follower.names == [] and "read anew" in follower.problem


def test_nothing_is_written_by_looking(run):
    fill(run.record)
    run.close()
    before = {path.name: path.stat().st_mtime_ns for path in [run.path, *run.path.iterdir()]}
    follower = following(run)
    follower.points("valid/loss"), follower.status, follower.log
    assert {path.name: path.stat().st_mtime_ns for path in [run.path, *run.path.iterdir()]} == before


def test_a_look_at_the_ends_becomes_a_sample_when_there_is_time(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    text = "x" * 400
    lines = [
        f'{{"kind":"progress","time":{at}.0,"epoch":1,"update":{at},"values":{{"train/loss":1.0}},"text":"{text}"}}\n'
        for at in range(20_000)
    ]
    (path / "events.jsonl").write_text("".join(lines))
    follower = Follower(path)
    follower.refresh(seconds=0)
    ends = follower.points("train/loss")
    assert (
        follower.behind
        and follower.status.update == 19_999
        and not ((ends.update > 2000) & (ends.update < 18000)).any()
    )
    follower.refresh(seconds=1e-9)
    assert follower.behind and len(follower.points("train/loss")) > len(ends)
    follower.refresh()
    assert not follower.behind and len(follower.points("train/loss")) == 20_000
