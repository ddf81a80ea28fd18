"""A record: events go in, questions are answered, listeners are called."""

import json
import math
import resource
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import BadFile, InvalidArgument, WrongType
from stoker.record import Best, Event, Record, Run
from tests.record.examples import METRICS, example_record, record_of


def test_questions_about_a_fit():
    record = example_record()
    assert record.series("valid/loss") == pytest.approx([0.7, 0.6, 0.5, 0.6, 0.7])
    assert record.best("valid/loss") == Best(3, 30, 0.5, "valid/loss")
    assert record.best("valid/accuracy") == Best(5, 50, 0.55, "valid/accuracy")
    assert record.best("valid/accuracy", "min") == Best(1, 10, 0.51, "valid/accuracy")
    assert record.last("train/loss") == 0.2 and record.monitor == "valid/loss"
    assert record.all("train/loss") == [(10, 1.0), (20, 1 / 2), (30, 1 / 3), (40, 1 / 4), (50, 1 / 5)]
    assert record.columns == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"] == record.names
    assert record.rows[2]["lr"] == 0.05
    assert [event.kind for event in record.events[:5]] == ["begin", "progress", "train", "valid", "epoch"]
    assert len(record.events_of("valid")) == 5
    assert record.begin.extra["epochs"] == 5 and record.messages == []
    empty = Record()
    assert empty.series("valid/loss") == [] == empty.all("valid/loss") == empty.events_of("valid")
    assert empty.last("valid/loss") is None is empty.best("valid/loss") is empty.monitor is empty.begin
    assert len(empty.points("valid/loss")) == 0 and empty.summary()["started"] is None


def test_nan_is_never_the_best_and_of_equal_values_the_first_is():
    assert record_of([math.nan, 0.5, math.nan, 0.5, 0.7]).best("valid/loss").epoch == 2
    assert record_of([math.nan, math.nan]).best("valid/loss") is None
    assert record_of([math.inf, 3.0]).best("valid/loss").epoch == 2
    assert record_of([math.nan, -math.inf]).best("valid/loss", "max").epoch == 2


def test_an_epoch_event_repeats_nothing_and_adds_what_is_new():
    record = Record()
    record.append(Event("train", 0.0, epoch=1, update=5, values={"a": 1.0, "b": math.nan}))
    record.append(Event("epoch", 0.0, epoch=1, update=6, values={"a": 1.0, "b": math.nan, "c": 3.0}))
    assert record.all("a") == [(5, 1.0)] and len(record.all("b")) == 1 and record.all("c") == [(6, 3.0)]
    record.append(Event("epoch", 0.0, epoch=2, update=7, values={"a": 1.0}))
    assert record.all("a") == [(5, 1.0), (7, 1.0)]


@pytest.mark.parametrize(
    ("name", "direction", "unit"),
    [
        ("valid/accuracy", "max", "%"),
        ("accuracy", "max", "%"),
        ("train/loss", "min", ""),
        ("valid/recall/3", "max", ""),
        ("valid/f1/macro/3", "min", ""),
        ("valid/own", "min", ""),
        ("train/kl", "min", ""),
        ("lr", None, ""),
        ("valid/odd", None, ""),
    ],
)
def test_direction_and_unit_are_those_the_metric_declared(name, direction, unit):
    record = Record()
    declared = {"recall": {"direction": "max"}, "f1/macro": {"direction": "min"}, "valid/own": {"direction": "min"}}
    metrics = {**METRICS, **declared, "lr": {"direction": None}, "odd": "max"}
    record.append(Event("begin", extra={"metrics": {}}))
    record.append(Event("begin", extra={"metrics": metrics}))
    record.append(Event("train", epoch=1, extra={"losses": ["kl"]}))  # the parts of an objective's loss
    assert (record.direction(name), record.unit(name)) == (direction, unit)


def test_a_number_without_a_direction_has_no_best_until_one_is_given():
    record = record_of([3.0, 1.0, 2.0], name="temperature")
    with pytest.raises(InvalidArgument, match="is a low or a high 'temperature' better\\? Say direction=\"min\""):
        record.best("temperature")
    assert record.best("temperature", "max").value == 3.0
    with pytest.raises(InvalidArgument, match='direction=\'lower\': expected "min" or "max"'):
        record.best("temperature", "lower")  # type: ignore


def test_values_become_floats_and_anything_else_is_an_error():
    record = Record()
    record.append(Event("log", epoch=1, values={"a": 3, "b": np.float32(0.5), "c": np.int64(2), "d": True}))
    assert [type(value) for value in record.events[0].values.values()] == [float] * 4
    assert dict(record.events[0].values) == {"a": 3.0, "b": 0.5, "c": 2.0, "d": 1.0}
    with pytest.raises(WrongType, match=r"'train/loss' is a Tensor; expected a number \(read a tensor with .item"):
        record.append(Event("log", epoch=1, values={"train/loss": torch.tensor(0.5)}))
    with pytest.raises(WrongType, match="the value of 'a' is a str"):
        record.append(Event("log", epoch=1, values={"a": "0.5"}))
    assert len(record.events) == 1


