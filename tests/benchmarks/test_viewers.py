"""The viewers as whole processes, on a small run."""

import pytest

from benchmarks import viewers
from benchmarks.record import large_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "run"
    large_run(path, 1000)
    return str(path)


@pytest.mark.parametrize("viewer", [viewers.watch, viewers.ui], ids=["watch", "ui"])
def test_each_is_measured_and_gone(run, viewer):
    found = viewer(run)
    assert found["first"] > 0 and found["MB"] > 10


def test_the_table_says_whether_the_bars_are_met(capsys):
    good, slow = {"first": 1.0, "MB": 200.0}, {"first": 2.5, "MB": 200.0}
    viewers.report("1M", {"watch": [good, good, slow], "ui": [slow]})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == ["stoker", "watch", "1.00", "200", "met"]
    assert lines[-1].split() == ["stoker", "ui", "2.50", "200", "not", "met"]
