"""What a training step may return or yield, what callbacks may change in it, and the errors otherwise."""

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import stoker
from stoker import Objective, RegressionOutput, WrongType, callbacks, metrics, optim
from tests.learner.fits import line, linear, same


class Base(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)


class ReturnsLoss(Base):
    def train_step(self, batch):
        x, y = batch
        return F.mse_loss(self(x), y)


class ReturnsOutput(Base):
    def train_step(self, batch):
        x, y = batch
        predictions = self(x)
        return RegressionOutput(F.mse_loss(predictions, y), predictions, y)


class ReturnsOwnOutput(Base):
    def train_step(self, batch):
        x, y = batch
        return SimpleNamespace(loss=F.mse_loss(self(x), y), mine="kept")


class YieldsObjectives(Base):
    def train_step(self, batch):
        yield Objective("*", F.mse_loss(self(batch[0]), batch[1]))


def trained(model, **settings):
    learner = stoker.Learner(model, optimizer=optim.SGD(), lr=0.05, seed=0, **settings)
    return learner.fit(line(50), valid=line(30), epochs=3, batch_size=16, show=False)


@pytest.fixture(scope="module")
def supervised():
    return trained(Base, loss=F.mse_loss)


@pytest.mark.parametrize("model", [ReturnsLoss, ReturnsOutput, ReturnsOwnOutput, YieldsObjectives])
def test_every_kind_of_step_trains_to_the_same_bits(model, supervised):
    result = trained(model)
    assert same(result.model, supervised.model)
    if model is YieldsObjectives:
        assert {"train/*", "valid/*"} <= set(result.history.columns)
    else:  # 50 samples in batches of 16 leave 2: the losses weigh samples, not batches
        for name in ("train/loss", "valid/loss"):
            assert result.history[name] == pytest.approx(supervised.history[name], rel=1e-6)


@pytest.mark.parametrize("base", [ReturnsLoss, Base])
def test_a_valid_step_is_used_in_validation(base):
    class WithValidStep(base):
        def valid_step(self, batch):
            assert not self.training
            return torch.tensor(123.0)

    result = trained(WithValidStep, **({} if base is ReturnsLoss else {"loss": nn.MSELoss()}))
    assert result.history["valid/loss"] == [123.0] * 3 and result.history["train/loss"][0] < 100


def test_metrics_read_a_typed_output_which_a_generator_may_return():
    class YieldsAndReturns(Base):
        def train_step(self, batch):
            predictions = self(batch[0])
            loss = F.mse_loss(predictions, batch[1])
            yield Objective("*", loss)
            return RegressionOutput(loss, predictions, batch[1])

    returned = trained(ReturnsOutput, metrics=[metrics.MAE()])
    yielded = trained(YieldsAndReturns, metrics=[metrics.MAE()])
    assert yielded.history["train/mae"] == returned.history["train/mae"]
    assert "valid/mae" in returned.history.columns


@dataclass
class Pair:
    x: Tensor
    y: Tensor


def test_a_batch_may_have_any_type(supervised):
    class TakesPairs(Base):
        def train_step(self, batch):
            return F.mse_loss(self(batch.x), batch.y)

    def batcher(items):
        xs, ys = zip(*items, strict=True)
        return Pair(torch.stack(xs), torch.stack(ys))

    loader = stoker.data.Loader(line(50), batch_size=16, shuffle=0, batcher=batcher)
    result = stoker.Learner(TakesPairs, optimizer=optim.SGD(), lr=0.05, seed=0).fit(loader, epochs=3, show=False)
    assert same(result.model, supervised.model)
    assert result.history["train/loss"] == pytest.approx(supervised.history["train/loss"])


# --- wrong results


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, r"Wrong.train_step returned NoneType; expected a loss \(a tensor\), an output with a .loss"),
        ({"loss": 1}, "Wrong.train_step returned dict"),
        (0.5, "Wrong.train_step returned float"),
    ],
)
def test_a_step_that_returns_no_loss_is_an_error(result, text):
    class Wrong(Base):
        def train_step(self, batch):
            return result

    with pytest.raises(WrongType, match=text):
        linear(model=Wrong(), loss=None).fit(line(), epochs=1, show=False)


def test_a_wrong_result_of_a_valid_step_is_an_error():
    class Wrong(ReturnsLoss):
        def valid_step(self, batch):
            return "fine"

    with pytest.raises(WrongType, match="Wrong.valid_step returned str"):
        linear(model=Wrong(), loss=None).fit(line(), valid=line(), epochs=1, show=False)


# --- several objectives


@pytest.mark.parametrize("fused", [None, True, False])
def test_a_loss_computed_before_another_objectives_step_is_an_error(fused):
    """torch's fused kernels change weights without telling autograd: the gradients would be wrong."""

    class TooEarly(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 1)

        def train_step(self, batch):
            x, y = batch
            hidden = self.a(x)
            first, second = hidden.square().mean(), F.mse_loss(self.b(hidden.tanh() @ self.a.weight), y)
            yield Objective("a", first)
            yield Objective("*", second)

    with pytest.raises(stoker.NotDifferentiable, match="compute each loss after the step before it"):
        linear(model=TooEarly(), loss=None, optimizer=optim.Adam(fused=fused)).fit(line(), epochs=1, show=False)


