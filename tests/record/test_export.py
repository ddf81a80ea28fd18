"""Exporting a run's numbers as CSV, Parquet and JSON."""

import csv
import json
import math
import shutil
import sys

import pandas
import pyarrow.parquet
import pytest

from stoker import BadFile, InvalidArgument, MissingExtra, MissingFile
from stoker.record import Event, Follower, Run, export
from tests.record.examples import append_fit

ODD = [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, math.nan, math.inf, -math.inf]


@pytest.fixture
def run(tmp_path):
    made = Run.create(tmp_path / "runs" / "odd")
    for epoch, value in enumerate(ODD, 1):
        values = {"valid/loss": value} | ({"late": float(epoch)} if epoch > 5 else {})
        made.record.append(Event("valid", 0.1 * epoch, epoch, 0, 10 * epoch, values))
    made.close()
    return made


def bits(values):
    return [float(value).hex() for value in values]


def test_csv_is_exact(run, tmp_path):
    path = export(run, tmp_path / "deep" / "out.csv")
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["epoch", "update", "time", "valid/loss", "late"]
    assert bits(row[3] for row in rows) == bits(ODD) and [row[4] for row in rows] == ["", "", "", "", "", "6.0", "7.0"]
    assert bits(row[2] for row in rows) == bits(0.1 * epoch for epoch in range(1, 8))
    assert [each.name for each in path.parent.iterdir()] == ["out.csv"]


def test_parquet_distinguishes_nan_from_missing(run, tmp_path):
    table = pyarrow.parquet.read_table(export(run.path, tmp_path / "out.parquet"))
    assert bits(table["valid/loss"].to_pylist()) == bits(ODD) and table["valid/loss"].null_count == 0
    assert table["late"].to_pylist() == [None] * 5 + [6.0, 7.0] and table["update"].to_pylist()[-1] == 70
    assert [str(table.schema.field(name).type) for name in ("epoch", "update", "time")] == ["int64", "int64", "double"]


def test_json_writes_nan_and_infinities_as_strings(run, tmp_path):
    rows = json.loads(export(str(run.path), tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert [row["valid/loss"] for row in rows] == [*ODD[:4], "NaN", "Infinity", "-Infinity"]
    assert rows[0] == {"epoch": 1, "update": 10, "time": 0.1, "valid/loss": ODD[0], "late": None}


@pytest.mark.parametrize("ending", ["csv", "parquet", "json"])
@pytest.mark.parametrize("source", ["epochs", "all", "running"])
@pytest.mark.parametrize("long", [False, True])
def test_every_format_source_and_shape(tmp_path, ending, source, long):
    made = Run.create(tmp_path / "run")
    append_fit(made.record)
    made.close()
    path = export(made, tmp_path / f"out.{ending}", source=source, long=long)
    read = {"csv": pandas.read_csv, "parquet": pandas.read_parquet, "json": pandas.read_json}[ending]
    table = read(path)
    names = {"epochs": 5, "all": 5, "running": 1}[source]
    if long:
        assert list(table) == ["name", "epoch", "update", "time", "value"] and table["name"].nunique() == names
        found = table[table["name"] == "train/loss"]["value"]
    else:
        assert len(list(table)) == 3 + names
        found = table["train/loss"]
    assert found.iloc[-1] == 1 / 5


def test_a_final_value_replaces_a_running_one_of_the_same_update(tmp_path):
    made = Run.create(tmp_path / "run")
    for update in (5, 10):
        made.record.append(Event("progress", float(update), 1, 0, update, {"a": 1.0}, extra={"phase": "train"}))
    made.record.append(Event("train", 11.0, 1, 0, 10, {"a": 2.0}))
    made.close()
    found = {
        source: export(made, tmp_path / "x.csv", source=source).read_text().splitlines()[1:]
        for source in ("epochs", "running", "all")
    }
    assert found["epochs"] == ["1,10,11.0,2.0"]
    assert found["running"] == ["1,5,5.0,1.0", "1,10,10.0,1.0"]
    assert found["all"] == ["1,5,5.0,1.0", "1,10,11.0,2.0"]


def test_wrong_arguments_are_errors(run, tmp_path, monkeypatch):
    with pytest.raises(InvalidArgument, match=r"'out.xlsx': expected a name that ends in .csv, .parquet, .json"):
        export(run, "out.xlsx")
    with pytest.raises(InvalidArgument, match=r'source=\'epoch\': expected "epochs", "all" or "running"'):
        export(run, "out.csv", source="epoch")
    with pytest.raises(MissingFile, match="there is no run at"):
        export(tmp_path / "nothing", "out.csv")
    before = (run.path / "run.json").read_bytes()
    monkeypatch.chdir(run.path)
    with pytest.raises(InvalidArgument, match=r"'run.json' is a file of the run itself; choose another name"):
        export(run, "run.json")
    assert (run.path / "run.json").read_bytes() == before


def test_a_deleted_run_is_an_error_and_leaves_no_file(run, tmp_path):
    follower = Follower(run.path)
    shutil.rmtree(run.path)
    with pytest.raises(BadFile, match="does not exist any more"):
        export(follower, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_without_pyarrow_the_error_says_how_to_install_it(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="Parquet needs pyarrow: pip install pyarrow"):
        export(run, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_number_with_two_values_at_an_update_gets_two_rows_and_reserved_names_a_prefix(tmp_path):
    made = Run.create(tmp_path / "run")
    for time, name, value in ((3.0, "loss", 0.5), (4.0, "time", 1.0), (5.0, "time", 2.0)):
        made.record.append(Event("log", time, 1, 0, 10, {name: value}))
    made.close()
    wide = export(made, tmp_path / "x.csv", source="all").read_text().splitlines()
    assert wide == ["epoch,update,time,loss,number/time", "1,10,4.0,0.5,1.0", "1,10,5.0,,2.0"]
    long = export(made, tmp_path / "x.csv", source="all", long=True).read_text().splitlines()
    assert long == ["name,epoch,update,time,value", "loss,1,10,3.0,0.5", "time,1,10,4.0,1.0", "time,1,10,5.0,2.0"]


def test_a_run_without_numbers_is_an_empty_table(tmp_path):
    made = Run.create(tmp_path / "run")
    made.close()
    assert export(made, tmp_path / "x.csv").read_text() == "epoch,update,time\n"
    assert export(made, tmp_path / "x.csv", long=True).read_text() == "name,epoch,update,time,value\n"
