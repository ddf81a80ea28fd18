"""Exporting a run's numbers as CSV, Parquet and JSON."""

import csv
import functools
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


read_json = functools.partial(pandas.read_json, precise_float=True)


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
def test_every_source_and_shape_is_what_the_follower_says(tmp_path, ending):
    made = Run.create(tmp_path / "run")
    assert export(made, tmp_path / "empty.csv").read_text() == "epoch,update,time\n"
    assert export(made, tmp_path / "empty.csv", long=True).read_text() == "name,epoch,update,time,value\n"
    append_fit(made.record)
    made.record.append(Event("progress", 1052.0, 6, 0, 55, {"train/loss": 0.1}, extra={"phase": "train"}))
    made.close()
    read = {"csv": pandas.read_csv, "parquet": pandas.read_parquet, "json": read_json}[ending]
    follower = Follower(made.path)
    follower.refresh()
    for source in ("epochs", "all", "running"):
        expected = follower.points("train/loss", source=source)
        wide = read(export(made, tmp_path / f"out.{ending}", source=source))
        assert wide["train/loss"].dropna().tolist() == expected.value.tolist()
        assert wide["update"][wide["train/loss"].notna()].tolist() == expected.update.tolist()
        long = read(export(made, tmp_path / f"out.{ending}", source=source, long=True))
        assert list(long) == ["name", "epoch", "update", "time", "value"]
        assert long[long["name"] == "train/loss"]["value"].tolist() == expected.value.tolist()


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
