"""The record: events in, answers out, listeners told."""

import math
import resource

import pytest

from stoker.errors import BadFile, InvalidArgument
from stoker.record import Best, Event, Record
from stoker.record._lock import is_written
from tests.record.stories import METRICS, numbers, same, story


def test_questions():
    record = story()
    assert record.series("valid/loss") == pytest.approx([0.7, 0.6, 0.5, 0.6, 0.7])
    assert record.best("valid/loss") == Best(3, 30, 0.5, "valid/loss")
    assert record.best("valid/accuracy") == Best(5, 50, 0.55, "valid/accuracy")
    assert record.best("valid/accuracy", "min") == Best(1, 10, 0.51, "valid/accuracy")
    assert record.last("train/loss") == 0.2
    assert record.all("train/loss") == [(10, 1.0), (20, 1 / 2), (30, 1 / 3), (40, 1 / 4), (50, 1 / 5)]
    assert record.columns == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"]
    assert record.rows[2]["lr"] == 0.05
    assert [event.kind for event in record.events[:5]] == ["begin", "progress", "train", "valid", "epoch"]
    assert len(record.events_of("valid")) == 5


def test_what_has_not_happened_has_an_empty_answer():
    record = Record()
    assert record.series("valid/loss") == [] == record.all("valid/loss") == record.events_of("valid")
    assert record.last("valid/loss") is None is record.best("valid/loss")


def test_nan_never_wins_and_of_equal_ones_the_first_does():
    assert numbers([math.nan, 0.5, math.nan, 0.5, 0.7]).best("valid/loss").epoch == 2
    assert numbers([math.nan, math.nan]).best("valid/loss") is None
    assert numbers([math.inf, 3.0]).best("valid/loss").epoch == 2


def test_an_epoch_without_a_number_is_nan():
    assert same(story(valid_every=2).series("valid/loss"), [math.nan, 0.6, math.nan, 0.6, math.nan])


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("valid/accuracy", "max"),
        ("holdout/accuracy", "max"),
        ("train/loss", "min"),
        ("valid/recall/3", "max"),
        ("valid/f1/macro/3", "min"),
        ("valid/own", "min"),
        ("lr", None),
        ("valid/recal", None),
    ],
)
def test_the_direction_is_the_metrics_own(name, direction):
    record = Record()
    declared = {"recall": {"direction": "max"}, "f1/macro": {"direction": "min"}, "valid/own": {"direction": "min"}}
    record.append(Event("begin", extra={"metrics": {**METRICS, **declared, "lr": {"direction": None}}}))
    assert record.direction(name) == direction
    assert record.unit("valid/accuracy") == "%" and record.unit("lr") == ""


def test_a_number_without_a_direction_has_no_best_until_one_is_given():
    record = numbers([3.0, 1.0, 2.0], name="temperature")
    with pytest.raises(InvalidArgument, match="is a low or a high 'temperature' better\\? Say direction=\"min\""):
        record.best("temperature")
    assert record.best("temperature", "max").value == 3.0
    with pytest.raises(InvalidArgument, match='direction=\'lower\': expected "min" or "max"'):
        record.best("temperature", "lower")  # type: ignore


def test_questions_do_not_go_through_all_events():
    class Untouchable(list):
        def __iter__(self):
            raise AssertionError("somebody goes through all events")

    record = story()
    expected = [record.series("valid/loss"), record.best("valid/loss"), record.last("lr"), record.all("lr")]
    record._events = Untouchable(record._events)
    record._by_kind = {kind: Untouchable(events) for kind, events in record._by_kind.items()}
    assert [record.series("valid/loss"), record.best("valid/loss"), record.last("lr"), record.all("lr")] == expected


def test_listeners_hear_everything_in_order_until_they_unsubscribe():
    record, heard, other = Record(), [], []
    unsubscribe = record.subscribe(heard.append)
    record.append(Event("note", text="a"))
    record.subscribe(other.append)
    record.append(Event("note", text="b"))
    unsubscribe()
    unsubscribe()
    record.append(Event("note", text="c"))
    assert [event.text for event in heard] == ["a", "b"] and [event.text for event in other] == ["b", "c"]


def test_a_listener_that_fails_costs_one_warning_and_nothing_else():
    record, heard = Record(), []

    def clumsy(event):
        raise ZeroDivisionError("by zero")

    record.subscribe(clumsy)
    record.subscribe(heard.append)
    for number in range(3):
        record.append(Event("note", text=str(number)))
    texts = [event.text for event in heard]
    assert [event.text for event in record.events] == texts and texts[0] == "0" and texts[2:] == ["1", "2"]
    assert "clumsy failed at a 'note' event: ZeroDivisionError: by zero" in texts[1]
    assert [event.kind for event in heard] == ["note", "warning", "note", "note"]


def test_an_event_that_a_listener_appends_has_its_turn():
    record, first, second = Record(), [], []

    def answering(event):
        first.append(event.text)
        if event.text == "question":
            record.append(Event("note", text="answer"))

    record.subscribe(answering)
    record.subscribe(lambda event: second.append(event.text))
    record.append(Event("note", text="question"))
    record.append(Event("note", text="next"))
    assert first == second == ["question", "answer", "next"]


def test_an_interrupt_in_a_listener_goes_through_and_leaves_the_record_working():
    record, heard = Record(), []

    def interrupted(event):
        if event.text == "first":
            raise KeyboardInterrupt
        heard.append(event.text)

    record.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        record.append(Event("note", text="first"))
    record.append(Event("note", text="second"))
    assert heard == ["second"] and len(record.events) == 2