def test_listeners_get_every_event_in_order_until_they_unsubscribe():
    record, first, second = Record(), [], []
    unsubscribe = record.subscribe(first.append)
    record.append(Event("note", text="a"))
    record.subscribe(second.append)
    record.append(Event("note", text="b"))
    unsubscribe()
    unsubscribe()
    record.append(Event("note", text="c"))
    assert [event.text for event in first] == ["a", "b"] and [event.text for event in second] == ["b", "c"]


def test_a_listener_that_fails_causes_one_warning_and_nothing_else():
    record, received = Record(), []

    def failing(event):
        raise ZeroDivisionError("by zero")

    record.subscribe(failing)
    record.subscribe(received.append)
    for number in range(3):
        record.append(Event("note", text=str(number)))
    texts = [event.text for event in received]
    assert [event.text for event in record.events] == texts and texts[0] == "0" and texts[2:] == ["1", "2"]
    assert "failing failed at a 'note' event: ZeroDivisionError: by zero" in texts[1]
    assert [event.kind for event in received] == ["note", "warning", "note", "note"]


def test_an_event_that_a_listener_appends_is_delivered_after_the_current_one():
    record, first, second = Record(), [], []

    def answer(event):
        first.append(event.text)
        if event.text == "question":
            record.append(Event("note", text="answer"))

    record.subscribe(answer)
    record.subscribe(lambda event: second.append(event.text))
    record.append(Event("note", text="question"))
    record.append(Event("note", text="next"))
    assert first == second == ["question", "answer", "next"]


def test_an_interrupt_in_a_listener_is_raised_and_the_record_keeps_working():
    record, received = Record(), []

    def interrupt(event):
        if event.text == "first":
            raise KeyboardInterrupt
        received.append(event.text)

    record.subscribe(interrupt)
    with pytest.raises(KeyboardInterrupt):
        record.append(Event("note", text="first"))
    record.append(Event("note", text="second"))
    assert received == ["second"] and len(record.events) == 2


def test_one_progress_event_per_second_is_kept_and_all_are_delivered(tmp_path):
    record, received = Record(tmp_path / "events.jsonl"), []
    record.subscribe(received.append)
    for tenth in range(31):
        record.append(Event("progress", 100 + tenth / 10, update=tenth))
    record.append(Event("progress", 50.0))  # the clock was set back
    assert len(received) == 32
    assert [event.time for event in record.events] == [100.0, 101.0, 102.0, 103.0, 50.0]
    assert Record.open(tmp_path).events == record.events


def test_a_rewind_voids_later_events(tmp_path):
    record, received = Record(tmp_path / "events.jsonl"), []
    rows = record.rows
    for event in example_record(end=False).events:
        record.append(event)
    record.subscribe(received.append)
    record.rewind(9, Event("resume", 2000.0, epoch=2, update=20, extra={"checkpoint": "00000020"}))
    assert record.series("valid/loss") == pytest.approx([0.7, 0.6]) and record.best("valid/loss").epoch == 2
    assert record.last("train/loss") == 0.5 and record.all("lr") == [(10, 0.1), (20, 0.05)]
    assert list(rows) == [1, 2] and len(record.events) == 10  # an earlier view shows what is valid
    assert [(event.kind, event.extra) for event in received] == [("resume", {"checkpoint": "00000020", "kept": 9})]
    record.append(Event("valid", epoch=3, update=30, values={"valid/loss": 0.4}))
    assert record.best("valid/loss") == Best(3, 30, 0.4, "valid/loss")
    record.rewind(0, Event("resume", extra={"checkpoint": None}))
    assert record.columns == [] == record.series("valid/loss") and record.direction("valid/accuracy") is None
    assert Record.open(tmp_path).events == record.events
    record.rewind(99, Event("resume"))  # more than there are: all stay valid
    assert len(record.events) == 2


def test_a_wrong_rewind_is_an_error(tmp_path):
    record = Record()
    record.append(Event("note"))
    with pytest.raises(InvalidArgument, match="rewind was given a 'begin' event; expected Event\\(\"resume\", …\\)"):
        record.rewind(0, Event("begin"))
    for kept in (-1, 1.5, "1", None, True):
        with pytest.raises(InvalidArgument, match=f"kept={kept!r}; expected the number of valid events before it"):
            record.rewind(kept, Event("resume"))  # type: ignore
    with pytest.raises(InvalidArgument, match="kept=None"):
        record.append(Event("resume"))
    assert len(record.events) == 1
    for line in (b'{"kind":"resume","time":1}\n', b'{"kind":"resume","time":1,"extra":{"kept":-1}}\n'):
        (tmp_path / "events.jsonl").write_bytes(line)
        with pytest.raises(BadFile, match='line 1: expected an event in JSON, but: a "resume" event has kept='):
            Record.open(tmp_path)


NAMES = ["train/loss", "valid/loss", "lr"]
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(["begin", "train", "valid", "epoch", "log", "note", "checkpoint", "end"]),
    time=st.integers(0, 100).map(float),
    epoch=st.integers(0, 3),
    update=st.integers(0, 9),
    values=st.dictionaries(st.sampled_from(NAMES), st.floats(width=16), max_size=2),
)
KILLS = st.tuples(st.just("kill"), st.integers(1, 40))
REWINDS = st.tuples(st.just("rewind"), st.integers(0, 12))


