"""What the benchmarks share: a toy that starts the same, processes of their own, results with where they come from."""

import json

import pytest
import torch

from benchmarks import _harness
from benchmarks._harness import append, beside, in_turn, installed, keep, results_of, spread, toy


def test_the_toy_is_the_same_every_time_whatever_was_drawn_before():
    x, y, model = toy()
    torch.randn(7)
    again_x, again_y, again = toy()
    assert torch.equal(x, again_x) and torch.equal(y, again_y)
    for left, right in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(left, right)


def test_each_task_has_as_many_results_as_it_stands_in_the_list():
    tasks = [("stoker", "toy", "1"), ("indexing", "toy", "2"), ("stoker", "toy", "1")]
    found = in_turn("benchmarks.own_loop", tasks)
    assert [[len(times) for times in found[task]] for task in tasks[:2]] == [[1, 1], [2]]
    assert all(each > 0 for results in found.values() for times in results for each in times)


def test_a_task_that_fails_ends_the_benchmark_with_its_own_words():
    with pytest.raises(SystemExit, match=r"(?s)stoker, toy, many failed:.*invalid literal for int"):
        in_turn("benchmarks.own_loop", [("stoker", "toy", "many")])


def test_a_process_is_ended_after_its_seconds():
    ((task, result, failure),) = results_of("benchmarks.own_loop", [("stoker", "toy", "1")], seconds=0.01)
    assert (task, result, failure) == (("stoker", "toy", "1"), None, "ended after 0 s")


def test_what_is_appended_stands_beside_what_was_there(tmp_path):
    path = tmp_path / "new" / "some.json"
    append(path, {"a": {"x": [1], "y": [2]}, "b": 1})
    append(path, {"a": {"y": [3], "z": [4]}, "b": 2})
    assert json.loads(path.read_text()) == {"a": {"x": [1], "y": [3], "z": [4]}, "b": 2}
    assert [each.name for each in path.parent.iterdir()] == ["some.json"]
    assert beside({"a": 1}, {"b": {}}) == {"a": 1, "b": {}}


def test_what_was_measured_is_kept_with_versions_and_machine(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_harness, "RESULTS", tmp_path / "results")
    keep("some", {"torch": installed("torch")}, times=[1.5])
    (path,) = (tmp_path / "results").glob("some-*.json")
    kept = json.loads(path.read_text())
    assert kept["times"] == [1.5] and kept["versions"]["torch"].startswith("2.")
    assert kept["machine"].keys() == {"cpu", "cores", "python"}
    assert str(path) in capsys.readouterr().out


def test_the_spread_is_the_median_between_the_lowest_and_the_highest():
    assert spread([3.0, 1.0, 2.0]).split() == ["2.0", "1.0–3.0"]


def test_what_is_not_installed_has_no_version():
    assert installed("a-distribution-that-nobody-made") is None