def test_of_progress_one_event_a_second_is_kept_and_all_are_heard(tmp_path):
    record, heard = Record(tmp_path / "events.jsonl"), []
    record.subscribe(heard.append)
    for tenth in range(31):
        record.append(Event("progress", 100 + tenth / 10, update=tenth))
    record.append(Event("progress", 50.0))  # the clock was set back
    assert len(heard) == 32
    assert [event.time for event in record.events] == [100.0, 101.0, 102.0, 103.0, 50.0]
    assert Record.open(tmp_path).events == record.events


def test_what_was_written_is_what_is_read_and_gives_the_same_answers(tmp_path):
    record = Record(tmp_path / "events.jsonl")
    for event in story(valid_every=2).events:
        record.append(event)
    for path in (tmp_path, tmp_path / "events.jsonl", str(tmp_path)):
        opened = Record.open(path)
        assert opened.events == record.events and opened.summary() == record.summary()
        assert same(opened.series("valid/loss"), record.series("valid/loss"))


def test_a_record_goes_on_where_its_file_ends(tmp_path):
    first = Record(tmp_path / "events.jsonl")
    first.append(Event("note", text="a"))
    first.close()
    first.append(Event("note", text="b"))  # opens itself again
    first.close()
    second = Record(tmp_path / "events.jsonl")
    second.append(Event("note", text="c"))
    assert [event.text for event in second.events] == ["a", "b", "c"]
    assert Record.open(tmp_path).events == second.events


def test_a_rewind_makes_void_what_came_after(tmp_path):
    record, heard = Record(tmp_path / "events.jsonl"), []
    rows = record.rows
    for event in story(end=False).events:
        record.append(event)
    record.subscribe(heard.append)
    record.rewind(9, Event("resume", 2000.0, epoch=2, update=20, extra={"checkpoint": "00000020"}))
    assert record.series("valid/loss") == pytest.approx([0.7, 0.6]) and record.best("valid/loss").epoch == 2
    assert record.last("train/loss") == 0.5 and record.all("lr") == [(10, 0.1), (20, 0.05)]
    assert list(rows) == [1, 2] and len(record.events) == 10  # a view from before shows what stands
    assert [(event.kind, event.extra) for event in heard] == [("resume", {"checkpoint": "00000020", "kept": 9})]
    record.append(Event("valid", epoch=3, update=30, values={"valid/loss": 0.4}))
    assert record.best("valid/loss") == Best(3, 30, 0.4, "valid/loss")
    record.rewind(0, Event("resume", extra={"checkpoint": None}))
    assert record.columns == [] == record.series("valid/loss") and record.direction("valid/accuracy") is None
    assert Record.open(tmp_path).events == record.events
    record.rewind(99, Event("resume"))  # more than there are: all stand
    assert len(record.events) == 2


def test_what_is_no_rewind(tmp_path):
    record = Record()
    record.append(Event("note"))
    with pytest.raises(InvalidArgument, match="rewind was given a 'begin' event; expected Event\\(\"resume\", …\\)"):
        record.rewind(0, Event("begin"))
    for kept in (-1, 1.5, "1", None, True):
        with pytest.raises(InvalidArgument, match=f"kept={kept!r}; expected how many of the events before it stand"):
            record.rewind(kept, Event("resume"))  # type: ignore
    with pytest.raises(InvalidArgument, match="kept=None"):
        record.append(Event("resume"))
    assert len(record.events) == 1
    for line in (b'{"kind":"resume","time":1}\n', b'{"kind":"resume","time":1,"extra":{"kept":-1}}\n'):
        (tmp_path / "events.jsonl").write_bytes(line)
        for read in (Record, Record.open):
            with pytest.raises(BadFile, match='line 1: expected an event in JSON, but: a "resume" event with kept='):
                read(tmp_path)


def test_after_sync_everything_is_on_the_disk(tmp_path, monkeypatch):
    Record().sync()
    record, synced = Record(tmp_path / "events.jsonl"), []
    record.append(Event("note"))
    monkeypatch.setattr("os.fsync", synced.append)
    record.sync()
    assert len(synced) == 2  # the file, and the name of it in its folder
    record.close()
    record.sync()
    assert len(synced) == 4 and not is_written(tmp_path / "events.jsonl")  # it is closed as it was


def test_an_opened_record_writes_nothing(tmp_path):
    record = Record(tmp_path / "events.jsonl")
    record.append(Event("note"))
    before = (tmp_path / "events.jsonl").read_bytes()
    Record.open(tmp_path).append(Event("note"))
    assert (tmp_path / "events.jsonl").read_bytes() == before


def test_a_full_disk_is_a_warning_and_what_it_refused_is_written_later(tmp_path):
    """The limit on the size of files stands for the full disk: writes come short, then fail."""
    record = Record(tmp_path / "events.jsonl")
    record.append(Event("note", text="before"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "events.jsonl").stat().st_size + 10, before[1]))
    try:
        for number in range(3):
            record.append(Event("note", text=f"full {number}"))
        with pytest.raises(OSError, match="File too large"):
            record.sync()
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "events.jsonl").stat().st_size + 10, before[1]))
        with pytest.raises(OSError, match="File too large"):  # there is room for some of it, and some is not all
            record.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [event.text for event in Record.open(tmp_path).events] == ["before"]
    record.sync()
    assert [event.text for event in Record.open(tmp_path).events if event.kind == "note"][-1] == "full 2"
    record.append(Event("note", text="after"))
    assert [event.kind for event in record.events].count("warning") == 1
    assert "events.jsonl can't be written, and is tried again with each event" in record.events_of("warning")[0].text
    assert {event.text for event in record.events_of("note")} == {"before", "full 0", "full 1", "full 2", "after"}
    assert Record.open(tmp_path).events == record.events
