"""Where a run stands."""

import pytest

from stoker.record import Event
from stoker.record._answers import Answers
from stoker.record._columns import Columns
from stoker.record._status import fraction_done, status_of
from stoker.record._summary import summarize
from tests.record.stories import METRICS, story

BEGIN = Event("begin", 1000.0, extra={"epochs": 4, "batches": 10, "metrics": METRICS, "monitor": "valid/loss"})


def status(*events):
    columns = Columns()
    columns.take(events)
    answers = Answers(columns)
    return status_of(columns, answers, summarize(answers))


def progress(epoch, batch, time, *, phase="train", batches=10, **values):
    extra = {"phase": phase, "batches": batches, "samples_per_second": 500.0}
    update = 10 * (epoch - 1) + (batch if phase == "train" else 10)
    return Event("progress", time, epoch, batch, update, {f"{phase}/{k}": v for k, v in values.items()}, extra=extra)


def test_before_anything_happens():
    found = status()
    assert (found.phase, found.epoch, found.update, found.when) == ("starting", 0, 0, 0.0)
    assert found.fraction is None and found.left is None and found.best is None and found.updates_per_second is None
    assert status(BEGIN).phase == "starting" and status(BEGIN).fraction == 0.0


def test_in_the_middle_of_an_epoch():
    found = status(BEGIN, progress(1, 2, 1002.0, loss=0.9), progress(1, 5, 1005.0, loss=0.8))
    assert (found.phase, found.set_name) == ("train", "train")
    assert (found.epoch, found.epochs, found.batch, found.batches) == (1, 4, 5, 10)
    assert (found.update, found.updates) == (5, None)
    assert (found.within, found.fraction) == (0.5, 0.125)
    assert (found.seconds, found.left) == (5.0, pytest.approx(35.0))
    assert (found.samples_per_second, found.updates_per_second) == (500.0, 1.0)
    assert found.latest == {"train/loss": 0.8} and found.when == 1005.0


def test_in_a_validation():
    found = status(BEGIN, progress(2, 10, 1020.0), progress(2, 3, 1021.0, phase="valid", batches=6, loss=0.5))
    assert (found.phase, found.set_name, found.batch, found.batches) == ("valid", "valid", 3, 6)
    assert (found.within, found.fraction) == (0.5, 0.5)


def test_the_set_of_a_validation_is_named():
    event = Event("progress", 1001.0, 1, 1, 1, {"test/loss": 0.5}, extra={"phase": "valid"})
    assert status(BEGIN, event).set_name == "test"
    assert status(BEGIN, event).within is None, "nobody knows how many batches it has"


def test_between_two_epochs():
    found = status(BEGIN, progress(1, 9, 1009.0), Event("epoch", 1010.0, 1, 10, 10, {"samples_per_second": 400.0}))
    assert (found.phase, found.within, found.fraction, found.samples_per_second) == ("train", 1.0, 0.25, 400.0)


def test_when_it_is_over():
    found = status(*story().events)
    assert (found.phase, found.fraction, found.left) == ("over", 1.0, 0.0)
    assert found.best is not None and (found.best.name, found.best.epoch) == ("valid/loss", 3)


@pytest.mark.parametrize(("text", "epochs", "fraction"), [("Completed 4 epochs", 4, 1.0), ("enough", 3, 0.75)])
def test_the_last_words_open_no_epoch(text, epochs, fraction):
    """A fit tells its end with the epoch that it ended in."""
    numbers = [Event("epoch", 1010.0 * epoch, epoch, 10, 10 * epoch, {"lr": 0.1}) for epoch in range(1, epochs + 1)]
    place = (5000.0, epochs, 10, 10 * epochs)
    found = status(BEGIN, *numbers, Event("stop", *place, text=text), Event("end", *place, extra={"epochs": epochs}))
    assert (found.phase, found.within, found.fraction) == ("over", 1.0, fraction)


def test_a_run_that_came_as_far_as_planned_is_done_by_any_measure():
    plan = Event("begin", 1000.0, extra={"epochs": 100, "updates": 15})
    last = (1010.0, 2, 5, 15)
    found = status(plan, progress(2, 4, 1009.0), Event("stop", *last, text="Completed 15 updates"), Event("end", *last))
    assert (found.fraction, found.left) == (1.0, 0.0)


def test_a_resumed_run_counts_all_that_was_trained():
    first = [BEGIN, progress(1, 5, 1005.0), progress(1, 8, 1008.0)]
    found = status(*first, Event("resume", 5000.0, 1, 5, 5, extra={"kept": 2}), progress(1, 7, 5002.0))
    assert (found.seconds, found.batch, found.updates_per_second) == (7.0, 7, 1.0)


def test_notes_have_no_place_in_the_training():
    events = [BEGIN, progress(1, 2, 1002.0), Event("note", 1003.0), progress(1, 4, 1004.0), Event("warning", 1005.0)]
    found = status(*events)
    assert (found.epoch, found.update, found.updates_per_second) == (1, 4, 1.0)


def test_a_slow_run_has_a_pace_too():
    found = status(BEGIN, progress(1, 2, 2000.0), progress(1, 3, 3000.0))
    assert found.updates_per_second == 0.001


@pytest.mark.parametrize(
    ("plan", "fraction"),
    [
        ({}, None),
        ({"epochs": 0}, None),
        ({"epochs": 4}, 0.25),
        ({"epochs": 4, "updates": 20}, 0.5),
        ({"minutes": 2}, 0.75),
        ({"minutes": 1}, 1.0),
    ],
)
def test_of_several_limits_the_nearest_counts(plan, fraction):
    assert fraction_done(plan, epochs=1.0, updates=10, seconds=90.0) == fraction


def test_the_pace_is_that_of_this_process():
    first = [BEGIN, progress(1, 5, 1005.0)]
    found = status(*first, Event("resume", 1015.0, 1, 5, 5, extra={"kept": 2}), progress(1, 7, 1017.0))
    assert found.updates_per_second == 1.0


def test_a_checkpoint_of_the_epoch_before_moves_nothing_back():
    saved = Event("checkpoint", 1022.0, 1, 10, 10)
    assert status(BEGIN, progress(2, 1, 1021.0), saved).epoch == 2
