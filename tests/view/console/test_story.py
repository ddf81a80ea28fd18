"""The sentences, where a fit is odd; the usual ones are in the tests of the displays."""

from stoker.record import Event, Record
from stoker.view.console._story import ending, plan, reason, resumed, speed, title
from stoker.view.console._watch import Watch
from tests.view.console.scenes import begin, end, epoch, progress


def watching(**extra):
    record = Record()
    watch = Watch(record)
    record.subscribe(watch.see)
    begin(record, **extra)
    return record, watch


def test_of_what_nobody_said_nothing_is_made_up():
    watch = Watch(Record())
    assert (title(watch), plan(watch), speed(watch)) == ("model", "until something stops it", "")
    assert ending(watch) == "0 epochs, 0 updates in 0.00 s"


def test_all_limits_are_told():
    _, watch = watching(epochs=3, updates=1000, minutes=1.5)
    assert plan(watch) == "3 epochs of 10 batches or 1,000 updates or 1.5 minutes"


def test_an_epoch_that_was_not_finished_does_not_count():
    record, watch = watching()
    epoch(record, 1)
    progress(record, 2, 3, at=1003.0)
    assert ending(watch) == "1 epoch, 13 updates in 3.00 s"


def test_an_error_says_more_than_a_stop():
    record, watch = watching()
    record.append(Event("stop", 1001.0, epoch=1, text="NaN"))
    assert reason(watch) == "NaN"
    record.append(Event("error", 1001.0, epoch=1, batch=2, text="NotFinite: the loss"))
    assert reason(watch) == "failed in epoch 1, batch 2: NotFinite: the loss"


def test_a_planned_end_needs_no_reason():
    record, watch = watching()
    end(record, 4)
    assert reason(watch) == ""


def test_where_a_run_goes_on():
    def told(epoch, batch, update, **extra):
        return resumed(Event("resume", epoch=epoch, batch=batch, update=update, extra={"kept": 0, **extra}))

    found = {"checkpoint": "00001120"}
    assert told(3, 12, 1120, **found, batches=None) == "resumed from 00001120: epoch 3, batch 12, update 1,120"
    assert told(3, 0, 1120, **found, batches=20) == "resumed from 00001120: epoch 3, update 1,120"
    assert told(0, 0, 0, checkpoint=None) == "resumed from the start: there is no checkpoint to go on from"
