"""lr_find: its suggestion where the answer is known, and that it changes nothing."""

import threading

import pytest
import torch
from torch import nn

import stoker
from stoker import InvalidArgument, callbacks, data, optim
from tests.learner.fits import copy_state, line, linear, same


def quadratic(curvature):
    """loss = curvature/2 · w²: gradient descent converges below 2/curvature, and is fastest at 1/curvature."""

    class Bowl(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(()))

        def train_step(self, batch):
            return curvature / 2 * self.w**2

    return stoker.Learner(Bowl, optimizer=optim.SGD(), seed=0)


@pytest.mark.parametrize("curvature", [0.5, 10.0, 1000.0])
def test_the_suggestion_matches_the_curvature(curvature):
    seen, rows = [], (torch.zeros(64, 1),)
    hook = callbacks.on(update=lambda ctx: seen.append(ctx.update))
    curve = stoker.lr_find(quadratic(curvature), rows, start_lr=1e-7, end_lr=100.0, steps=200, callbacks=[hook])
    assert 0.005 / curvature < curve.suggestion < 2 / curvature
    assert list(curve.rates) == sorted(curve.rates) and len(curve.rates) == len(curve.losses) <= len(seen) <= 200
    assert curve.rates[1] / curve.rates[0] == pytest.approx((100.0 / 1e-7) ** (1 / 199))
    assert curve.rates[0] == pytest.approx(1e-7)


class Counting(nn.MSELoss):
    """Has a buffer that every call changes, and shares the weight of the model."""

    def __init__(self, model):
        super().__init__()
        self.shared = model
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, predictions, targets):
        self.calls += 1
        return super().forward(predictions, targets) + 0.1 * self.shared.weight.square().sum()


class Normalised(nn.Sequential):
    def __init__(self):
        super().__init__(nn.BatchNorm1d(3), nn.Linear(3, 1))

    @property
    def weight(self):
        return self[1].weight

    def loss(self, predictions, targets):
        return nn.functional.mse_loss(predictions, targets) + 0.1 * self.weight.square().sum()


@pytest.mark.parametrize("seed", [0, None])
def test_learner_data_and_random_numbers_do_not_change(seed):
    model = Normalised()
    loader = data.Loader(line(), batch_size=8, shuffle=1)
    for loss in (Counting(model), model.loss):
        given = linear(model=model, loss=loss, seed=seed, on_nan="skip")
        before, calls = copy_state(model), copy_state(Counting(model))
        text, state = repr(given), torch.get_rng_state()
        stoker.lr_find(given, loader, steps=50, end_lr=100.0)
        assert torch.equal(torch.get_rng_state(), state) and repr(given) == text and model.weight.grad is None
        assert same(model, before) and (not isinstance(loss, nn.Module) or same(loss, calls))
    assert torch.equal(next(iter(loader))[1], next(iter(loader.at(epoch=0)))[1])


def test_the_curve_can_be_plotted():
    curve = stoker.lr_find(quadratic(10.0), (torch.zeros(8, 1),), steps=50)
    (axes,) = curve.plot().axes
    assert axes.get_xscale() == "log" and axes.lines[0].get_ydata().tolist() == curve.losses
    assert axes.lines[1].get_label() == f"suggestion {curve.suggestion:.2g}"
    assert curve.plot(ax=axes) is axes.figure and len(axes.lines) == 4


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"start_lr": 1.0, "end_lr": 0.1}, "the rate grows from start_lr to end_lr, both above 0; got 1.0 and 0.1"),
        ({"start_lr": 0.0}, "the rate grows"),
        ({"steps": 5}, "a curve needs at least 10 steps, got 5"),
    ],
)
def test_wrong_arguments_are_rejected(given, text):
    with pytest.raises(InvalidArgument, match=text):
        stoker.lr_find(linear(), line(), **given)


def test_a_loss_that_is_never_finite_is_an_error():
    x, y = line()
    with pytest.raises(InvalidArgument, match="the loss was not finite after 0 updates; use a smaller start_lr"):
        stoker.lr_find(linear(), (x * torch.nan, y))


def test_a_model_that_can_not_be_copied_is_an_error_that_says_what_to_do():
    model = nn.Linear(3, 1)
    model.lock = threading.Lock()
    with pytest.raises(InvalidArgument, match=r"can't be copied \(cannot pickle.*function that returns a new model"):
        stoker.lr_find(linear(model=model), line())


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
def test_a_model_with_tensors_that_have_a_graph_is_copied():
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(3, 1)))
    before = copy_state(model)
    assert len(stoker.lr_find(linear(model=model), line(), steps=10).losses) == 10
    assert same(copy_state(model), before)
