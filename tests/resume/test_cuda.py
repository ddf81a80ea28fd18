"""A run on a GPU resumes to the same bits: generators, loss scale, and copies on the device."""

import os
import signal

import pytest
import torch
from torch import nn

import stoker
from stoker import data, metrics, optim, schedule

pytestmark = pytest.mark.cuda


class Stop(stoker.Callback):
    """Ends the fit the given way when an update has been applied."""

    def __init__(self, update, how):
        self.update, self.how = update, how

    def on_train_batch_begin(self, ctx):
        if ctx.update == self.update and self.how == "exception":
            raise ZeroDivisionError("raised by the test")

    def on_train_batch_end(self, ctx):
        if ctx.update == self.update and self.how == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)


CASES = {
    "plain": {},
    "accumulate": {"accumulate": 3},
    "ema": {"ema": 0.9},
    "fp16": {"precision": "fp16"},
    "bf16": {"precision": "bf16", "clip_norm": 1.0},
    "groups": {"optimizer": {"0": optim.SGD(momentum=0.9), "*": optim.AdamW()}, "lr": {"0": 1e-2, "*": 1e-3}},
}


def fit(run, settings, *, stop=None, background=True):
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(320, 16, generator=generator), torch.randint(0, 4, (320,), generator=generator)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))
    learner = stoker.Learner(
        model,
        **{
            "loss": nn.CrossEntropyLoss(),
            "optimizer": optim.AdamW(),
            "lr": schedule.cosine(1e-2, steps=60),
            "metrics": [metrics.Accuracy(), metrics.AUROC(), metrics.GradientNorm()],
            "seed": 3,
            "device": "cuda",
            **settings,
        },
    )
    return learner.fit(
        data.Loader((x, y), batch_size=16, shuffle=7),
        valid=(x, y),
        epochs=3,
        run=run,
        resume=True,
        checkpoint=stoker.Checkpoint(every=4, background=background),
        callbacks=[] if stop is None else [Stop(*stop)],
        show=False,
    )


def outcome(fitted):
    numbers = {name: column for name, column in fitted.history.to_dict().items() if "second" not in name}
    return repr(numbers), {name: value.cpu() for name, value in fitted.model.state_dict().items()}


@pytest.mark.parametrize("background", [True, False], ids=["background", "foreground"])
@pytest.mark.parametrize("how", ["exception", "interrupt"])
@pytest.mark.parametrize("case", CASES)
def test_a_run_on_a_gpu_resumes_to_the_same_bits(case, how, background, tmp_path):
    numbers, weights = outcome(fit(tmp_path / "whole", CASES[case]))
    for update in (5, 9):
        try:
            fit(tmp_path / "cut", CASES[case], stop=(update, how), background=background)
        except ZeroDivisionError:
            assert how == "exception"
    resumed_numbers, resumed = outcome(fit(tmp_path / "cut", CASES[case], background=background))
    assert resumed_numbers == numbers
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_a_run_of_a_gpu_is_loaded_on_the_cpu(tmp_path):
    fitted = fit(tmp_path / "run", {})
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 4))
    loaded = stoker.load_for_inference(tmp_path / "run", model)
    x = torch.randn(8, 16)
    assert torch.equal(loaded(x), stoker.valid(fitted.model.cpu())(x))
