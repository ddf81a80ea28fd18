"""`stoker export RUN -o FILE`."""

import pytest

from stoker.cli import main
from stoker.record import Run
from tests.record.stories import fill


@pytest.fixture(autouse=True)
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Run.create("runs/digits")
    fill(made.record)
    made.close()
    return made


def test_a_run_by_its_name(tmp_path, capsys):
    assert main(["export", "digits", "-o", "out.csv"]) == 0
    assert capsys.readouterr().out == "out.csv has the numbers of runs/digits\n"
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 6
    assert main(["export", "runs/digits", "-o", "out.csv", "--source", "running", "--long"]) == 0
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "name,epoch,update,time,value"


def test_damaged_lines_are_said(run, capsys):
    path = run.path / "events.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], b"{broken", *lines[3:]]))
    assert main(["export", "digits", "-o", "out.json"]) == 0
    assert "damaged" in capsys.readouterr().out


def test_errors_are_told(capsys):
    assert main(["export", "digits", "-o", "out.txt"]) == 1
    assert "stoker: 'out.txt': expected a name that ends in" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["export", "digits"])
