"""Columns: what stands, in rows that can be cut."""

import sys

import numpy as np

from stoker.record import Event, _columns
from stoker.record._columns import Columns
from tests.record.stories import fill, story


def columns_of(*events):
    columns = Columns()
    columns.take(events)
    return columns


def at(kind, epoch, update, **values):
    return Event(kind, float(update), epoch=epoch, update=update, values={f"valid/{k}": v for k, v in values.items()})


def test_an_epochs_event_that_says_it_again_adds_no_point():
    columns = columns_of(
        at("valid", 1, 10, loss=0.5), at("epoch", 1, 11, loss=0.5, f1=0.1), at("epoch", 2, 20, loss=0.5)
    )
    assert columns.finals("valid/loss").update.tolist() == [10, 20]
    assert columns.finals("valid/f1").update.tolist() == [11]


def test_nan_said_again_is_no_point_either():
    columns = columns_of(
        at("valid", 1, 10, loss=np.nan), at("epoch", 1, 11, loss=np.nan), at("valid", 1, 12, loss=np.nan)
    )
    assert columns.finals("valid/loss").update.tolist() == [10, 12]


def test_each_epochs_latest():
    columns = columns_of(
        at("valid", 1, 5, loss=0.9),
        at("valid", 1, 10, loss=0.5),
        at("log", 0, 11, loss=7.0),
        at("valid", 2, 15, loss=0.4),
    )
    points = columns.epochwise("valid/loss")
    assert (points.epoch.tolist(), points.update.tolist(), points.value.tolist()) == ([1, 2], [10, 15], [0.5, 0.4])


def test_a_running_value_gives_way_to_the_final_one_of_its_update():
    columns = columns_of(
        at("progress", 1, 4, loss=0.7),
        at("progress", 1, 10, loss=0.6),
        at("valid", 1, 10, loss=0.5),
        at("progress", 2, 12, loss=0.4),
    )
    assert columns.all("valid/loss").value.tolist() == [0.7, 0.5, 0.4]
    assert columns.on_the_way("valid/loss").value.tolist() == [0.7, 0.6, 0.4]
    assert columns.latest() == {"valid/loss": 0.4} and columns.last("valid/loss") == 0.5


def test_all_is_in_order_of_update():
    columns = columns_of(at("valid", 2, 20, loss=0.2), at("valid", 1, 10, loss=0.1), at("progress", 1, 15, loss=0.15))
    assert columns.all("valid/loss").update.tolist() == [10, 15, 20]


def test_a_resume_cuts_every_column():
    columns = columns_of(*story().events)
    rows, names = len(columns), list(columns.names)
    columns.take([Event("resume", 2000.0, epoch=1, extra={"kept": 1})])
    assert len(columns) == 2 and columns.names == {} and columns.named == {} and columns.count == 2
    assert [event.kind for _, event in columns.told] == ["begin", "resume"]
    assert len(columns.all("valid/loss")) == 0 and columns.latest() == {}
    columns.take(story().events[1:])
    assert len(columns) == rows + 1 and list(columns.names) == names


def test_a_damaged_line_keeps_its_place():
    """Otherwise a resume would keep one event too many."""
    columns = columns_of(at("valid", 1, 10, loss=1.0), None, at("valid", 2, 20, loss=2.0), at("valid", 3, 30, loss=3.0))
    columns.take([Event("resume", 40.0, extra={"kept": 3})])
    assert columns.finals("valid/loss").value.tolist() == [1.0, 2.0]
    assert columns.damaged == 1 and columns.count == 4


def test_a_broken_resume_is_a_damaged_line():
    columns = columns_of(at("valid", 1, 10, loss=1.0), Event("resume", 2.0, extra={"kept": "all"}))
    assert columns.damaged == 1 and len(columns) == 1


def test_of_a_sample_nothing_is_voided():
    columns = Columns(sample=True)
    columns.take([at("valid", 1, 10, loss=1.0), Event("resume", 2.0, extra={"kept": 0})])
    assert len(columns.finals("valid/loss")) == 1


def test_points_are_copies_and_the_columns_grow_on():
    columns = columns_of(at("valid", 1, 10, loss=1.0))
    points = columns.all("valid/loss")
    columns.take([at("valid", 2, 20, loss=2.0)])
    assert (len(points), len(columns.all("valid/loss"))) == (1, 2)
    assert {column.dtype for column in (points.update, points.epoch, points.time, points.value)} == {np.dtype(float)}


def test_the_names_of_losses_change_with_the_training():
    events = [Event("train", 1.0, epoch=1, extra={"losses": names}) for names in (["kl"], ["kl"], ["kl", "aux"])]
    columns = columns_of(*events)
    assert columns.losses == [(0, ["kl"]), (2, ["kl", "aux"])]
    columns.take([Event("resume", 2.0, extra={"kept": 2})])
    assert columns.losses == [(0, ["kl"])]


def test_the_progress_is_of_the_running_epoch(tmp_path):
    columns = columns_of(at("progress", 1, 4, loss=0.7))
    assert columns.progress is not None
    columns.take([at("epoch", 1, 10, loss=0.7)])
    assert columns.progress is None
    columns.take([Event("resume", 3.0, epoch=1, batch=5, extra={"kept": 1})])
    assert columns.progress.batch == 5
    columns.take([Event("resume", 3.0, epoch=1, extra={"kept": 1})])
    assert columns.progress is None


def test_hostile_names_are_names():
    names = ["__proto__", "\x1b[2J\x07", "x" * 10_000, "", "a/b/c/d", "\u202egnp"]
    columns = columns_of(Event("train", 1.0, epoch=1, update=1, values=dict.fromkeys(names, 1.0)))
    assert list(columns.names) == names
    assert all(len(columns.all(name)) == 1 for name in names)


def test_filled_by_a_fit():
    columns = columns_of(*fill(story()).events)
    assert list(columns.named) == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"]


def test_a_million_events_fit_into_a_hundred_megabytes():
    many = 10_000
    values = {"train/loss": 0.5, "train/class": 0.25, "train/box": 0.25}
    columns = columns_of(*[Event("progress", 1.0, epoch=1, update=update, values=values) for update in range(many)])
    tables = [columns.places, columns.kinds, columns.times, columns.epochs, columns.updates]
    tables += [table for series in columns.running.values() for table in (series.rows, series.values)]
    assert sum(sys.getsizeof(table) for table in tables) < 100 * many


def test_of_very_many_notes_the_first_and_the_last_are_kept(monkeypatch):
    monkeypatch.setattr(_columns, "_SPOKEN", 10)
    notes = [Event("note", float(number), update=number) for number in range(100)]
    columns = columns_of(Event("begin", 0.0), *notes[:50], Event("stop", 50.0), *notes[50:])
    kept = [event.update for _, event in columns.told if event.kind == "note"]
    assert kept[:10] == list(range(10)) and kept[-10:] == list(range(90, 100)) and len(kept) < 30
    assert [event.kind for _, event in columns.told if event.kind != "note"] == ["begin", "stop"]
    assert columns.unspoken == 100 - len(kept) and len(columns) == 102
    columns.take([Event("resume", 200.0, extra={"kept": 41})])
    kept = [event.update for _, event in columns.told if event.kind == "note"]
    assert columns.unspoken == 40 - len(kept) and kept[:10] == list(range(10))
    columns.take(notes[:5])
    assert [event.update for _, event in columns.told][-5:] == [0, 1, 2, 3, 4]
