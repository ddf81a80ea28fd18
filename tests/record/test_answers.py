"""A record's questions, answered from columns."""

import math

from stoker.record import Event, Record
from stoker.record._answers import Answers, digest
from stoker.record._columns import Columns
from stoker.record._summary import summarize
from tests.record.stories import METRICS, fill, numbers, story


def answers_to(events):
    columns = Columns()
    columns.take(events)
    return Answers(columns)


def test_the_summary_of_a_few_events_is_that_of_all():
    twice = fill(fill(Record(), epochs=3, stop="enough"), planned=9, end=False)
    for record in (Record(), story(), story(end=False), story(stop="enough", planned=9), twice):
        assert summarize(answers_to(record.events)) == record.summary()
    assert len(answers_to(twice.events).events) < len(twice.events)


def test_a_digest_has_the_ends_of_every_part():
    times = [1.0, 2.0, 30.0, 100.0, 101.0, 105.0]
    kinds = ["begin", "log", "log", "resume", "log", "log"]
    events = [Event(kind, time, extra={"kept": 9}) for kind, time in zip(kinds, times, strict=True)]
    columns = Columns()
    columns.take(events)
    assert [event.time for event in digest(columns)] == [1.0, 30.0, 100.0, 105.0]
    assert summarize(Answers(columns))["seconds"] == 29.0 + 5.0


def test_the_best_is_the_first_of_equal_ones_and_never_nan():
    for values in ([0.5, 0.2, 0.2], [math.nan, 0.3], [math.nan, math.inf], [math.inf, -math.inf], [math.nan], []):
        record = numbers(values)
        for direction in ("min", "max"):
            assert answers_to(record.events).best("valid/loss", direction) == record.best("valid/loss", direction)


def test_nobody_knows_what_is_better():
    assert answers_to(numbers([1.0], name="lr").events).best("lr") is None


def test_the_latest_beginning_counts():
    begins = [Event("begin", 1.0, extra={"metrics": {}}), Event("begin", 2.0, extra={"metrics": METRICS})]
    answers = answers_to(begins)
    assert answers.begin is not None and answers.begin.time == 2.0
    assert (answers.direction("valid/accuracy"), answers.unit("valid/accuracy")) == ("max", "%")
    assert answers_to([]).begin is None and answers_to([]).direction("f1") is None


def test_the_highest_update_counts_wherever_it_stands():
    events = [Event("log", float(time), epoch=1, update=update) for time, update in enumerate([1, 9, 3, 4])]
    assert summarize(answers_to(events))["updates"] == 9
