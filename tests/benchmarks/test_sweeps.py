"""What the sweeps measure: batches counted right, metrics all different, a terminal that is one."""

from dataclasses import replace

import pytest
import torch

from benchmarks import _harness, _sweeps
from benchmarks._sweeps import differences, memory, start, terminal, trainer, twenty_metrics, varied
from benchmarks._workloads import workload


@pytest.mark.parametrize("name", ["indexing", "stoker"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_trainer_trains_on_so_many_batches(name, accumulate):
    seen = []

    def loss(predictions, targets):
        seen.append(len(targets))
        return (predictions - targets).square().mean()

    toy = workload("toy")
    x, y = toy.data()
    eight = replace(toy, loss=loss, make=lambda: (x[:800], y[:800]), samples=800)  # batches in an epoch
    trainer(name, eight, accumulate=accumulate)(24)
    assert seen == [100] * 24


def test_rows_and_batch_are_what_the_setting_says():
    work, accumulate = varied("rows", 1000, "cpu")
    assert (work.samples, work.batch, accumulate, len(work.data()[0])) == (1000, 100, 1, 1000)
    work, accumulate = varied("batch", 16, "cpu")
    assert (work.samples, work.batch, accumulate) == (100_000, 16, 1)
    assert varied("accumulate", 4, "cpu")[1] == 4


def test_what_a_fit_does_once_is_not_in_the_time_of_a_batch(monkeypatch):
    monkeypatch.setattr(_sweeps, "timed", lambda train, batches: 7.0 + train * batches)
    found = differences({"a": 0.001, "b": 0.002}, rounds=2, seconds=1.0)
    assert found == {"a": pytest.approx([1000.0] * 2), "b": pytest.approx([2000.0] * 2)}


def test_twenty_metrics_with_twenty_names():
    assert len({metric.name for metric in twenty_metrics()}) == 20


def test_the_terminal_is_one():
    with terminal() as screen:
        assert screen.isatty()
        screen.write("x" * 100_000)  # more than a pipe holds: somebody reads


def test_the_start_is_one_update(monkeypatch):
    monkeypatch.setenv(_harness._STARTED, "0.0")
    found = start("indexing", "cpu")
    assert 0 < found["after imports, s"] < found["process, s"]


def test_memory_is_the_most_that_was_held():
    threads = torch.get_num_threads()
    assert memory(50_000, "indexing", "cpu")["MB"] > 50
    assert torch.get_num_threads() == threads
