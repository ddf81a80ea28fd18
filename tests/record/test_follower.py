"""A follower agrees with the record, whatever happens to the directory."""

import itertools
import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import Event, Follower, Points, Record, Run, find_runs
from tests.record.examples import WITHOUT_TORCH, append_fit, follow, same_floats, to_lines

NAMES = ["train/loss", "valid/loss", "lr"]
MESSAGES = ("note", "warning", "stop", "error", "resume", "checkpoint")
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(["begin", "progress", "train", "valid", "epoch", "log", *MESSAGES[:4], "checkpoint", "end"]),
    time=st.integers(0, 100).map(float),
    epoch=st.integers(0, 3),
    batch=st.integers(0, 2),
    update=st.integers(0, 9),
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


def check_against_record(follower, path):
    record = Record.open(path)
    for name in NAMES:
        rows = follower.points(name, source="epochs")
        by_epoch = {epoch: row[name] for epoch, row in record.rows.items() if name in row}
        assert same_floats([by_epoch[epoch] for epoch in rows.epoch], [*rows.value]) and len(rows) == len(by_epoch)
        running = [event.values[name] for event in record.events_of("progress") if name in event.values]
        assert same_floats([*follower.points(name, source="running").value], running)
        all_points, final = follower.points(name), record.all(name)
        assert [*all_points.update] == sorted(all_points.update)
        updates = all_points.update.astype(int).tolist()
        pairs = [repr(pair) for pair in zip(updates, all_points.value.tolist(), strict=True)]
        assert all(repr(pair) in pairs for pair in final) and len(pairs) <= len(final) + len(running)
        assert follower.direction(name) == record.direction(name)
        assert follower.best(name) == (record.best(name) if record.direction(name) else None)
    assert repr(follower.messages) == repr([event for event in record.events if event.kind in MESSAGES])
    assert repr(dict(follower.summary)) == repr(Run.open(path).summary())
    assert follower.status.time == (record.events[-1].time if record.events else 0.0)


@pytest.fixture(params=["msgspec", "json"])
def decoder(request, monkeypatch):
    """With msgspec, and as if it were not installed."""
    if request.param == "json":
        monkeypatch.setattr("stoker.record._event._msgspec_decoder", lambda: None)


@settings(max_examples=60, deadline=None)
@given(
    events=st.lists(st.one_of(EVENTS, EVENTS, RESUMES), max_size=20),
    cuts=st.lists(st.floats(0, 1), max_size=4),
    complete=st.booleans(),
)
def test_any_events_in_any_pieces_are_what_the_record_says(tmp_path_factory, events, cuts, complete):
    path = tmp_path_factory.mktemp("run")
    text = to_lines(events)
    text = text if complete else text[:-1]  # a kill between the last line and its newline
    places = [0, *sorted(round(cut * len(text)) for cut in cuts), len(text)]
    (path / "events.jsonl").touch()
    follower = Follower(path)
    for start, end in itertools.pairwise(places):
        with (path / "events.jsonl").open("ab") as file:
            file.write(text[start:end])
        follower.refresh()
        check_against_record(follower, path)
    assert (follower.damaged_lines, follower.problem) == (0, "")


def test_a_run_from_its_start_to_its_end(run):
    follower = follow(run)
    assert (follower.state, follower.name, follower.begin) == ("running", "digits", None)
    assert follower.status.phase == "starting" and follower.names == []
    append_fit(run.record)
    assert follower.refresh() and not follower.refresh() and not follower.has_unread
    assert follower.state == "finished" and follower.status.phase == "over"
    assert follower.begin.extra["epochs"] == 5
    assert follower.names == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"]
    assert follower.points("valid/loss", source="epochs").epoch.tolist() == [1, 2, 3, 4, 5]
    assert follower.best("valid/loss").epoch == 3 and follower.best("lr") is None
    assert Follower(run.path / "events.jsonl").path == run.path
    run.record.append(Event("error", text="CUDA out of memory"))
    follower.refresh()
    assert (follower.state, follower.reason) == ("failed", "CUDA out of memory")
    assert [line[21:] for line in follower.log] == ["error: CUDA out of memory"]
    assert (follower.direction("valid/accuracy"), follower.unit("valid/accuracy")) == ("max", "%")
    assert len(follower.points("nothing")) == 0
    assert follower.config == {"lr": 0.1} and follower.facts["seed"] == 3
    run.close()
    follower.refresh()
    check_against_record(follower, run.path)


