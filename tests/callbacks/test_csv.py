"""The CSV callback."""

import csv
import json
import math

import pandas
import pytest

from stoker import BadFile
from stoker.callbacks import CSV, Hooks
from tests.callbacks.fits import context, drive, epoch_end


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_a_row_for_each_epoch_and_a_column_for_each_metric(tmp_path):
    path, ctx = tmp_path / "deep" / "epochs.csv", context(epochs=3)
    hooks = Hooks([CSV(path)])
    epoch_end(hooks, ctx, train_loss=0.1 + 0.2)
    epoch_end(hooks, ctx, train_loss=math.nan, valid_loss=math.inf)
    epoch_end(hooks, ctx, train_loss=-math.inf)
    drive(CSV(path), [0.5])  # another fit is appended
    assert rows(path) == [
        ["epoch", "update", "train/loss", "valid/loss"],
        ["1", "10", repr(0.1 + 0.2), ""],
        ["2", "20", "nan", "inf"],
        ["3", "30", "-inf", ""],
        ["1", "10", "", "0.5"],
    ]
    assert [path.name for path in path.parent.iterdir()] == ["epochs.csv"]
    table = pandas.read_csv(path)
    assert math.isnan(table["train/loss"][1]) and table["valid/loss"][1] == math.inf


@pytest.mark.parametrize("wider", [False, True])
def test_an_incomplete_last_line_does_not_damage_the_next_row(tmp_path, wider):
    path, ctx = tmp_path / "epochs.csv", context(epochs=3)
    hooks = Hooks([CSV(path)])
    epoch_end(hooks, ctx, train_loss=1.0)
    with path.open("a") as file:
        file.write("2,2")
    epoch_end(hooks, ctx, train_loss=3.0, **({"valid_loss": 1.0} if wider else {}))
    assert rows(path)[-1][:3] == ["2", "20", "3.0"] and rows(path)[1][:3] == ["1", "10", "1.0"]
    assert rows(path)[2][:2] == ["2", "2"]


def test_a_file_with_another_table_is_rejected_and_kept(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("name,age\nada,36\n")
    with pytest.raises(
        BadFile, match=r"people\.csv is not a table of epochs \(its first line is 'name,age'\); give CSV another"
    ):
        drive(CSV(path), [1.0])
    assert path.read_text() == "name,age\nada,36\n"


@pytest.mark.parametrize(("saved_at", "torn"), [(0, False), (1, True), (2, False)])
def test_a_resumed_run_removes_the_rows_after_its_checkpoint(tmp_path, saved_at, torn):
    path = tmp_path / "epochs.csv"
    drive(CSV(path), [9.0])  # another fit, before
    callback, states = CSV(path), []
    hooks, ctx = Hooks([callback]), context(epochs=4)
    hooks.fire("on_fit_begin", ctx)
    for value in (0.5, 0.4, 0.3, 0.2):
        states.append(json.loads(json.dumps(callback.state_dict())))
        epoch_end(hooks, ctx, valid_loss=value, **({"train_late": 1.0} if value < 0.35 else {}))
    whole = path.read_bytes()
    if torn:
        with path.open("a") as file:
            file.write("5,")

    callback, record = CSV(path), ctx.record
    hooks, ctx = Hooks([callback]), context(epochs=4, record=record)
    ctx.epoch, ctx.update = saved_at, 10 * saved_at
    hooks.fire("on_fit_begin", ctx)
    callback.load_state_dict(states[saved_at])
    assert [row[0] for row in rows(path)] == ["epoch", "1", *"123"[:saved_at]]
    for value in (0.5, 0.4, 0.3, 0.2)[saved_at:]:
        epoch_end(hooks, ctx, valid_loss=value, **({"train_late": 1.0} if value < 0.35 else {}))
    assert path.read_bytes() == whole
    assert callback.state_dict() == {"rows": 5, "columns": rows(path)[0]}
    assert [each.name for each in tmp_path.iterdir()] == ["epochs.csv"]


def test_rows_that_were_deleted_stay_deleted(tmp_path):
    path = tmp_path / "epochs.csv"
    callback = CSV(path)
    drive(callback, [0.5, 0.4])
    state = callback.state_dict()
    path.unlink()
    again = CSV(path)
    Hooks([again]).fire("on_fit_begin", context())
    again.load_state_dict(state)
    assert again.state_dict()["rows"] == 0 and not path.exists()
