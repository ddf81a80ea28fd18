"""A run of programs that was killed goes on to the same bits, in another process; on the CPU with the compiler."""

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
from tests.executors.fits import assert_same, outcome


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


def killed(run, device):
    command = [sys.executable, "-m", "tests.executors.test_killed", str(run), device]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_compiled_run_that_was_killed_goes_on_to_the_same_bits(tmp_path):
    whole = fit(tmp_path / "whole")
    assert whole._prepared.fit.plan.mode == "compiled" and len(whole._prepared.fit.plan.notes) == 1
    killed(tmp_path / "cut", "cpu")
    assert_same(outcome(fit(tmp_path / "cut")), outcome(whole))


@pytest.mark.cuda
def test_a_captured_run_that_was_killed_goes_on_to_the_same_bits(tmp_path):
    whole = fit(tmp_path / "whole", device="cuda", compile=False)
    assert whole._prepared.fit.plan.mode == "captured"
    killed(tmp_path / "cut", "cuda")
    assert_same(outcome(fit(tmp_path / "cut", device="cuda", compile=False)), outcome(whole))


if __name__ == "__main__":
    fit(sys.argv[1], Kill(), device=sys.argv[2], compile=sys.argv[2] == "cpu")
