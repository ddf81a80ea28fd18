"""A run in a few values."""

import json

import pytest

from stoker.record import Event, Record
from tests.record.stories import numbers, story


def test_a_finished_run():
    found = story().summary()
    assert found["state"] == "finished" and found["reason"] == ""
    assert (found["epochs"], found["epochs_planned"], found["updates"], found["seconds"]) == (5, 5, 50, 50.0)
    assert found["best"] == {"epoch": 3, "update": 30, "value": 0.5, "name": "valid/loss"}
    assert found["last"]["train/loss"] == 0.2 and found["monitor"] == "valid/loss"
    assert (found["model"], found["parameters"], found["device"], found["started"]) == ("Net", 1234, "cpu", 1000.0)
    json.dumps(found)


@pytest.mark.parametrize(
    ("story_of", "state", "reason"),
    [
        ({"end": False}, "running", ""),
        ({"end": False, "stop": "Early stopping"}, "running", "Early stopping"),
        ({"stop": "Early stopping", "planned": 9}, "stopped", "Early stopping"),
        ({"stop": "Completed 5 epochs", "planned": 5}, "finished", "Completed 5 epochs"),
    ],
)
def test_how_it_ended(story_of, state, reason):
    found = story(**story_of).summary()
    assert (found["state"], found["reason"]) == (state, reason)


@pytest.mark.parametrize(("plan", "state"), [({"updates": 50}, "finished"), ({"updates": 51}, "stopped")])
def test_a_plan_in_updates(plan, state):
    record = Record()
    record.append(Event("begin", extra=plan))
    record.append(Event("stop", epoch=2, update=50, text="a reason"))
    record.append(Event("end", epoch=2, update=50, extra={"seconds": 3.0}))
    assert record.summary()["state"] == state


def test_an_error_is_a_death_also_where_an_end_follows():
    record = story(end=False)
    record.append(Event("error", 2000.0, text="RuntimeError: boom"))
    record.append(Event("end", 2001.0))
    assert (record.summary()["state"], record.summary()["reason"]) == ("died", "RuntimeError: boom")


def test_a_run_that_goes_on_is_running_again():
    record = story(stop="enough")
    record.append(Event("begin", 3000.0, extra={"epochs": 9}))
    found = record.summary()
    assert (found["state"], found["reason"], found["epochs_planned"]) == ("running", "", 9)
    assert found["seconds"] == 50.0  # and not the time in which nobody trained


def test_a_resumed_run_has_the_seconds_of_what_stands():
    record = story(epochs=4, end=False)  # 10 seconds an epoch
    record.rewind(9, Event("resume", 5000.0, epoch=2, update=20, extra={"checkpoint": "00000020"}))
    assert record.summary()["state"] == "running" and record.summary()["seconds"] == 20.0
    record.append(Event("begin", 5003.0, extra={"minutes": 0.5}))
    record.append(Event("epoch", 5010.0, epoch=3, update=30, values={"valid/loss": 0.1}))
    found = record.summary()
    assert (found["seconds"], found["epochs"], found["updates"]) == (30.0, 3, 30)
    record.append(Event("stop", 5010.0, text="30 seconds are over"))
    record.append(Event("end", 5010.0, extra={"seconds": 10.5}))
    found = record.summary()
    assert (found["seconds"], found["state"]) == (30.5, "finished")  # as long as planned, in two parts
    record.append(Event("begin", 6000.0, extra={"minutes": 0.5}))
    record.append(Event("stop", 6010.0, text="enough"))
    record.append(Event("end", 6010.0, extra={"seconds": 10.0}))
    assert record.summary()["state"] == "stopped"  # another fit, which has half a minute of its own


def test_a_finished_run_that_is_resumed_runs_again():
    record = story(stop="Completed 5 epochs")
    record.rewind(len(record.events), Event("resume", 5000.0))
    found = record.summary()
    assert (found["state"], found["reason"], found["seconds"]) == ("running", "", 50.0)


def test_an_epoch_counts_when_it_is_done():
    record = story(epochs=2, end=False)
    record.append(Event("train", 1100.0, epoch=3, values={"train/loss": 0.1}))
    assert record.summary()["epochs"] == 2


@pytest.mark.parametrize(
    ("names", "monitor"),
    [
        (["train/loss", "valid/loss"], "valid/loss"),
        (["train/loss", "lr"], "train/loss"),
        (["lr"], None),
        (["lr", "test/loss"], "test/loss"),
    ],
)
def test_what_is_watched_where_nothing_is_declared(names, monitor):
    record = Record()
    record.append(Event("epoch", epoch=1, values=dict.fromkeys(names, 1.0)))
    assert record.summary()["monitor"] == monitor


def test_an_empty_record():
    found = Record().summary()
    assert found["state"] == "running" and found["best"] is None and found["started"] is None and found["epochs"] == 0


def test_a_run_of_nan_has_no_best():
    assert numbers([float("nan")]).summary()["best"] is None


@pytest.mark.parametrize(
    ("batch", "after", "part"),
    [(3, [], [3, 25]), (25, [], None), (0, [], None), (3, [Event("begin", 9.0, extra={"batches": 25})], None)],
    ids=["cut", "whole", "unknown", "goes on"],
)
def test_an_epoch_that_was_cut_short(batch, after, part):
    record = Record()
    record.append(Event("begin", 1.0, extra={"epochs": 50, "batches": 25}))
    record.append(Event("epoch", 2.0, epoch=41, batch=batch, update=1003))
    for event in (Event("end", 3.0, epoch=41, batch=batch, update=1003), *after):
        record.append(event)
    assert (record.summary()["epochs"], record.summary()["part"]) == (41, part)
