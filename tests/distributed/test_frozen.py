"""Checkpoints without frozen parameters, with several processes: copies of the model (DDP) and shards (FSDP2)."""

import json

import pytest
import torch
from torch import nn

import stoker
from tests.distributed.processes import launched
from tests.hooks import Crash, crash_at

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
DATA = X, X.sum(1, keepdim=True)


def make():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 1))
    model[2].requires_grad_(False)
    return model


def train(rank, size, mode, folder):
    parallel = stoker.Parallel(mode=mode, wrap=nn.Linear) if mode == "fsdp" else stoker.Parallel(mode=mode)
    learner = stoker.Learner(make, loss=nn.MSELoss(), lr=1e-2, seed=0, device="cpu", parallel=parallel)
    settings = {"valid": DATA, "epochs": 2, "batch_size": 8, "show": False}
    whole = learner.fit(DATA, **settings)
    settings |= {"run": folder, "checkpoint": stoker.Checkpoint(every=2, frozen="fingerprint")}
    with pytest.raises(Crash):
        learner.fit(DATA, **settings, callbacks=[crash_at(update=5)])
    resumed = learner.fit(DATA, **settings, resume=True)

    def weights(fitted):
        found = {name: value.detach() for name, value in fitted.model.named_parameters()}
        return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in found.items()}

    first, second = weights(whole), weights(resumed)
    return [name for name in first if not torch.equal(first[name], second[name])]


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_run_without_frozen_parameters_resumes_on_all_ranks(mode, tmp_path):
    folder = tmp_path / "run"
    assert launched(train, 2, mode, str(folder)) == [[], []]
    newest = max((folder / "checkpoints").iterdir())
    state = json.loads((newest / "state.json").read_text())["model"]
    assert list(state["frozen"]) == ["2.weight", "2.bias"]
    assert list(state["parameters"]) == ["0.weight", "0.bias", "3.weight", "3.bias"]