def answers(record):
    """All queries of a record's numbers; as text, so that NaN equals NaN."""
    lists = [(record.series(name), record.all(name)) for name in NAMES]
    single = [(record.last(name), record.best(name, "min"), record.best(name, "max")) for name in NAMES]
    return repr([lists, single, record.columns, dict(record.rows), record.summary()["seconds"]])


@settings(max_examples=60, deadline=None)
@given(actions=st.lists(EVENTS | KILLS | REWINDS, max_size=25))
def test_appends_kills_and_rewinds_leave_the_events_that_a_plain_list_holds(tmp_path_factory, actions):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    record, expected = Record(path), []
    for action in actions:
        match action:
            case ("kill", cut):  # a kill in the middle of the last line
                record.close()
                data = path.read_bytes()
                last = data[data.rfind(b"\n", 0, -1) + 1 :]
                path.write_bytes(data[: max(len(data) - cut, len(data) - len(last))])
                if cut > 1 and last and not (expected and expected[-1].kind == "resume"):
                    expected = expected[:-1]
                elif cut > 1 and last:  # the events that it had voided are valid again
                    expected = list(Record.open(path).events)
                record = Record(path)
            case ("rewind", kept):
                event = Event("resume", 50.0, extra={"checkpoint": "00000001", "kept": kept})
                expected = [*expected[:kept], event]
                record.rewind(kept, event)
            case event:
                expected.append(event)
                record.append(event)
    reference = Record()
    for event in expected:
        reference.append(event)
    read = Record.open(path)
    assert repr(read.events) == repr(record.events) == repr(tuple(expected))
    assert answers(read) == answers(record) == answers(reference)
    for kind in ("begin", "valid", "note"):
        assert repr(read.events_of(kind)) == repr([event for event in expected if event.kind == kind])
    record.close()


def test_sync_writes_the_file_and_its_name_to_the_disk(tmp_path, monkeypatch):
    Record().sync()
    run, synced = Run.create(tmp_path), []
    run.record.append(Event("note"))
    monkeypatch.setattr("os.fsync", synced.append)
    run.record.sync()
    assert len(synced) == 2  # the file, and the directory
    run.close()
    run.record.sync()
    assert len(synced) == 4 and run.writer is None  # closed again


def test_a_full_disk_is_a_warning_and_the_events_are_written_later(tmp_path):
    """A limit on the size of files stands for the full disk: writes are short, then fail."""
    path = tmp_path / "events.jsonl"
    record = Record(path)
    record.append(Event("note", text="before"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
    try:
        for number in range(3):
            record.append(Event("note", text=f"full {number}"))
        with pytest.raises(OSError, match="File too large"):
            record.sync()
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
        with pytest.raises(OSError, match="File too large"):  # there is room for a part, but not for all
            record.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [event.text for event in Record.open(tmp_path).events] == ["before"]
    record.sync()
    assert [event.text for event in Record.open(tmp_path).events if event.kind == "note"][-1] == "full 2"
    record.append(Event("note", text="after"))
    (warning,) = record.events_of("warning")
    assert "events.jsonl can't be written (" in warning.text and "the next event tries again" in warning.text
    assert {event.text for event in record.events_of("note")} == {"before", "full 0", "full 1", "full 2", "after"}
    assert Record.open(tmp_path).events == record.events


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(
    event=st.builds(
        Event,
        kind=st.text(min_size=1).filter(lambda kind: kind != "resume"),
        time=st.floats(0, 1e12),
        epoch=st.integers(0, 10**9),
        batch=st.integers(0, 10**9),
        update=st.integers(0, 10**12),
        values=st.dictionaries(st.text(), st.floats()),
        text=st.text(),
        extra=st.dictionaries(st.text(), JSON_VALUES, max_size=3),
    )
)
def test_an_event_on_disk_is_one_line_and_exact(tmp_path_factory, event):
    path = tmp_path_factory.mktemp("run") / "events.jsonl"
    record = Record(path)
    record.append(event)
    record.close()
    assert path.read_bytes().count(b"\n") == 1
    (read,) = Record.open(path).events
    assert repr(read) == repr(event)  # repr of a float is exact, and NaN equals NaN


def test_the_line_is_strict_json_without_empty_fields(tmp_path):
    @dataclass
    class Inner:
        path: Path
        betas: tuple

    extra = {"inner": Inner(Path("a/b"), (0.9, math.inf)), 3: {1}, "type": torch.float32, "n": np.int64(4)}
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 0.1}
    Record(tmp_path / "events.jsonl").append(Event("valid", 2.0, epoch=1, values=values, extra=extra))
    assert json.loads((tmp_path / "events.jsonl").read_bytes(), parse_constant=pytest.fail) == {
        "kind": "valid",
        "time": 2.0,
        "epoch": 1,
        "values": {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.1},
        "extra": {"inner": {"path": "a/b", "betas": [0.9, "Infinity"]}, "3": [1], "type": "torch.float32", "n": 4},
    }
