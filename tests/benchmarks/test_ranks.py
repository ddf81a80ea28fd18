"""What training together costs: the measurements run, the model is what it says, and the page has its figures."""

import json

import pytest

from benchmarks import _ranks_model as model
from benchmarks import _ranks_work as work
from benchmarks import ranks
from stoker.distributed import World


def results(base=10.0, hop=30.0, call=40.0):
    """What would be found where a hop takes so many µs."""
    found = {}
    for size in (1, 2, 4, 8):
        waited = base + 2 * (size - 1) * hop if size > 1 else 0.1
        times = {"agreement, beside a step": [call], "agreement, at once": [waited], "agreement, waited for": [waited]}
        times |= {"merge, 5 metrics": [1.0], "merge, 20 metrics": [1.0], "gather, checkpoint": [1.0]}
        times |= {"update, plain loop": [100.0], "update, fit": [150.0]}
        found[str(size)] = {"us": times, "descriptors": 4}
    states = {"merge, 5 metrics": (5.0, 400), "merge, 20 metrics": (20.0, 1400), "gather, checkpoint": (50.0, 10_000)}
    parts = {name: {"us": us, "bytes": size} for name, (us, size) in states.items()}
    found["1"] |= {"of each state": parts, "us of an event": 30.0}
    return found


def test_the_hop_is_found_in_what_was_measured():
    costs = model.measured(results(base=10.0, hop=30.0, call=40.0))
    assert (costs["base"], costs["hop"], costs["call"]) == pytest.approx((10.0, 30.0, 40.0))


@pytest.mark.parametrize(("size", "every"), [(1, 1), (8, 1), (64, 1), (127, 1), (128, 2), (1024, 16)])
def test_the_model_sends_the_flag_as_often_as_an_accord_does(size, every):
    from stoker.distributed import Accord

    estimate = model.estimate(model.measured(results()), size)
    assert estimate["every"] == every == Accord(World(0, size))._every


def test_a_flag_that_is_back_in_time_costs_its_call_and_one_that_is_not_is_waited_for():
    costs = model.measured(results(base=0.0, hop=30.0, call=40.0))
    hop = 30.0 + model.NETWORK
    in_time = model.estimate(costs, 1024)
    assert in_time["travel"] == pytest.approx(2046 * hop)
    assert in_time["agreement"] == pytest.approx(40.0 / 16)
    late = model.estimate(costs, 1024, every=1)
    assert late["agreement"] == pytest.approx(40.0 + 2046 * hop - model.STEP)
    assert model.estimate(costs, 1)["agreement"] == 0


def test_a_gather_is_two_rounds_the_bytes_and_the_work():
    costs = model.measured(results(base=0.0, hop=30.0))
    found = model.estimate(costs, 64)["gather, checkpoint"]
    assert found == pytest.approx(2 * 63 * (30.0 + model.NETWORK) + 64 * 10_000 / model.WIRE + 64 * 50.0)


def test_the_report_has_the_ratio(capsys):
    ranks.report(results())
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if "ratio" in line).split() == ["ratio", *["1.50"] * 4]


def test_the_page_is_drawn_from_what_is_kept():
    page = ranks.PAGE.read_text()
    assert page == ranks.written(page, ranks.newest()), "python -m benchmarks.ranks --estimate draws it anew"
    other = ranks.written(page, results())
    assert other != page and "a hop around the ring takes 30 µs" in other


def test_the_kept_figures_stay_below_a_hundredth_of_a_step():
    costs = model.measured(ranks.newest())
    for size in model.RANKS:
        assert model.share(model.estimate(costs, size)) < 0.01, "docs/scaling.md says so"


def test_a_page_without_a_place_for_figures_is_no_page():
    with pytest.raises(SystemExit, match="has 0 places for what is called 'measured'"):
        ranks.written("nothing", results())


def test_one_process_measures_all_of_it(capsys, monkeypatch):
    monkeypatch.setattr(work, "CALLS", {"tiny": (10, 1, 2)})
    monkeypatch.setattr(work, "EPOCHS", {"tiny": 2})
    monkeypatch.setattr(work, "PAUSE", 0)
    monkeypatch.setattr(work, "one_thread", lambda: None)
    work.main("tiny")
    found = json.loads(capsys.readouterr().out)
    assert list(found["us"]) == list(ranks.LABELS)
    assert found["of each state"].keys() == {"merge, 5 metrics", "merge, 20 metrics", "gather, checkpoint"}
    assert all(us > 0 for times in found["us"].values() for us in times)
