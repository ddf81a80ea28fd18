import math
from types import SimpleNamespace

import torch

from stoker.metrics import GradientNorm, LearningRate, Throughput

CPU = torch.device("cpu")


def test_learning_rates_are_read_as_numbers_by_pattern():
    assert LearningRate().read(SimpleNamespace(lr=torch.tensor(0.5))) == {"lr": 0.5}
    assert LearningRate(name="rate").read(SimpleNamespace(lr={"0.*": 0.5})) == {"rate/0.*": 0.5}


def test_throughput_is_samples_per_second():
    assert Throughput().read(SimpleNamespace(samples=64, seconds=2.0)) == {"samples_per_second": 32}
    assert math.isnan(Throughput().read(SimpleNamespace(samples=64, seconds=0.0))["samples_per_second"])
    assert Throughput().direction == "max"


def test_gradient_norms_are_averaged_over_updates():
    norm = GradientNorm()
    assert norm.read(SimpleNamespace(grad_norm=None)) == {}
    assert norm.read(SimpleNamespace(grad_norm=torch.tensor(2.0))) == {"gradient_norm": 2.0}
    halves = []
    for part in ([1.0, 2.0], [6.0]):
        state = norm.init(CPU)
        for each in part:
            state = norm.update_update(state, torch.tensor(each))
        halves.append(state)
    assert norm.compute(norm.merge(*halves)) == {"gradient_norm": 3.0, "gradient_norm/max": 6.0}
    assert all(math.isnan(each) for each in norm.compute(norm.init(CPU)).values())