def test_an_incomplete_line_is_completed_later(run):
    follower = follow(run)
    line = to_lines([Event("valid", 1.0, epoch=1, update=7, values={"valid/loss": 0.5})])
    with (run.path / "events.jsonl").open("ab", buffering=0) as file:
        file.write(line[:30])
        follower.refresh()
        assert follower.names == [] and follower.damaged_lines == 0
        file.write(line[30:-1])
        follower.refresh()
        assert follower.points("valid/loss").value.tolist() == [0.5], "only its newline is missing"
        file.write(b"\n" + line)
        follower.refresh()
    assert follower.points("valid/loss").value.tolist() == [0.5, 0.5]


DAMAGED = {
    "torn": b'{"kind":"note","ti',
    "binary": bytes(range(128, 256)),
    "list": b"[1, 2]",
    "no kind": b'{"time":1.0}',
    "two in a line": b'{"kind":"note","time":1.0}{"kind":"note","time":1.0}',
    "one in two lines": b'{"kind":"note",\n"time":1.0}',
    "a word for a number": b'{"kind":"train","time":1.0,"values":{"a":1.0,"b":"much"}}',
    "null for a number": b'{"kind":"train","time":1.0,"values":{"a":null}}',
    "a time outside the calendar": b'{"kind":"note","time":1e300}',
    "NaN for a time": b'{"kind":"note","time":"NaN"}',
    "a huge update": b'{"kind":"note","time":1.0,"update":' + b"9" * 40 + b"}",
    "deep inside": b'{"kind":"note","time":1.0,"extra":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "a resume without its count": b'{"kind":"resume","time":1.0}',
}


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_skipped_and_counted(run, name):
    lines = to_lines([Event("valid", 1.0, epoch=epoch, values={"a": float(epoch)}) for epoch in (1, 2)])
    first, second = lines.splitlines(keepends=True)
    (run.path / "events.jsonl").write_bytes(first + DAMAGED[name] + b"\n\n  \n" + second)
    follower = follow(run)
    assert follower.points("a").value.tolist() == [1.0, 2.0]
    count = DAMAGED[name].count(b"\n") + 1
    assert follower.damaged_lines == count
    assert follower.problem == ("a damaged line was skipped" if count == 1 else "2 damaged lines were skipped")


def test_a_damaged_line_counts_as_an_event_for_a_resume(run):
    """Otherwise the resume would keep one event too many."""
    events = [Event("valid", 1.0, epoch=epoch, values={"a": float(epoch)}) for epoch in (1, 2, 3)]
    first, second, third = to_lines(events).splitlines(keepends=True)
    resume = to_lines([Event("resume", 40.0, extra={"kept": 3})])
    (run.path / "events.jsonl").write_bytes(first + b"damaged\n" + second + third + resume)
    assert follow(run).points("a").value.tolist() == [1.0, 2.0]


@pytest.mark.usefixtures("decoder")
def test_special_numbers_and_lone_surrogates(run):
    line = b'{"kind":"train","time":1,"epoch":1,"values":{"a":"NaN","b":"-Infinity","c":1e999,"d":2,"e\\udfff":1}}\n'
    note = b'{"kind":"note","time":1.0,"text":"\\ud800!","extra":{"b":"\\ud9ab"}}\n'
    smile = b'{"kind":"note","time":1.0,"text":"\\ud83d\\ude00"}\n'
    (run.path / "events.jsonl").write_bytes(line + note + smile)
    follower = follow(run)
    assert repr([follower.points(name).value[0] for name in "abcd"]) == repr(
        [np.float64(value) for value in (math.nan, -math.inf, math.inf, 2.0)]
    )
    broken, smiling = follower.messages
    assert json.dumps([broken.text, follower.names, broken.extra["b"]], ensure_ascii=False).encode()
    assert broken.text == "?!" and smiling.text == "😀"


