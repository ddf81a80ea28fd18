"""The sweeps: what is varied, and tables with ratios and bars."""

import sys

import pytest

from benchmarks import sweep


def test_a_sweep_runs_in_processes_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sweep", "--quick", "accumulate"])
    sweep.main()
    out = capsys.readouterr().out
    assert "accumulate: batches to an update" in out and "fell over" not in out and "kept" not in out
    assert out.splitlines()[-1].split()[0] == "1"


def test_pairs_have_their_ratio_and_stay_flat_or_not(capsys):
    sweep.report(
        "rows", {"1000": {"indexing": [400.0], "stoker": [200.0]}, "10000": {"indexing": [400.0], "stoker": [210.0]}}
    )
    assert capsys.readouterr().out.splitlines()[-1].split()[-2:] == ["0.525", "1.050"]


@pytest.mark.parametrize(
    ("name", "times", "line"),
    [
        ("metrics", {"0": [100.0], "5": [101.0], "20": [106.0]}, "20 instead of 0: 1.060, bar ≤ 1.05: NOT met"),
        ("keeping", {"off": [100.0], "on": [101.0]}, "on instead of off: 1.010, bar ≤ 1.02: met"),
    ],
    ids=["metrics", "keeping"],
)
def test_what_is_switched_on_has_a_bar(name, times, line, capsys):
    sweep.report(name, {"all": {"stoker": times}})
    assert capsys.readouterr().out.splitlines()[-1].strip() == line


def test_the_start_may_be_so_much_later(capsys):
    plain, own = ({"process, s": [whole], "after imports, s": [part]} for whole, part in ((2.0, 0.5), (1.5, 0.9)))
    sweep.report("start", {"toy": {"indexing": plain, "stoker": own}})
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[-2:]] == [
        "stoker -0.50 s beside indexing, process; bar ≤ +0.3 s: met",
        "stoker +0.40 s beside indexing, after imports; bar ≤ +0.3 s: NOT met",
    ]
