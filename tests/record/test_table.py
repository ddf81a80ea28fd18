import math

from stoker.record import Event, Follower, Run
from stoker.record._table import by_point, by_row


def follower(path, events):
    run = Run.create(path)
    for event in events:
        run.record.append(event)
    run.close()
    found = Follower(path)
    found.refresh()
    return found


def test_a_row_for_each_epoch(tmp_path):
    events = [
        Event("train", 1.0, 1, 0, 10, {"train/loss": 0.5}),
        Event("train", 2.0, 2, 0, 20, {"train/loss": 0.25}),
        Event("valid", 3.0, 2, 0, 20, {"valid/loss": math.inf}),
    ]
    assert by_row(follower(tmp_path / "run", events), "epochs") == {
        "epoch": [1, 2],
        "update": [10, 20],
        "time": [1.0, 3.0],
        "train/loss": [0.5, 0.25],
        "valid/loss": [None, math.inf],
    }


def test_a_row_for_each_update_and_a_second_one_for_a_number_that_comes_twice(tmp_path):
    events = [
        Event("progress", 1.0, 1, 0, 5, {"train/loss": 0.75}, extra={"phase": "train"}),
        Event("train", 3.0, 1, 0, 10, {"train/loss": 0.5}),
        Event("log", 4.0, 1, 0, 10, {"time": 1.0}),
        Event("log", 5.0, 1, 0, 10, {"time": 2.0}),
    ]
    found = follower(tmp_path / "run", events)
    table = by_row(found, "all")
    assert table["update"] == [5, 10, 10] and table["train/loss"] == [0.75, 0.5, None]
    assert table["number/time"] == [None, 1.0, 2.0] and table["time"] == [1.0, 4.0, 5.0]
    assert by_row(found, "running")["train/loss"] == [0.75]
    assert by_point(found, "all") == {
        "name": ["train/loss", "train/loss", "time", "time"],
        "epoch": [1, 1, 1, 1],
        "update": [5, 10, 10, 10],
        "time": [1.0, 3.0, 4.0, 5.0],
        "value": [0.75, 0.5, 1.0, 2.0],
    }


def test_a_run_without_numbers_is_an_empty_table(tmp_path):
    found = follower(tmp_path / "run", [Event("note", text="hello")])
    assert by_row(found, "all") == {"epoch": [], "update": [], "time": []}
    assert by_point(found, "all")["value"] == []
