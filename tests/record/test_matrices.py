"""A matrix is one value of an event, which `append` makes of a number per cell."""

import numpy as np
import pytest

from stoker.record import Event, Follower, History, Record, Run, export, matrix_sizes

CELLS = {f"valid/confusion/{row}/{column}": 3.0 * row + column for row in range(3) for column in range(3)}


def append_epochs(record):
    record.append(Event("begin", extra={"monitor": "valid/loss"}))
    for epoch, loss in enumerate([0.5, 0.2, 0.3], 1):
        cells = {name: value + 100 * epoch for name, value in CELLS.items()}
        place = {"epoch": epoch, "update": 10 * epoch}
        record.append(Event("valid", values={"valid/loss": loss, **cells}, **place))
        record.append(Event("epoch", values={"valid/loss": loss}, **place))


def test_records_and_followers_read_the_same_matrices(tmp_path):
    run = Run.create(tmp_path / "run")
    append_epochs(run.record)
    run.close()
    follower = Follower(run.path)
    follower.refresh()
    record = Record.open(run.path)
    for reader in (follower, record):
        assert reader.names == ["valid/loss"] and reader.matrices == ["valid/confusion"]
        best = reader.matrix("valid/confusion")
        assert (best.epoch, best.update, best.labels) == (2, 20, ())
        assert np.array_equal(best.values, np.arange(9).reshape(3, 3) + 200)
        assert reader.matrix("valid/confusion", epoch=3).values[0, 0] == 300
        assert reader.matrix_epochs("valid/confusion") == [1, 2, 3]
        assert reader.matrix("valid/confusion", epoch=9) is reader.matrix("nothing") is None
    assert History(record).columns == record.columns == ["valid/loss"] and record.rows[1] == {"valid/loss": 0.5}
    assert follower.summary["last"] == {"valid/loss": 0.3}
    assert export(run, tmp_path / "run.csv").read_text().splitlines()[0] == "epoch,update,time,valid/loss"


def test_labels_and_void_matrices():
    record = Record()
    matrix = {"values": [[1.0, float("nan")], [0.0, 2.0]], "labels": ["cat", "dog"]}
    record.append(Event("valid", epoch=1, extra={"matrices": {"valid/confusion": matrix}}))
    assert record.matrix("valid/confusion").labels == ("cat", "dog")
    record.rewind(0, Event("resume"))
    assert record.matrices == []


@pytest.mark.parametrize(
    "damage", [5, [], {"x": 5}, {"x": {}}, {"x": {"values": [[1], [2, 3]]}}, {"x": {"values": "abc"}}]
)
def test_damaged_matrices_are_left_out(damage):
    record = Record()
    record.append(Event("valid", epoch=1, values={"valid/loss": 1.0}, extra={"matrices": damage}))
    assert record.matrices == [] and record.names == ["valid/loss"]


def test_only_complete_squares_are_matrices():
    whole = [f"valid/confusion/{row}/{column}" for row in range(11) for column in range(11)]
    label = [f"valid/confusion/3/{row}/{column}" for row in range(2) for column in range(2)]
    assert matrix_sizes([*whole, *label, "lr"]) == {"valid/confusion": 11, "valid/confusion/3": 2}
    assert matrix_sizes([*whole[:-1], "valid/recall/0/1", "0/0", "/0/1", "valid/a/²/³"]) == {}
