"""Numbers that a step returns besides its loss are recorded: as means over samples, in training and validation."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import stoker
from stoker import Objective, callbacks, data, metrics
from tests.learner.fits import CopyRun, line, result_of


@dataclass
class Fields:
    loss: Tensor
    error: Tensor
    codes: Tensor
    beta: float = 0.25
    flag: bool = True


class Tuple(NamedTuple):
    loss: Tensor
    error: Tensor


class Own(nn.Linear):
    def __init__(self, output=Fields):
        super().__init__(3, 1)
        self.output = output

    def train_step(self, batch):
        x, y = batch
        error = (self(x) - y).abs().mean()
        loss = nn.functional.mse_loss(self(x), y)
        if self.output is Fields:
            return Fields(loss, error, codes=x)
        return self.output(loss=loss, error=error)


class Yields(Own):
    def train_step(self, batch):
        yield Objective("weight", super().train_step(batch).loss)
        return SimpleNamespace(loss=torch.zeros(()), error=(self(batch[0]) - batch[1]).abs().mean())


def learner(model, **settings):
    return stoker.Learner(model, **{"lr": 0.0, "seed": 0, **settings})


@pytest.mark.parametrize("make", [Own, lambda: Own(Tuple), lambda: Own(SimpleNamespace), Yields])
@pytest.mark.parametrize("size", [7, 64])
def test_they_are_means_over_samples_whatever_the_batch_size(make, size):
    x, y = line(50)
    model = make()
    expected = (model(x) - y).abs().mean().item()
    fitted = learner(model).fit(data.Loader((x, y), batch_size=size), valid=(x, y), epochs=2, show=False)
    loss = nn.functional.mse_loss(model(x), y).item()
    assert isinstance(model, Yields) or fitted.history["valid/loss"] == pytest.approx([loss] * 2, rel=1e-6)
    for name in ("train/error", "valid/error"):
        assert fitted.history[name] == pytest.approx([expected] * 2, rel=1e-6)
    assert fitted.evaluate((x, y))["error"] == pytest.approx(expected, rel=1e-6)
    if isinstance(model, Own) and model.output is Fields and not isinstance(model, Yields):
        assert fitted.history["train/beta"] == [0.25, 0.25]
    assert not {"train/codes", "train/flag"} & set(fitted.history.columns)


class Doubled(metrics.Metric):
    def init(self, device):
        return torch.zeros((), device=device)

    def update(self, state, output):
        return state + output.error * 2

    def compute(self, state):
        return state.item()


def test_a_metric_of_the_same_name_is_used_instead():
    given = learner(Own(), metrics=[Doubled(name="error")])
    x, y = line(32)
    fitted = given.fit((x, y), epochs=1, batch_size=32, show=False)
    assert fitted.history["train/error"][0] == pytest.approx(2 * (fitted.model(x) - y).abs().mean().item(), rel=1e-6)


def test_they_have_no_direction_and_losses_have():
    stop = callbacks.EarlyStopping("valid/error", patience=1)
    with pytest.raises(stoker.InvalidArgument, match="direction"):
        learner(Own()).fit(line(), valid=line(), epochs=3, callbacks=[stop], show=False)


@pytest.mark.parametrize("settings", [{}, {"compile": True}], ids=["eager", "compiled"])
def test_they_resume_in_the_middle_of_an_epoch(tmp_path, settings):
    def train(run, *watch):
        torch.manual_seed(0)
        return learner(Own(), lr=0.1, **settings).fit(
            data.Loader(line(), batch_size=16, shuffle=1),
            epochs=2,
            run=run,
            resume=True,
            checkpoint=stoker.Checkpoint(every=1, background=False),
            callbacks=watch,
            show=False,
        )

    whole = train(tmp_path / "whole", CopyRun(tmp_path / "whole", tmp_path / "left", 2, 3))
    # With the same hooks: what a compiled step returns to them may change its rounding.
    resumed = train(tmp_path / "left", CopyRun(tmp_path / "left", tmp_path / "again", 2, 4))
    assert len(resumed.record.events_of("resume")) == 1 and result_of(resumed) == result_of(whole)
    assert len(whole.history["train/error"]) == 2