@pytest.mark.usefixtures("decoder")
def test_an_extra_with_unexpected_types_is_ignored(run):
    wrong = {"epochs": "many", "batches": -3, "metrics": [1], "monitor": {}, "plan": 5, "updates": 1e400, "mine": [1]}
    events = [
        {"kind": "begin", "time": 1.0, "extra": wrong},
        {"kind": "progress", "time": 2.0, "epoch": -4, "batch": 2, "extra": {"batches": 0, "phase": []}},
        {"kind": "train", "time": 2.0, "epoch": 1, "extra": {"losses": 7}, "values": {"__proto__": 1, "x" * 9999: 2.0}},
        {"kind": "stop", "time": 2.0, "text": "why"},
        {"kind": "end", "time": 3.0, "extra": {"seconds": "long", "epochs": None}},
    ]
    (run.path / "events.jsonl").write_bytes(b"".join(json.dumps(event).encode() + b"\n" for event in events))
    for name, text in (("run.json", "[1]"), ("config.json", "{"), ("log.txt", "\x1b[2J\n")):
        (run.path / name).write_text(text)
    follower = follow(run)
    assert follower.damaged_lines == 0 and follower.names == ["__proto__", "x" * 9999]
    assert follower.begin.extra == {"mine": [1]}
    assert (follower.state, follower.reason) == ("finished", "why")
    assert (follower.facts, follower.config, follower.status.seconds) == ({}, None, 2.0)


@pytest.mark.parametrize("how", ["cut", "rewritten", "replaced"])
def test_a_file_that_is_replaced_is_read_again(run, how):
    append_fit(run.record, epochs=4)
    follower = follow(run)
    path = run.path / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "cut":
        path.write_bytes(b"".join(lines[:5]))
    elif how == "rewritten":  # the same file, and longer
        path.write_bytes(b"".join(lines[:5]).replace(b"train/accuracy", b"train/other_name") + b"\n" * 5000)
    else:
        (run.path / "new").write_bytes(b"".join(lines[:5]) + b"\n" * 5000)
        (run.path / "new").replace(path)
    assert follower.refresh()
    assert follower.summary["epochs"] == 1 and follower.problem == "events.jsonl was replaced and read again"
    more = path.read_bytes() + to_lines([Event("note", 9.0, text="more")])
    (run.path / "new").write_bytes(more)
    (run.path / "new").replace(path)  # a longer copy is the same file, as rsync makes it
    assert follower.refresh() and follower.messages[-1].text == "more" and follower.damaged_lines == 0


def test_growth_is_noticed_when_the_clock_is_coarse(run):
    path = run.path / "events.jsonl"
    os.utime(path, (100, 100))
    follower = follow(run)
    assert not follower.refresh()
    run.record.append(Event("note", text="hello"))
    os.utime(path, (100, 100))
    assert follower.refresh() and len(follower.messages) == 1


def test_another_run_in_its_place(run):
    append_fit(run.record, epochs=2)
    follower = follow(run)
    run.close()
    shutil.rmtree(run.path)
    assert follower.refresh() and not follower.refresh()
    gone = "the run's directory does not exist any more"
    assert (follower.state, follower.reason, follower.problem) == ("gone", gone, gone)
    assert follower.config == {"lr": 0.1} and follower.summary["epochs"] == 2, "what was read is still available"
    again = Run.create(run.path, facts={"seed": 4})
    append_fit(again.record, epochs=5, end=False)
    assert follower.refresh()
    assert (follower.state, follower.config, follower.facts["seed"]) == ("running", None, 4)
    assert follower.summary["epochs"] == 5
    again.close()


