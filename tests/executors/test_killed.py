"""A compiled or captured run whose process is killed resumes to the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import data, optim, schedule
from tests.executors.fits import assert_identical, interpret_graphs, plan_of, results_of


class Kill(stoker.Callback):
    def on_update(self, ctx):
        if ctx.update == 10:
            os.kill(os.getpid(), signal.SIGKILL)


def squared_error(predictions, targets):
    """A function whose first call has to show whether it is a sum."""
    return (predictions - targets).square().sum()


def masked_entropy(model, batch):
    """A step whose first loss has to show what it is a mean over."""
    x, y = batch
    score = model(x)
    return F.cross_entropy(torch.cat([score, -score], 1), y)


def fit(run, *callbacks, device="cpu", compile=True, how="loss"):
    x = torch.randn(28, 4, generator=torch.Generator().manual_seed(5))
    y = x.sum(1, keepdim=True)
    if how == "step":
        y = (y[:, 0] > 0).long().where(x[:, 0] > -0.5, -100)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.3), nn.Linear(3, 1))
    settings = {"loss": squared_error} if how == "loss" else {"step": masked_entropy}
    rate = schedule.cosine(1e-2, steps=60)
    learner = stoker.Learner(
        model, optimizer=optim.AdamW(), lr=rate, seed=3, device=device, compile=compile, **settings
    )
    return learner.fit(
        data.Loader((x, y), batch_size=4, shuffle=7),
        epochs=4,
        run=run,
        resume=True,
        checkpoint=stoker.Checkpoint(every=4, background=False),
        callbacks=callbacks,
        show=False,
    )


def fit_until_killed(run, device, how):
    command = [sys.executable, "-m", "tests.executors.test_killed", str(run), device, how]
    process = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr


@pytest.mark.soak
@pytest.mark.parametrize("how", ["loss", "step"])
def test_a_killed_compiled_run_resumes_to_the_same_bits(how, tmp_path, monkeypatch):
    """The real compiler, and graphs that are interpreted, which takes a tenth of the time."""
    if how == "step":
        interpret_graphs(monkeypatch)
    whole = fit(tmp_path / "whole", how=how)
    assert plan_of(whole).mode == "compiled" and len(plan_of(whole).notes) == 1
    fit_until_killed(tmp_path / "cut", "cpu", how)
    assert_identical(results_of(fit(tmp_path / "cut", how=how)), results_of(whole))


@pytest.mark.cuda
@pytest.mark.parametrize("how", ["loss", "step"])
def test_a_killed_captured_run_resumes_to_the_same_bits(how, tmp_path):
    whole = fit(tmp_path / "whole", device="cuda", compile=False, how=how)
    assert plan_of(whole).mode == "captured"
    fit_until_killed(tmp_path / "cut", "cuda", how)
    cut = fit(tmp_path / "cut", device="cuda", compile=False, how=how)
    assert_identical(results_of(cut), results_of(whole))


if __name__ == "__main__":
    if sys.argv[2:] == ["cpu", "step"]:
        interpret_graphs(pytest.MonkeyPatch())
    fit(sys.argv[1], Kill(), device=sys.argv[2], compile=sys.argv[2] == "cpu", how=sys.argv[3])
