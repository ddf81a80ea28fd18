"""What is known of a fit at each moment."""

import math

import pytest

from stoker.record import Event, Record
from stoker.view.console._watch import Watch
from tests.view.console.scenes import begin, cut_short, end, epoch, progress, resume


@pytest.fixture
def record():
    return Record()


@pytest.fixture
def watch(record):
    watch = Watch(record)
    record.subscribe(watch.see)
    return watch


def test_the_share_of_the_plan_that_is_done(record, watch):
    assert watch.fraction() is None and watch.seconds == 0 and watch.epoch == 0
    begin(record)
    assert watch.fraction() == 0 and watch.left() is None
    progress(record, 1, 5, at=1003.0)
    assert watch.within() == 0.5 and watch.fraction() == 0.125
    assert watch.seconds == 3.0 and watch.left() == pytest.approx(21.0)
    progress(record, 1, 2, at=1004.0, phase="valid", batches=4)
    assert watch.validating and watch.within() == 0.5 and watch.fraction() == 0.25
    epoch(record, 1)
    assert watch.within() == 1.0 and watch.fraction() == 0.25
    epoch(record, 4)
    assert watch.fraction() == 1.0 and watch.left() == 0.0


def test_the_limit_that_is_nearest_counts(record, watch):
    begin(record, epochs=4, updates=20, minutes=10)
    progress(record, 1, 10, at=1006.0)
    assert watch.fraction() == 0.5
    progress(record, 1, 10, at=1000.0 + 570)
    assert watch.fraction() == 0.95


def test_without_a_planned_end_nobody_knows(record, watch):
    begin(record, epochs=None, batches=None)
    progress(record, 1, 5, at=1003.0, batches=None)
    assert watch.within() is None and watch.fraction() is None and watch.left() is None


def test_better_is_what_the_metric_says(record, watch):
    begin(record)
    epoch(record, 1, valid={"loss": 0.5, "accuracy": 0.5})
    assert not any(row.improved for row in watch.rows()), "the first epoch improves on nothing"
    epoch(record, 2, valid={"loss": 0.6, "accuracy": 0.6})
    assert {row.name: row.improved for row in watch.rows()} == {"loss": False, "accuracy": True}
    epoch(record, 3, valid={"loss": 0.4, "accuracy": 0.6})
    assert {row.name: row.improved for row in watch.rows()} == {"loss": True, "accuracy": False}, "a tie is none"
    progress(record, 4, 1, at=1009.0)
    assert {row.name: row.improved for row in watch.rows()}["loss"], "the number that is shown is still the best one"
    epoch(record, 4, valid={"loss": math.nan, "accuracy": 0.1})
    rows = {row.name: row for row in watch.rows()}
    assert not rows["loss"].improved and rows["loss"].best.epoch == 3 and rows["accuracy"].best.value == 0.6


def test_a_running_number_is_no_best(record, watch):
    begin(record, monitor=None)
    epoch(record, 1, train=0.5)
    epoch(record, 2, train=0.25)
    assert watch.rows()[0].improved
    progress(record, 3, 1, at=1009.0, values={"train/loss": 0.75})
    assert not watch.rows()[0].improved


def test_a_number_without_a_direction_has_no_best(record, watch):
    begin(record)
    for number in (1, 2):
        epoch(record, number, valid={"loss": 1 / number, "entropy": 1 / number})
    assert {row.name: row.best is not None for row in watch.rows()} == {"loss": True, "entropy": False}


def test_running_numbers_stand_over_finished_ones(record, watch):
    begin(record)
    epoch(record, 1, train=0.5, valid=0.7)
    progress(record, 2, 1, at=1003.0, values={"train/loss": 0.3, "lr": 0.1})
    assert watch.rows()[0].values == {"train": 0.3, "valid": 0.7} and watch.meters() == {"lr": 0.1}


def test_names_are_told_apart_by_the_sets_there_are(record, watch):
    begin(record, monitor="b/loss")
    record.append(Event("valid", 1001.0, epoch=1, values={"a/loss": 1.0, "a/recall/0": 0.1}))
    record.append(Event("valid", 1001.0, epoch=1, values={"b/loss": 2.0}))
    values = {"train/loss": 3.0, "lr/head": 0.1, "mine/x": 4.0, "gpu_memory": 5.0}
    record.append(Event("epoch", 1002.0, epoch=1, values=values))
    assert watch.sets == ["train", "a", "b"] and watch.watched == "b"
    assert [(row.name, row.values) for row in watch.rows()] == [("loss", {"a": 1.0, "b": 2.0, "train": 3.0})]
    assert watch.meters() == {"lr/head": 0.1, "mine/x": 4.0, "gpu_memory": 5.0}


def test_the_curve_is_the_running_loss_until_there_are_two_epochs(record, watch):
    begin(record)
    assert watch.curves() == {}
    for batch in (1, 2, 3):
        progress(record, 1, batch, at=1001.0, values={"train/loss": 1 / batch})
    epoch(record, 1, train=0.5, valid=0.6)
    assert watch.curves() == {"train/loss": [1.0, 1 / 2, 1 / 3]}
    epoch(record, 2, train=0.25, valid=0.3)
    assert watch.curves() == {"train/loss": [0.5, 0.25], "valid/loss": [0.6, 0.3]}


def test_a_long_first_epoch_does_not_fill_the_memory(record, watch):
    begin(record)
    for batch in range(5000):
        progress(record, 1, batch, at=1001.0)
    assert 500 <= len(watch.running) <= 1000


def test_the_end_is_what_the_clock_stops_at(record, watch):
    begin(record)
    epoch(record, 1)
    end(record, 3)
    assert watch.seconds == 6.0 and watch.end is not None


@pytest.mark.parametrize("anew", [True, False])
def test_a_resumed_fit_goes_on_from_what_stands(record, watch, anew):
    kept = cut_short(record)
    if anew:  # another process, which has heard nothing of it
        watch = Watch(record)
        record.subscribe(watch.see)
    resume(record, kept)
    record.append(Event("warning", 5000.5, epoch=3, text="a checkpoint was skipped"))
    assert watch.values == {"train/loss": 0.5, "valid/loss": 0.25} and watch.sets == ["train", "valid"]
    assert watch.curves()["valid/loss"][:2] == [0.5, 0.25] and watch.rows()[0].best.epoch == 2
    assert watch.updates == 25 and watch.within() == 0.5 and watch.fraction() == 0.625
    begin(record, at=5001.0)
    assert watch.seconds == 5.0 and watch.left() == pytest.approx(3.0)  # at the pace of the five seconds that stand
    progress(record, 3, 6, at=5003.0)
    assert watch.within() == 0.6 and watch.seconds == 7.0
    epoch(record, 3, at=5004.0, valid=0.2)
    assert watch.rows()[0].improved and watch.end is None and watch.stopped == ""


def test_a_resumed_fit_is_not_over_because_it_was(record, watch):
    begin(record)
    epoch(record, 1)
    record.append(Event("stop", 1002.0, epoch=1, text="Interrupted"))
    record.append(Event("error", 1002.0, epoch=1, text="boom"))
    end(record, 1)
    resume(record, len(record.events))
    assert (watch.end, watch.failed, watch.stopped) == (None, None, "")


def test_a_checkpoint_takes_nothing_back(record, watch):
    begin(record)
    epoch(record, 1)
    record.append(Event("checkpoint", 1002.5, epoch=1, batch=10, update=10, extra={"name": "00000010"}))
    record.append(Event("warning", 1002.5, epoch=1, batch=10, update=10, text="careful"))
    assert watch.within() == 1.0 and watch.fraction() == 0.25