def test_a_directory_or_a_pipe_in_place_of_the_file(run):
    follower = follow(run)
    (run.path / "events.jsonl").rename(run.path / "elsewhere")
    (run.path / "events.jsonl").mkdir()
    assert follower.refresh()
    assert follower.state == "gone" and follower.problem == "events.jsonl can't be read: it is a directory"
    (run.path / "events.jsonl").rmdir()
    for name in ("events.jsonl", "log.txt", "config.json", "run.json"):
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)  # to open it would wait for ever
    follower.refresh()
    assert follower.problem == "events.jsonl can't be read: it is not a regular file"
    (run.path / "events.jsonl").unlink()
    (run.path / "elsewhere").rename(run.path / "events.jsonl")
    assert follower.refresh() and follower.state == "running" and follower.problem == ""


@pytest.mark.parametrize("seconds", [None, 0, 1e-9])
def test_a_file_that_cannot_be_opened_is_gone_and_has_nothing_unread(run, monkeypatch, seconds):
    append_fit(run.record)
    with monkeypatch.context() as patched:
        opened = os.open

        def deny(path, *args, **options):
            if str(path).endswith("events.jsonl"):
                raise PermissionError(13, "Permission denied")
            return opened(path, *args, **options)

        patched.setattr("os.open", deny)  # root is not stopped by permissions
        follower = follow(run)
        assert (follower.state, follower.has_unread) == ("gone", False)
        assert follower.problem == "events.jsonl can't be read: Permission denied"
        follower.refresh(seconds=seconds)
    assert follower.refresh(seconds=0) and follower.state == "finished" and not follower.has_unread


def test_small_files_are_read_again_when_they_change(run):
    follower = follow(run)
    (run.path / "config.json").write_text("1")
    (run.path / "log.txt").write_text("one\ntwo\nincompl")
    assert follower.refresh() and (follower.config, follower.log) == (1, ["one", "two"])
    with (run.path / "log.txt").open("a") as file:
        file.write("ete\n")
    assert follower.refresh() and follower.log == ["one", "two", "incomplete"]
    (run.path / "new").write_text("2")
    (run.path / "new").replace(run.path / "config.json")
    (run.path / "log.txt").write_text("three\n")
    assert follower.refresh() and (follower.config, follower.log) == (2, ["three"])
    (run.path / "config.json").unlink()
    assert follower.refresh() and follower.config is None


def test_damaged_and_huge_small_files_are_ignored(run):
    (run.path / "run.json").write_bytes(b"\xff{")
    (run.path / "config.json").write_text(json.dumps("x" * 5_000_000))
    (run.path / "log.txt").write_bytes(b"\xff\x00\n")
    follower = follow(run)
    assert (follower.facts, follower.config, follower.log) == ({}, None, ["\ufffd\x00"])
    (run.path / "log.txt").write_text("".join(f"line {number}\n" for number in range(100_000)))
    follower.refresh()
    assert len(follower.log) == 1000 and follower.log[-1] == "line 99999"


def test_a_resume_while_following(run):
    append_fit(run.record, epochs=4, end=False)
    follower = follow(run)
    assert follower.best("valid/loss").epoch == 3
    run.record.rewind(9, Event("resume", 3000.0, epoch=2, batch=4, update=24))
    follower.refresh()
    assert follower.points("valid/loss").epoch.tolist() == [1, 2] and follower.best("valid/loss").epoch == 2
    assert follower.status.epoch == 2 and follower.status.batch == 4
    run.record.append(Event("valid", 3010.0, epoch=2, update=30, values={"valid/loss": 0.01}))
    follower.refresh()
    check_against_record(follower, run.path)
    assert follower.best("valid/loss").value == 0.01


@pytest.mark.parametrize("name", ["events.jsonl", "log.txt", "config.json", "run.json"])
@pytest.mark.parametrize("large", [False, True])
def test_with_inside_no_file_outside_the_directory_is_read(run, name, large):
    padding = b'{"kind":"note","time":1.0,"text":"%s"}\n' % (b"x" * 100_000) * (50 if large else 1)
    secret = run.path.parent / "secret"
    secret.write_bytes(b'{"kind":"note","time":1.0,"text":"secret"}\n' + padding)
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(secret)
    (run.path / "inner.txt").write_text("inner")
    restricted, free = Follower(run.path, inside=run.path.resolve()), Follower(run.path)
    for each in (restricted, free):
        each.refresh(seconds=0)
        each.refresh()
    content = [repr([each.messages[:1], each.log[:1], each.config, each.facts]) for each in (restricted, free)]
    assert "secret" not in content[0] and (restricted.state == "gone") == (name == "events.jsonl")
    if name in ("events.jsonl",) or (name == "log.txt" and not large):
        assert "secret" in content[1]
    (run.path / name).unlink()
    (run.path / name).symlink_to(run.path / "inner.txt")
    restricted.refresh()
    assert restricted.state != "gone", "a link inside the directory is followed"


