"""The plan that is always right."""

from types import SimpleNamespace

from stoker.program import Eager, Plan


def test_it_runs_the_stations_and_nothing_else():
    seen = []
    eager = Eager(SimpleNamespace(run=seen.append), Plan("eager"))
    eager.touched()
    eager.run("a batch")
    eager.settle()
    assert seen == ["a batch"] and eager.plan.mode == "eager"
