"""One contender, measured: it does the work of the plain loop, and one that does not is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks import _harness
from benchmarks._contenders import fit_of
from benchmarks._measure import frames_to_the_loss, measure, peak_memory, refusals
from benchmarks._workloads import workload

TOY = replace(workload("toy"), epochs=10)


def nobody(*_, **__):
    pass


def trained(fit, work=TOY):
    model, updates = fit(work, work.epochs, nobody)
    return {"epochs": work.epochs, "updates": updates, "loss": work.judge(model)}


@pytest.mark.parametrize("name", ["indexing", "fused", "stoker"])
def test_a_contender_does_the_work_of_the_plain_loop(name):
    found = {each: trained(fit_of(each)) for each in ("dataloader", name)}
    assert list(refusals(found, TOY)) == []
    assert found[name]["loss"] < 0.55 * TOY.judge(TOY.model())


@pytest.mark.parametrize("name", ["digits", "tabular", "resnet", "gpt"])
def test_the_plain_loops_and_stoker_agree_at_every_workload(name):
    work = workload(name, tiny=True)
    found = {each: trained(fit_of(each), work) for each in ("dataloader", "fused", "stoker")}
    assert list(refusals(found, work)) == []


def test_one_that_does_other_work_is_refused_by_name():
    plain = {"epochs": 10, "updates": 100, "loss": 1.4}
    found = {
        "dataloader": plain,
        "same": {**plain, "loss": 1.41},
        "short": {**plain, "updates": 90},
        "silent": {**plain, "epochs": 9},
        "wrong": {**plain, "loss": 1.3},
        "broken": {**plain, "loss": float("nan")},
    }
    assert list(refusals(found, TOY)) == [
        "short made 90 updates, asked for were 100",
        "silent ended 9 epochs, asked for were 10",
        "wrong came to a loss of 1.3000, the plain loop to 1.4000",
        "broken came to a loss of nan, the plain loop to 1.4000",
    ]


def test_a_learning_rate_that_is_off_by_a_tenth_shows_in_the_loss():
    found = {"dataloader": trained(fit_of("dataloader")), "hasty": trained(fit_of("indexing"), replace(TOY, lr=1.1e-3))}
    assert [line.split()[0] for line in refusals(found, TOY)] == ["hasty"]


def test_frames_between_the_call_and_the_loss():
    def own(work, epochs, clock):  # a step of the user's own is in the user's file
        def step():
            return work.loss(torch.zeros(1), torch.ones(1))

        return step()

    def through_torch(work, epochs, clock):
        class Module(nn.Module):
            def forward(self, targets):
                return work.loss(targets, targets)

        return Module()(torch.ones(1))

    assert frames_to_the_loss(own, TOY) == 0
    assert frames_to_the_loss(through_torch, TOY) == 2  # _wrapped_call_impl, _call_impl
    assert frames_to_the_loss(fit_of("dataloader"), TOY) == 0


def test_from_fit_to_the_users_loss_are_at_most_six_frames():
    assert frames_to_the_loss(fit_of("stoker"), TOY) <= 6


def test_what_is_measured(monkeypatch):
    monkeypatch.setenv(_harness._STARTED, "0.0")
    threads = torch.get_num_threads()
    try:
        found = measure("indexing", "toy", tiny=True)
    finally:
        torch.set_num_threads(threads)
    assert len(found["µs per update"]) == 5 and min(found["µs per update"]) > 0
    assert (found["epochs"], found["updates"], found["frames"]) == (20, 200, 0)
    assert found["start, s"] < found["program, s"] and 0.9 < found["loss"] < 2


def test_the_memory_of_a_process_is_in_megabytes():
    assert 50 < peak_memory("cpu", "torch")["process"] < 1e5
