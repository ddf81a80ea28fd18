"""The status of a run: phase, position, fraction done, speed and remaining time."""

import pytest

from stoker.record import Event, Record
from tests.record.examples import append_fit, follow, to_lines


def status_of(run, *events):
    (run.path / "events.jsonl").write_bytes(to_lines(events))
    return follow(run).status


BEGIN = Event("begin", 1000.0, extra={"epochs": 4, "batches": 10})


def progress(epoch, batch, time):
    values, extra = {"train/loss": 0.5}, {"phase": "train", "batches": 10, "samples_per_second": 640.0}
    return Event("progress", time, epoch, batch, 10 * (epoch - 1) + batch, values, extra=extra)


def test_the_status_in_the_middle_of_an_epoch(run):
    status = status_of(run, BEGIN, progress(1, 5, 1005.0), progress(2, 5, 1015.0))
    assert (status.phase, status.set_name, status.epoch, status.epochs) == ("train", "train", 2, 4)
    assert (status.batch, status.batches, status.update, status.updates) == (5, 10, 15, None)
    assert (status.phase_fraction, status.fraction, status.seconds) == (0.5, 0.375, 15.0)
    assert status.seconds_left == pytest.approx(25.0) and status.updates_per_second == 1.0
    assert status.samples_per_second == 640.0 and status.latest == {"train/loss": 0.5} and status.time == 1015.0


def test_the_status_of_a_validation(run):
    extra = {"phase": "valid", "batches": 6}
    validation = Event("progress", 1021.0, 2, 3, 20, {"valid/loss": 0.4}, extra=extra)
    status = status_of(run, BEGIN, progress(2, 9, 1019.0), validation)
    assert (status.phase, status.set_name, status.batch, status.batches) == ("valid", "valid", 3, 6)
    assert (status.phase_fraction, status.fraction) == (0.5, 0.5)
    other = Event("progress", 1001.0, 1, 1, 1, {"test/loss": 0.5}, extra={"phase": "valid"})
    status = status_of(run, BEGIN, other)
    assert status.set_name == "test" and status.phase_fraction is None, "its number of batches is unknown"


def test_the_status_between_two_epochs_and_at_the_end(run):
    end_of_epoch = Event("epoch", 1010.0, 1, 10, 10, {"samples_per_second": 400.0})
    status = status_of(run, BEGIN, progress(1, 9, 1009.0), end_of_epoch)
    assert (status.phase, status.phase_fraction, status.fraction) == ("train", 1.0, 0.25)
    assert status.samples_per_second == 400.0
    status = status_of(run, *append_fit(Record()).events)
    assert (status.phase, status.fraction, status.seconds_left) == ("over", 1.0, 0.0)
    assert (status.best.name, status.best.epoch) == ("valid/loss", 3)


@pytest.mark.parametrize(("text", "epochs", "fraction"), [("Completed 4 epochs", 4, 1.0), ("enough", 3, 0.75)])
def test_stop_and_end_do_not_start_an_epoch(run, text, epochs, fraction):
    numbers = [Event("epoch", 1010.0 * epoch, epoch, 10, 10 * epoch, {"lr": 0.1}) for epoch in range(1, epochs + 1)]
    place = (5000.0, epochs, 10, 10 * epochs)
    ends = [Event("stop", *place, text=text), Event("end", *place, extra={"epochs": epochs})]
    status = status_of(run, BEGIN, *numbers, *ends)
    assert (status.phase, status.phase_fraction, status.fraction) == ("over", 1.0, fraction)


@pytest.mark.parametrize(
    ("plan", "fraction"),
    [({}, None), ({"epochs": 0}, None), ({"epochs": 4}, 0.25), ({"epochs": 4, "updates": 20}, 0.5)]
    + [({"minutes": 2}, 0.75), ({"minutes": 1}, 1.0)],
)
def test_of_several_limits_the_nearest_counts(run, plan, fraction):
    begin = Event("begin", 1000.0, extra=plan)
    assert status_of(run, begin, Event("epoch", 1090.0, 1, 10, 10, {"lr": 0.1})).fraction == fraction


def test_a_resumed_run_counts_its_training_time_and_the_rate_of_this_process(run):
    events = [BEGIN, progress(1, 5, 1005.0), progress(1, 8, 1008.0)]
    resume = Event("resume", 5000.0, 1, 5, 5, extra={"kept": 2})
    status = status_of(run, *events, resume, progress(1, 7, 5002.0))
    assert (status.seconds, status.batch, status.updates_per_second) == (7.0, 7, 1.0)


def test_messages_have_no_place_in_the_training(run):
    notes = [Event("note", 1003.0), progress(1, 4, 1004.0), Event("warning", 1005.0)]
    status = status_of(run, BEGIN, progress(1, 2, 1002.0), *notes)
    assert (status.epoch, status.update, status.updates_per_second) == (1, 4, 1.0)
    assert status_of(run, BEGIN, progress(2, 1, 1021.0), Event("checkpoint", 1022.0, 1, 10, 10)).epoch == 2
    slow = status_of(run, BEGIN, progress(1, 2, 2000.0), progress(1, 3, 3000.0))
    assert slow.updates_per_second == 0.001


def test_the_time_left_leaves_out_starting_and_compiling_and_includes_validation():
    """Start-up and the first batch take 100 s, then an update 1 s and the validation of an epoch 5 s."""
    record, now = Record(), 100.0
    record.append(Event("begin", 0.0, extra={"epochs": 4, "batches": 10}))
    left = {}
    for epoch in range(1, 5):
        for batch in range(1, 11):
            update = 10 * (epoch - 1) + batch
            now += update > 1
            extra = {"phase": "train", "batches": 10}
            values = {"train/loss": 1.0}
            record.append(Event("progress", now, epoch=epoch, batch=batch, update=update, values=values, extra=extra))
            left[update] = record.status().seconds_left
        now += 5
        record.append(Event("epoch", now, epoch=epoch, batch=10, update=update, values={"train/loss": 1.0}))
    assert left[1] is None and left[3] == pytest.approx(37.0), "an update takes 1 s as far as is known"
    assert left[20] == pytest.approx(2 * 15 + 5, rel=0.1) and left[30] == pytest.approx(15 + 5, rel=0.1)
    assert all(left[update] - left[update + 1] == pytest.approx(1.0) for update in range(22, 29)), "it counts down"
    assert record.status().seconds_left == 0
