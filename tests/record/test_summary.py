"""The summary of a record."""

import json

import pytest

from stoker.record import Event, Follower, Record, Run
from tests.record.examples import example_record


def test_a_finished_run():
    summary = example_record().summary()
    assert summary["state"] == "finished" and summary["reason"] == ""
    assert [summary[name] for name in ("epochs", "epochs_planned", "updates", "seconds")] == [5, 5, 50, 50.0]
    assert summary["best"] == {"epoch": 3, "update": 30, "value": 0.5, "name": "valid/loss"}
    assert summary["last"]["train/loss"] == 0.2 and summary["monitor"] == "valid/loss"
    assert [summary[name] for name in ("model", "parameters", "device", "started")] == ["Net", 1234, "cpu", 1000.0]
    json.dumps(summary)


@pytest.mark.parametrize(
    ("options", "state", "reason"),
    [
        ({"end": False}, "running", ""),
        ({"end": False, "stop": "Early stopping"}, "running", "Early stopping"),
        ({"stop": "Early stopping", "planned": 9}, "finished", "Early stopping"),
        ({"stop": "Interrupted in epoch 5", "interrupted": True}, "stopped", "Interrupted in epoch 5"),
        ({"stop": "Completed 5 epochs", "planned": 5}, "finished", "Completed 5 epochs"),
    ],
)
def test_the_state_follows_from_the_stop_and_the_plan(options, state, reason):
    summary = example_record(**options).summary()
    assert (summary["state"], summary["reason"]) == (state, reason)


def test_an_error_means_failed_even_if_an_end_follows():
    record = example_record(end=False)
    record.append(Event("error", 2000.0, text="RuntimeError: boom"))
    record.append(Event("end", 2001.0))
    assert (record.summary()["state"], record.summary()["reason"]) == ("failed", "RuntimeError: boom")


def test_a_second_fit_is_running_and_time_between_fits_does_not_count():
    record = example_record(stop="enough")
    record.append(Event("begin", 3000.0, extra={"epochs": 9}))
    summary = record.summary()
    assert (summary["state"], summary["reason"], summary["epochs_planned"]) == ("running", "", 9)
    assert summary["seconds"] == 50.0


def test_a_resumed_run_counts_the_seconds_of_its_valid_parts():
    record = example_record(epochs=4, end=False)  # 10 seconds per epoch
    record.rewind(9, Event("resume", 5000.0, epoch=2, update=20, extra={"checkpoint": "00000020"}))
    assert record.summary()["state"] == "running" and record.summary()["seconds"] == 20.0
    record.append(Event("begin", 5003.0, extra={"minutes": 0.5}))
    record.append(Event("epoch", 5010.0, epoch=3, update=30, values={"valid/loss": 0.1}))
    summary = record.summary()
    assert (summary["seconds"], summary["epochs"], summary["updates"]) == (30.0, 3, 30)
    record.append(Event("stop", 5010.0, text="30 seconds are over"))
    record.append(Event("end", 5010.0, extra={"seconds": 10.5}))
    summary = record.summary()
    assert (summary["seconds"], summary["state"]) == (30.5, "finished")  # as long as planned, in two parts
    record.append(Event("begin", 6000.0, extra={"minutes": 0.5}))
    record.append(Event("stop", 6010.0, text="enough"))
    record.append(Event("end", 6010.0, extra={"seconds": 10.0, "interrupted": True}))
    assert record.summary()["state"] == "stopped"  # another fit, which a person stopped


@pytest.mark.parametrize(
    ("names", "monitor"),
    [
        (["train/loss", "valid/loss"], "valid/loss"),
        (["train/loss", "lr"], "train/loss"),
        (["lr"], None),
        (["lr", "test/loss"], "test/loss"),
    ],
)
def test_the_monitored_number_where_none_is_declared(names, monitor):
    record = Record()
    record.append(Event("epoch", epoch=1, values=dict.fromkeys(names, 1.0)))
    assert record.summary()["monitor"] == monitor == record.monitor


@pytest.mark.parametrize(
    ("batch", "after", "part"),
    [(3, [], [3, 25]), (25, [], None), (0, [], None), (3, [Event("begin", 9.0, extra={"batches": 25})], None)],
    ids=["cut", "complete", "unknown", "continued"],
)
def test_an_epoch_that_was_cut_short(batch, after, part):
    record = Record()
    record.append(Event("begin", 1.0, extra={"epochs": 50, "batches": 25}))
    record.append(Event("epoch", 2.0, epoch=41, batch=batch, update=1003))
    for event in (Event("end", 3.0, epoch=41, batch=batch, update=1003), *after):
        record.append(event)
    assert (record.summary()["epochs"], record.summary()["part"]) == (41 if part is None else 40, part)


@pytest.mark.parametrize("batches", [25, None])
@pytest.mark.parametrize("interrupted", [True, False])
def test_an_epoch_counts_when_all_sets_are_validated(tmp_path, batches, interrupted):
    run = Run.create(tmp_path / "run")
    plan = {"epochs": 4, "batches": batches, "valid": ["valid", "other"], "validate_every": "epoch"}
    run.record.append(Event("begin", 1.0, extra=plan))
    for epoch, sets in ((1, ["valid", "other"]), (2, ["valid"] if interrupted else ["valid", "other"])):
        place = {"epoch": epoch, "batch": 25, "update": 25 * epoch}
        values = {"train/loss": 1 / epoch, **{f"{name}/loss": 2 / epoch for name in sets}}
        for name in sets:
            run.record.append(Event("valid", 2.0, values={f"{name}/loss": 2 / epoch}, **place))
        run.record.append(Event("epoch", 2.0, values=values, **place))
    for note in range(2000 if batches else 0):  # large enough for an index
        run.record.append(Event("note", 2.5, text=f"note {note}: {'x' * 50}"))
    run.record.append(Event("end", 3.0, extra={"interrupted": interrupted}, **place))
    run.close()
    follower = Follower(run.path)
    follower.refresh(seconds=0)
    for found in (run.record, follower):
        summary = found.summary() if found is run.record else found.summary
        assert summary["epochs"] == (1 if interrupted else 2)
        assert summary["part"] == ([25, 25] if interrupted and batches else None)
        assert summary["last"] == {"train/loss": 1.0, "valid/loss": 2.0, "other/loss": 2.0} or not interrupted
    assert follower.has_unread == bool(batches)
