"""A second process takes the compiled programs from torch's cache on disk, instead of compiling them again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import torch
from torch import nn
from torch._dynamo.utils import counters

import stoker
from tests.executors.fits import plan_of

torch.manual_seed(0)
body = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.1), nn.Flatten()
model = nn.Sequential(*body, nn.Linear(144, 10)).to(memory_format=torch.channels_last)
learner = stoker.Learner(model, loss=nn.CrossEntropyLoss(), lr=0.01, seed=1, compile=True, precision="bf16")
samples = torch.rand(24, 3, 8, 8), torch.arange(24) % 10
fitted = learner.fit(samples, epochs=2, batch_size=16, show=False)
assert plan_of(fitted).mode == "compiled", plan_of(fitted).reason
print(counters["inductor"]["fxgraph_cache_miss"], counters["inductor"]["fxgraph_cache_hit"])
print(sum(parameter.double().abs().sum().item() for parameter in model.parameters()).hex())
"""


@pytest.mark.soak
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            cwd=Path(__file__).parents[2],
            env=environment,
            capture_output=True,
            text=True,
        )
        for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    (made, weights), (taken, same_weights) = first.stdout.splitlines(), second.stdout.splitlines()
    assert (made, taken) == ("2 0", "0 2")  # of full batches, and of the short last one
    assert weights == same_weights
