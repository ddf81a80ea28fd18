"""Metrics of users: what they have to define, and what the default `merge` does with their states."""

import pytest
import torch
from torch import nn

import stoker
from stoker import WrongType, metrics


class Bias(metrics.Metric):
    """The mean difference between prediction and target, for each output."""

    shape: tuple[int, ...] = ()

    def init(self, device):
        return {name: torch.zeros(self.shape, device=device) for name in ("sum", "count")}

    def update(self, state, output):
        error = output.predictions - output.targets
        return {"sum": state["sum"] + error.sum(0).view(self.shape), "count": state["count"] + len(error)}

    def compute(self, state):
        return float((state["sum"] / state["count"]).mean())


class Duck:
    """A metric that does not inherit."""

    name, on, direction, unit = "duck", "both", "min", ""

    def init(self, device):
        return {"samples": torch.zeros((), dtype=torch.int64, device=device)}

    def update(self, state, output):
        return {"samples": state["samples"] + len(output.targets)}

    def merge(self, a, b):
        return {"samples": a["samples"] + b["samples"]}

    def compute(self, state):
        return float(state["samples"])


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 2)])
def test_float32_states_of_any_shape_are_added(shape):
    metric = Bias(shape=shape)
    parts = [{name: torch.rand(shape) for name in ("sum", "count")} for _ in range(2)]
    merged = metric.merge(*parts)
    assert all(torch.equal(merged[name], parts[0][name] + parts[1][name]) for name in merged)


def test_a_metric_need_not_inherit():
    x = torch.randn(20, 3)
    learner = stoker.Learner(nn.Linear(3, 1), loss=nn.MSELoss(), metrics=[Duck()], seed=0)
    fitted = learner.fit((x, x.sum(1, keepdim=True)), valid=(x, x[:, :1]), epochs=1, show=False)
    assert fitted.history["train/duck"] == fitted.history["valid/duck"] == [20.0]
    assert fitted.evaluate((x, x[:, :1]))["duck"] == 20.0


class Forgetful(Bias):
    def update(self, state, output):
        state["count"] = state["count"] + 1


class Stateless(metrics.Metric):
    pass


def test_a_metric_without_a_method_or_a_new_state_is_named():
    x = torch.zeros(8, 1)
    for metric, error, text in (
        (Forgetful(), WrongType, "Forgetful.update returned None; return the new state"),
        (Stateless(), NotImplementedError, r"Stateless needs a method init\(device\)"),
    ):
        with pytest.raises(error, match=text):
            stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), metrics=[metric], seed=0).fit(
                (x, x), epochs=1, show=False
            )
