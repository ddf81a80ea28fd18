"""A compiled or captured run whose process is killed resumes to the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import stoker
from stoker import data, optim, schedule
from tests.executors.fits import assert_identical, plan_of, results_of


class Kill(stoker.Callback):
    def on_update(self, ctx):
        if ctx.update == 10:
            os.kill(os.getpid(), signal.SIGKILL)


def fit(run, *callbacks, device="cpu", compile=True):
    x = torch.randn(28, 4, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.3), nn.Linear(3, 1))
    rate = schedule.cosine(1e-2, steps=60)
    learner = stoker.Learner(
        model, loss=nn.MSELoss(), optimizer=optim.AdamW(), lr=rate, seed=3, device=device, compile=compile
    )
    return learner.fit(
        data.Loader((x, x.sum(1, keepdim=True)), batch_size=4, shuffle=7),
        epochs=4,
        run=run,
        resume=True,
        checkpoint=stoker.Checkpoint(every=4, background=False),
        callbacks=callbacks,
        show=False,
    )


def fit_until_killed(run, device):
    command = [sys.executable, "-m", "tests.executors.test_killed", str(run), device]
    process = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr


@pytest.mark.soak
def test_a_killed_compiled_run_resumes_to_the_same_bits(tmp_path):
    whole = fit(tmp_path / "whole")
    assert plan_of(whole).mode == "compiled" and len(plan_of(whole).notes) == 1
    fit_until_killed(tmp_path / "cut", "cpu")
    assert_identical(results_of(fit(tmp_path / "cut")), results_of(whole))


@pytest.mark.cuda
def test_a_killed_captured_run_resumes_to_the_same_bits(tmp_path):
    whole = fit(tmp_path / "whole", device="cuda", compile=False)
    assert plan_of(whole).mode == "captured"
    fit_until_killed(tmp_path / "cut", "cuda")
    assert_identical(results_of(fit(tmp_path / "cut", device="cuda", compile=False)), results_of(whole))


if __name__ == "__main__":
    fit(sys.argv[1], Kill(), device=sys.argv[2], compile=sys.argv[2] == "cpu")
