"""`fit` against its peers: the contenders do the same work, and one that does not is refused."""

import pytest
import torch
from torch import nn

from benchmarks import fit
from benchmarks._harness import in_turn, toy


@pytest.mark.parametrize("name", ["indexing", "stoker"])
def test_a_contender_does_the_work_of_the_plain_loop(name):
    found = {}
    for each in ("dataloader", name):
        model, updates = fit.contender(each)(fit.JUDGED)
        found[each] = {"updates": updates, "loss": fit.mean_squared_error(model)}
    assert list(fit.refusals(found)) == []
    assert found[name]["loss"] < 0.55 * fit.mean_squared_error(toy()[2])


def test_one_that_does_other_work_is_refused_by_name():
    plain = {"updates": 100, "loss": 1.4}
    found = {
        "dataloader": plain,
        "same": {"updates": 100, "loss": 1.41},
        "short": {"updates": 90, "loss": 1.4},
        "wrong": {"updates": 100, "loss": 1.3},
        "broken": {"updates": 100, "loss": float("nan")},
    }
    assert list(fit.refusals(found)) == [
        "short made 90 updates, the plain loop 100",
        "wrong came to a loss of 1.3000, the plain loop to 1.4000",
        "broken came to a loss of nan, the plain loop to 1.4000",
    ]


def test_a_learning_rate_that_is_off_by_a_tenth_shows_in_the_loss():
    x, y, model = toy()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.1e-3)
    for _ in range(fit.JUDGED):
        for rows in torch.randperm(1000).split(100):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
            optimizer.step()
    plain, _ = fit.contender("dataloader")(fit.JUDGED)
    found = {
        "dataloader": {"updates": 100, "loss": fit.mean_squared_error(plain)},
        "hasty": {"updates": 100, "loss": fit.mean_squared_error(model)},
    }
    assert [line.split()[0] for line in fit.refusals(found)] == ["hasty"]


def test_frames_between_the_call_and_the_loss():
    def own(epochs, loss):  # a step of the user's own is in the user's file
        def step():
            return loss(torch.zeros(1), torch.ones(1))

        return step()

    def through_torch(epochs, loss):
        class Module(nn.Module):
            def forward(self, targets):
                return loss(targets, targets)

        return Module()(torch.ones(1))

    assert fit.frames_to_the_loss(own) == 0
    assert fit.frames_to_the_loss(through_torch) == 2  # _wrapped_call_impl, _call_impl
    assert fit.frames_to_the_loss(fit.contender("dataloader")) == 0


def test_from_fit_to_the_users_loss_are_at_most_six_frames():
    assert fit.frames_to_the_loss(fit.contender("stoker")) <= 6


def test_a_contender_is_measured_in_its_own_process():
    ((result,),) = in_turn("benchmarks.fit", [("indexing", "1")]).values()
    assert result["updates"] == 100 and result["frames"] == 0 and len(result["µs per update"]) == 1
    assert result["program, s"] > 0 and {"start, s", "loss"} <= result.keys()


def test_a_peer_that_is_not_installed_is_left_out_with_a_line(monkeypatch):
    monkeypatch.setitem(fit.CONTENDERS, "other", ("other.fit", "a-distribution-that-nobody-made", "Other"))
    assert fit.why_left_out("other") == (
        "other is left out: a-distribution-that-nobody-made is not installed (pip install '.[bench]')"
    )
    assert fit.why_left_out("dataloader") is None


def test_the_table_has_ratios_to_both_plain_loops(capsys):
    numbers = {"start, s": [1.0], "program, s": [1.5], "frames": 3, "updates": 100, "loss": 1.4}
    times = {"dataloader": [600.0, 700.0, 680.0], "indexing": [340.0], "keras": [2040.0]}
    fit.report({name: {**numbers, "µs per update": each} for name, each in times.items()})
    lines = [line for line in capsys.readouterr().out.splitlines() if "Keras" in line]
    assert lines[0].split()[-8:] == ["2040.0", "2040.0–2040.0", "3.00", "6.00", "1.00", "1.50", "3", "1.4000"]