def test_a_link_that_appears_after_the_check_is_not_followed(run, monkeypatch):
    (run.path.parent / "secret").write_bytes(b'{"kind":"note","time":1.0,"text":"secret"}\n')
    (run.path / "events.jsonl").unlink()
    (run.path / "events.jsonl").symlink_to(run.path.parent / "secret")
    monkeypatch.setattr("os.path.realpath", str)  # what was true a moment ago
    follower = Follower(run.path, inside=run.path)
    follower.refresh()
    assert follower.state == "gone" and follower.messages == []


WRITER = f"""{WITHOUT_TORCH}
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


def test_a_process_that_is_followed_and_then_killed(tmp_path):
    path = tmp_path / "run"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "ready\n"
        follower, changes = Follower(path), 0
        while len(follower.points("lr")) < 3000:
            changes += follower.refresh()
            assert follower.state == "running" and follower.damaged_lines == 0
    finally:
        writer.kill()
        writer.communicate()
    follower.refresh()
    assert (follower.state, follower.reason) == ("died", "the process ended without finishing the run")
    points = follower.points("lr")
    assert points.value.tolist() == points.update.tolist() == list(range(1, len(points) + 1)) and changes > 2


def test_following_writes_nothing(run):
    append_fit(run.record)
    run.close()
    before = {path.name: path.stat().st_mtime_ns for path in [run.path, *run.path.iterdir()]}
    follower = follow(run)
    follower.points("valid/loss"), follower.status, follower.log
    assert {path.name: path.stat().st_mtime_ns for path in [run.path, *run.path.iterdir()]} == before


@pytest.fixture
def large(run):
    """A run with a file above the size from which a sample is read first, 4 MiB."""
    events = [Event("begin", 1000.0, extra={"epochs": 30})]
    for update in range(20_000):
        place = {"time": 1000.0 + update, "epoch": update // 1000 + 1, "update": update}
        values = {"train/loss": float(update)}
        events.append(Event("progress", values=values, text="x" * 200, **place))
        if update % 1000 == 999:
            events.append(Event("epoch", values={"valid/loss": 1000 / (update + 1)}, **place))
    (run.path / "events.jsonl").write_bytes(to_lines(events))
    return run


def test_a_large_file_is_sampled_first_and_then_read(large):
    follower = Follower(large.path)
    assert follower.refresh(seconds=1e-9) and follower.has_unread
    sample = follower.points("train/loss")
    assert 1000 < len(sample) < 20_000 and (sample.update[0], sample.update[-1]) == (0, 19_999)
    assert sample.update.tolist() == sorted(set(sample.update.tolist())) == sample.value.tolist()
    assert np.diff(sample.update).max() < 1000, "there are points from everywhere"
    assert follower.status.update == 19_999 and follower.status.epoch == 20 and follower.begin is not None
    large.record.append(Event("note", 30_000.0, text="meanwhile"))
    while follower.has_unread:
        assert follower.refresh(seconds=1e-9)
        assert [event.text for event in follower.messages] == ["meanwhile"], "the newest is seen before the rest"
    assert follower.points("train/loss").value.tolist() == [float(update) for update in range(20_000)]
    check_against_record(follower, large.path)


def test_with_no_time_only_the_ends_of_a_large_file_are_read(large):
    follower = Follower(large.path)
    assert follower.refresh(seconds=0) and not follower.refresh(seconds=0) and follower.has_unread
    ends = follower.points("train/loss")
    assert follower.status.update == 19_999 and not ((ends.update > 4000) & (ends.update < 16_000)).any()
    large.record.append(Event("note", 30_000.0, text="meanwhile"))
    assert follower.refresh(seconds=0) and follower.messages
    follower.refresh(seconds=1e-9)
    assert follower.has_unread and len(follower.points("train/loss")) > len(ends)
    assert follower.refresh() and not follower.has_unread and len(follower.points("train/loss")) == 20_000


@pytest.mark.parametrize("seconds", [0, 1e-9, None])
def test_a_large_file_that_is_replaced(large, seconds):
    follower = Follower(large.path)
    follower.refresh(seconds=seconds)
    (large.path / "events.jsonl").write_bytes(to_lines([Event("note", 1.0, text="new")]))
    follower.refresh(seconds=seconds)
    assert [event.text for event in follower.messages] == ["new"] and not follower.has_unread
    assert follower.names == [] and ("read again" in follower.problem) == (seconds != 0)


def test_lines_longer_than_a_stretch_of_the_sample_and_than_any_limit(run):
    long = to_lines(Event("note", 1.0, text="x" * 700_000) for _ in range(8))
    end = to_lines([Event("valid", 1.0, epoch=1, values={"a": 1.0})])
    (run.path / "events.jsonl").write_bytes(long + end)
    follower = Follower(run.path)
    follower.refresh(seconds=0)
    assert follower.names == ["a"]
    follower.refresh()
    assert len(follower.messages) == 8 and follower.names == ["a"]
    (run.path / "events.jsonl").write_bytes(b"x" * (40 << 20) + b"\n" + end)
    follower.refresh()
    assert follower.state == "gone" and "one has more than 16,777,216 bytes" in follower.problem


VALUES = st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=300).map(np.array)


@settings(max_examples=100, deadline=None)
@given(values=VALUES, limit=st.integers(0, 60))
def test_downsampled_points_keep_the_ends_the_extremes_and_the_gaps(values, limit):
    values = values.astype(float)
    index = np.arange(len(values), dtype=float)
    points = Points(index, index + 100, index + 200, values).downsample(limit)
    kept = points.update.astype(int)
    assert (np.diff(kept) > 0).all() and len(kept) <= max(limit, 5)
    assert (points.epoch - 100).tolist() == (points.time - 200).tolist() == kept.tolist()
    assert np.array_equal(points.value, values[kept], equal_nan=True)
    assert not len(values) or (kept[0], kept[-1]) == (0, len(values) - 1)
    numbers, kept_numbers = values[~np.isnan(values)], points.value[~np.isnan(points.value)]
    if len(numbers):
        assert kept_numbers.min() == numbers.min() and kept_numbers.max() == numbers.max()
    assert np.isnan(points.value).any() == np.isnan(values).any()


def test_runs_are_found_in_subdirectories_oldest_first(tmp_path):
    for number, name in enumerate(["z", "nested/m", "a"]):
        run = Run.create(tmp_path / name, facts={"started": 100.0 + number})
        append_fit(run.record)
        run.close()
    inside = tmp_path / "z" / "checkpoints" / "inner"
    inside.mkdir(parents=True)
    (inside / "events.jsonl").touch()
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "events.jsonl").symlink_to(tmp_path / "nowhere")
    assert [str(run.path.relative_to(tmp_path)) for run in find_runs(tmp_path)] == ["z", "nested/m", "a"]
    assert [run.path for run in find_runs(tmp_path / "a", read=False)] == [tmp_path / "a"]
    assert find_runs(tmp_path / "nowhere") == []


def test_a_run_that_cannot_be_opened_is_listed_among_the_others(tmp_path, monkeypatch):
    for name in ("good", "odd"):
        Run.create(tmp_path / name).close()
    opened = os.open

    def fail(path, *args, **options):
        if "odd/events.jsonl" in str(path):
            raise OSError(116, "Stale file handle")
        return opened(path, *args, **options)

    monkeypatch.setattr("os.open", fail)
    runs = {run.name: run for run in find_runs(tmp_path)}
    assert (runs["good"].state, runs["odd"].state) == ("died", "gone") and "Stale" in runs["odd"].reason
