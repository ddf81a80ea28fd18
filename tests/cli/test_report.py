"""`stoker report`."""

import pytest

from stoker.cli import main
from stoker.record import Run
from tests.record.stories import fill
from tests.view.report.pages import Page


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "letters"):
        run = Run.create(f"runs/{name}", config={"name": name})
        fill(run.record)
        run.close()


def test_a_run_as_a_page(tmp_path, capsys):
    assert main(["report", "digits", "-o", "out/page.html"]) == 0
    assert capsys.readouterr().out.startswith("out/page.html: ")
    assert "digits" in Page((tmp_path / "out/page.html").read_text(encoding="utf-8")).texts
    assert main(["report", "runs/digits"]) == 0 and (tmp_path / "report.html").exists()


def test_several_are_compared(tmp_path):
    assert main(["report", "digits", "letters"]) == 0
    assert "2 runs" in Page((tmp_path / "report.html").read_text(encoding="utf-8")).texts


def test_mistakes(capsys):
    assert main(["report", "digit"]) == 1
    assert capsys.readouterr().err == "stoker: there is no run 'digit'; did you mean 'digits'?\n"
    assert main(["report", "digits", "-o", "runs"]) == 1
    assert "stoker: can't write the report to 'runs': Is a directory" in capsys.readouterr().err


def test_an_ending_that_promises_something_else(tmp_path, capsys):
    assert main(["report", "digits", "-o", "x.pdf"]) == 1
    assert capsys.readouterr().err == "stoker: a report is a web page; -o x.pdf should end in .html\n"
    assert not (tmp_path / "x.pdf").exists()
    assert main(["report", "digits", "-o", "x.HTM"]) == 0