class TwoParts(nn.Module):
    """Two layers with an objective each; `first_loss` decides what becomes of the first one."""

    def __init__(self, first_loss):
        super().__init__()
        self.a, self.b, self.steps, self.first_loss = nn.Linear(3, 1), nn.Linear(3, 1), 0, first_loss

    def train_step(self, batch):
        x, y = batch
        self.steps += 1
        loss = self.first_loss(self.steps, F.mse_loss(self.a(x), y))
        if loss is not None:
            yield Objective("a", loss)
        yield Objective("b", F.mse_loss(self.b(x), y))


def test_on_nan_skip_keeps_the_objective_that_is_finite():
    model = TwoParts(lambda number, loss: loss * float("nan"))
    fitted = linear(model=model, loss=None, on_nan="skip").fit(line(), epochs=2, batch_size=32, show=False)
    assert fitted.history["train/b"][1] < fitted.history["train/b"][0] and fitted.updates == 4


def test_an_objective_of_some_batches_is_applied_at_the_end_of_every_window():
    model, weights = TwoParts(lambda number, loss: loss if number % 2 else None), []
    watch = callbacks.on(update=lambda ctx: weights.append(model.a.weight.detach().clone()))
    linear(model=model, loss=None, accumulate=2).fit(line(), epochs=1, batch_size=8, callbacks=[watch], show=False)
    assert len(weights) == 4
    assert all(not torch.equal(one, other) for one, other in pairwise(weights))


# --- callbacks in a step


def test_a_callback_reads_the_users_own_output():
    seen = []
    watch = callbacks.on(train_batch_after_loss=lambda ctx: seen.append(ctx.output.mine))
    linear(model=ReturnsOwnOutput(), loss=None).fit(line(), updates=1, callbacks=[watch], show=False)
    assert seen == ["kept"]


def test_a_callback_may_change_the_loss_with_gradients_enabled():
    def double(ctx):
        ctx.loss = ctx.loss * 2

    torch.manual_seed(0)
    a, b = nn.Linear(3, 1), nn.Linear(3, 1)
    b.load_state_dict(a.state_dict())
    linear(model=a).fit(line(), epochs=1, show=False)
    with_gradients = callbacks.on(train_batch_after_loss=torch.enable_grad()(double))
    linear(model=b, lr=0.025).fit(line(), epochs=1, callbacks=[with_gradients], show=False)
    torch.testing.assert_close(a.weight, b.weight)
    with pytest.raises(stoker.NotDifferentiable):  # callbacks run under no_grad
        linear().fit(line(), epochs=1, callbacks=[callbacks.on(train_batch_after_loss=double)], show=False)


@pytest.mark.parametrize(
    ("hook", "name"), [("train_batch_after_loss", "loss"), ("train_batch_after_backward", "grads")]
)
def test_a_callback_that_removes_the_loss_or_the_gradients_is_an_error(hook, name):
    remove = callbacks.on(**{hook: lambda ctx: setattr(ctx, name, None)})
    with pytest.raises(WrongType, match=f"a callback set ctx.{name} to NoneType"):
        linear().fit(line(), epochs=1, callbacks=[remove], show=False)


def test_a_callback_may_set_the_learning_rate_or_scale_it():
    torch.manual_seed(1)
    models = [nn.Linear(3, 1) for _ in range(3)]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    before = models[0].weight.detach().clone()
    zero = callbacks.on(train_batch_begin=lambda ctx: setattr(ctx, "lr", 0.0))
    linear(model=models[0]).fit(line(), epochs=1, callbacks=[zero], show=False)
    assert torch.equal(models[0].weight, before)
    half = callbacks.on(fit_begin=lambda ctx: setattr(ctx, "lr_scale", 0.5))
    linear(model=models[1], lr={"*": 0.1}).fit(line(), epochs=1, callbacks=[half], show=False)
    linear(model=models[2], lr={"*": 0.05}).fit(line(), epochs=1, show=False)
    assert same(models[1], models[2])


def test_after_step_and_update_are_called_only_when_the_weights_changed():
    calls = []
    watch = callbacks.on(
        train_batch_after_step=lambda ctx: calls.append("step"),
        update=lambda ctx: calls.append(ctx.update),
        train_batch_end=lambda ctx: calls.append("end"),
    )
    model = nn.Linear(3, 1)
    linear(model=model, accumulate=2).fit(line(48), epochs=1, batch_size=16, callbacks=[watch], show=False)
    assert calls == ["end", "step", 1, "end", "step", 2, "end"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_gradient_norm_is_measured_before_clipping():
    norms = []
    for clip in ({}, {"clip_norm": 1e-3}):
        torch.manual_seed(0)
        learner = linear(model=nn.Linear(3, 1), metrics=[metrics.GradientNorm()], lr=1e-9, **clip)
        history = learner.fit(line(), epochs=1, batch_size=64, show=False).history
        name = next(column for column in history.columns if "norm" in column and "max" not in column)
        norms.append(history[name][0])
    assert norms[0] == pytest.approx(norms[1]) and norms[0] > 1e-3
