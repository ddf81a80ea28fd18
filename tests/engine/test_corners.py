"""Corners of a fit in which a result could be wrong without anybody noticing; each was, once."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stoker
from stoker import Learner, Objective, metrics, optim


def line(n=64):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return x, x.sum(1, keepdim=True)


class TooEarly(nn.Module):
    """Computes its second loss with weights that the first objective's step changes."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 1)

    def train_step(self, batch):
        x, y = batch
        hidden = self.a(x)
        first, second = hidden.square().mean(), F.mse_loss(self.b(hidden.tanh() @ self.a.weight), y)
        yield Objective("a", first)
        yield Objective("*", second)


@pytest.mark.parametrize("fused", [None, True, False])
def test_a_loss_over_weights_that_were_stepped_since_is_refused(fused):
    """torch's fused kernels change weights without telling autograd: gradients would be of a mixture."""
    adam = optim.Adam(fused=fused)
    learner = Learner(TooEarly(), optimizer=adam, lr=0.1, seed=0)
    with pytest.raises(stoker.NotDifferentiable, match="compute each loss after the step before it"):
        learner.fit(line(), epochs=1, show=False)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_that_is_told_does_not_depend_on_the_batch_size(reduction):
    x, y = line(50)
    fitted = Learner(nn.Linear(3, 1), loss=nn.MSELoss(reduction=reduction), lr=1e-4, seed=0).fit(
        (x, y), valid=(x, y), epochs=1, batch_size=7, show=False
    )
    with torch.no_grad():
        expected = F.mse_loss(fitted.model(x), y).item()
    for size in (7, 20, 50):
        assert fitted.evaluate((x, y), batch_size=size)["loss"] == pytest.approx(expected, rel=1e-5)
    assert fitted.history["valid/loss"][0] == pytest.approx(expected, rel=1e-5)


def test_predictions_of_a_shuffling_dataloader_are_refused():
    fitted = Learner(nn.Linear(3, 1), loss=nn.MSELoss(), seed=0).fit(line(), epochs=1, show=False)
    with pytest.raises(stoker.InvalidArgument, match="this DataLoader shuffles"):
        fitted.predict(DataLoader(TensorDataset(*line()), batch_size=8, shuffle=True))
    ordered = fitted.predict(DataLoader(TensorDataset(*line()), batch_size=8))
    assert torch.equal(ordered, fitted.predict(line(), batch_size=8))


def test_predictions_come_in_32_bits_whatever_the_fit_computed_in():
    fitted = Learner(nn.Linear(3, 1), loss=nn.MSELoss(), precision="bf16", seed=0).fit(line(), epochs=1, show=False)
    assert fitted.predict(line()).dtype == torch.float32


def test_a_nan_that_stops_the_run_stays_out_of_running_statistics():
    x, y = line()
    x[40] = torch.nan
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    with pytest.raises(stoker.NotFinite):
        Learner(model, loss=nn.MSELoss(), seed=0).fit(stoker.data.Loader((x, y), batch_size=16), epochs=1, show=False)
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())


def test_a_valid_step_is_used_beside_the_supervised_default():
    class Judging(nn.Linear):
        def valid_step(self, batch):
            return torch.tensor(123.0)

    fitted = Learner(Judging(3, 1), loss=nn.MSELoss(), seed=0).fit(line(), valid=line(), epochs=1, show=False)
    assert fitted.history["valid/loss"] == [123.0] and fitted.history["train/loss"][0] < 100


@pytest.mark.parametrize(("every", "expected"), [(3, 4), (5, 2), (100, 1)])
def test_the_last_weights_are_validated_too(every, expected):
    learner = Learner(nn.Linear(3, 1), loss=nn.MSELoss(), metrics=[metrics.MAE()], seed=0)
    fitted = learner.fit(line(), valid=line(), updates=10, batch_size=8, validate_every=every, show=False)
    points = fitted.record.all("valid/loss")
    assert len(points) == expected and points[-1][0] == 10 and fitted.best is not None


def test_an_unseeded_fit_holds_out_the_same_samples_every_time():
    model = nn.Linear(3, 1)
    seen = []
    for _ in range(2):
        watch = stoker.callbacks.on(valid_batch_end=lambda ctx: seen.append(ctx.batch[0]))
        Learner(model, loss=nn.MSELoss()).fit(
            line(), valid=0.25, epochs=1, batch_size=16, callbacks=[watch], show=False
        )
    assert len(seen) == 2 and torch.equal(seen[0], seen[1])


def test_with_skip_a_healthy_objective_counts_beside_a_broken_one():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)

        def train_step(self, batch):
            x, y = batch
            yield Objective("a", self.a(x).mean() * float("nan"))
            yield Objective("b", F.mse_loss(self.b(x), y))

    fitted = Learner(Half(), lr=0.1, on_nan="skip", seed=0).fit(line(), epochs=2, show=False)
    assert fitted.history["train/b"][1] < fitted.history["train/b"][0] and fitted.updates == 4


def test_an_objective_of_some_batches_only_is_stepped_at_the_end_of_every_window():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.calls = nn.Linear(3, 1), nn.Linear(3, 1), 0

        def train_step(self, batch):
            x, y = batch
            self.calls += 1
            if self.calls % 2:
                yield Objective("a", F.mse_loss(self.a(x), y))
            yield Objective("b", F.mse_loss(self.b(x), y))

    model, weights = Sometimes(), []
    watch = stoker.callbacks.on(update=lambda ctx: weights.append(model.a.weight.detach().clone()))
    Learner(model, lr=0.1, accumulate=2, seed=0).fit(line(), epochs=1, batch_size=8, callbacks=[watch], show=False)
    assert len(weights) == 4
    assert all(not torch.equal(one, other) for one, other in pairwise(weights))
