"""A NaN never reaches the weights, and the error names its origin."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import NotFinite, Objective, callbacks, optim
from stoker.checkpoint import Store
from stoker.engine._finite import is_finite
from stoker.gradients import Gradients
from stoker.record import Run
from tests.learner.fits import copy_state, line, linear, same


class Overflows(nn.Module):
    """Its middle returns infinity for a large input."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), Burst(), nn.Linear(4, 1)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.last(self.middle(self.norm(self.first(x)) * x.amax()))


class Burst(nn.Module):
    def forward(self, x):
        return torch.where(x.abs() > 50, torch.inf, x)


def data_with(value, *, batch):
    """Four batches of 16 in order, with a value in one of them."""
    x, y = line()
    x[16 * (batch - 1) + 3, 1] = value
    return stoker.data.Loader((x, y), batch_size=16)


def assert_stops(learner, train, *, where, message):
    """The fit stops with this error, and the weights are those before the batch."""
    before, model = {}, learner.model
    keep = callbacks.on(train_batch_begin=lambda ctx: before.update(copy_state(model)))
    with pytest.raises(NotFinite, match=where) as caught:
        learner.fit(train, epochs=2, callbacks=[keep], show=False)
    assert message in str(caught.value)
    assert "on_nan='skip'" in str(caught.value)
    parameters = {name for name, _ in model.named_parameters()}
    assert same(*({name: each[name] for name in parameters} for each in (before, model.state_dict())))


def test_a_nan_in_the_batch_is_found():
    assert_stops(
        linear(),
        data_with(torch.nan, batch=3),
        where="epoch 1, batch 3",
        message="the batch[0] already holds NaN or infinity",
    )
    x, y = line()
    y[20] = torch.inf
    assert_stops(linear(), {"input": x, "y": y}, where="epoch 1", message="the batch['y'] already holds NaN")


def test_a_nan_in_a_parameter_is_found():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    spoil = callbacks.on(epoch_begin=lambda ctx: model[1].bias.fill_(torch.nan) if ctx.epoch == 2 else None)
    with pytest.raises(NotFinite, match="epoch 2, batch 1: the parameter '1.bias' is not finite"):
        linear(model=model).fit(line(), epochs=2, callbacks=[spoil], show=False)


def test_the_first_module_with_an_infinite_output_is_named():
    learner = linear(model=Overflows())
    assert_stops(learner, data_with(1e3, batch=2), where="epoch 1, batch 2", message="that of 'middle' (Burst)")


def test_an_infinity_of_the_models_own_forward_is_found():
    class Alone(nn.Linear):
        def forward(self, x):
            return torch.where(x.amax() > 50, torch.inf, super().forward(x))

    assert_stops(linear(model=Alone(3, 1)), data_with(1e3, batch=2), where="batch 2", message="the model's own")


def test_a_step_that_yields_objectives_is_searched():
    class Yields(Overflows):
        def train_step(self, batch):
            yield Objective("*", F.mse_loss(self(batch[0]), batch[1]))

    assert_stops(
        linear(model=Yields(), loss=None), data_with(1e3, batch=2), where="batch 2", message="that of 'middle' (Burst)"
    )


def test_a_nan_that_is_only_in_a_gradient_is_found():
    class Root(nn.Linear):
        def forward(self, x):
            return (super().forward(x) * (x.abs().sum(1, keepdim=True) > 0)).abs().sqrt()

    x, y = line()
    x[35] = 0  # sqrt(0) is 0, with an infinite derivative
    data = stoker.data.Loader((x, y), batch_size=16)
    assert_stops(linear(model=Root(3, 1)), data, where="batch 3", message="the gradient of 'weight' is not")


def test_a_nan_of_the_loss_function_is_found():
    def loss(predictions, targets):
        return (predictions - targets).square().mean() + torch.log(90 - targets.max())

    x, y = line()
    y[40] = 99
    data = stoker.data.Loader((x, y), batch_size=16)
    assert_stops(linear(loss=loss), data, where="batch 3", message="it is the loss itself")


def test_the_search_changes_neither_random_numbers_nor_running_statistics():
    model, seen = Overflows(), []
    watch = callbacks.on(train_batch_after_loss=lambda ctx: seen.append((copy_state(model), torch.get_rng_state())))
    last = callbacks.on(exception=lambda ctx: seen.append((copy_state(model), torch.get_rng_state())))
    with pytest.raises(NotFinite):
        linear(model=model).fit(data_with(1e3, batch=2), epochs=1, callbacks=[watch, last], show=False)
    assert same(seen[-1][0], seen[-2][0])
    assert torch.equal(seen[-1][1], seen[-2][1])
    assert not any(module._forward_hooks for module in model.modules())


def test_an_exception_in_the_search_does_not_hide_the_error():
    class WorksOnce(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("only once")
            return super().forward(x) * torch.inf

    with pytest.raises(NotFinite, match=r"a second forward pass to find the module failed \(RuntimeError: only once\)"):
        linear(model=WorksOnce(3, 1)).fit(line(), epochs=1, show=False)


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 1.0}, {"clip_value": 0.5}])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_on_nan_skip_trains_as_if_the_batch_did_not_exist(clip, accumulate):
    settings = {"on_nan": "skip", "accumulate": accumulate, "optimizer": optim.SGD(momentum=0.9), **clip}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    x, y = line()
    twin = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    twin.load_state_dict(model.state_dict())
    result = linear(model=model, **settings).fit(data_with(torch.nan, batch=4), epochs=1, show=False)
    clean = linear(model=twin, **settings).fit(
        stoker.data.Loader((x[:48], y[:48]), batch_size=16), epochs=1, show=False
    )
    assert same(model, twin)  # running statistics too, although the forward had seen the batch
    assert result.updates == clean.updates
    assert result.history["train/loss"] == clean.history["train/loss"]
    (warning,) = result.record.events_of("warning")
    assert "epoch 1, batch 4 was skipped" in warning.text and "(1 so far)" in warning.text
    assert result.record.events_of("end")[0].extra["skipped"] == 1


class Buffers(nn.Module):
    """Buffers of every kind, one of which appears in a bad batch."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 1), nn.BatchNorm1d(3)
        self.register_buffer("late", None)
        self.register_buffer("replaced", torch.zeros(3))
        self.register_buffer("written", torch.full((3,), 7.0))
        self.register_buffer("expanded", torch.ones(1, 3).expand(2, 3))
        self.register_buffer("sparse", torch.eye(2).to_sparse(), persistent=False)
        self.register_buffer("small", torch.ones(2).to(torch.float8_e4m3fn))

    def forward(self, x):
        if self.training:
            self.late = torch.ones(3) if x.isnan().any() else self.late
            self.replaced = self.replaced + 1
            self.written.add_(1)
        return self.linear(self.norm(x))


class RunningLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, predictions, targets):
        if self.training:
            self.mean.lerp_(predictions.detach().mean(), 0.5)
        return F.mse_loss(predictions, targets)


def test_on_nan_skip_undoes_what_the_batch_wrote_to_buffers_of_model_and_loss():
    model, loss = Buffers(), RunningLoss()
    linear(model=model, loss=loss, on_nan="skip").fit(data_with(torch.nan, batch=2), epochs=1, show=False)
    assert model.late is None and model.norm.num_batches_tracked == 3
    assert model.replaced.tolist() == [3.0] * 3 and model.written.tolist() == [10.0] * 3
    assert loss.mean.isfinite() and loss.mean != 0


def test_a_nan_is_found_whatever_the_buffers_are():
    model, loss = Buffers(), RunningLoss()
    assert_stops(
        linear(model=model, loss=loss),
        data_with(torch.nan, batch=2),
        where="epoch 1, batch 2: ",
        message="the batch[0] already holds NaN",
    )
    assert model.norm.running_mean.isfinite().all() and loss.mean.isfinite()


def test_the_micro_batch_is_named_and_not_the_end_of_its_window():
    assert_stops(
        linear(accumulate=4),
        data_with(torch.nan, batch=1),
        where="epoch 1, batch 1: ",
        message="the batch[0] already holds NaN",
    )


def test_a_batch_whose_targets_are_all_ignored_is_left_out():
    """Its loss is 0/0, which is not an error."""
    x, y = torch.randn(12, 6), torch.randint(0, 4, (12,))
    y[4:8] = -100
    for accumulate, updates in ((1, 2), (3, 1)):
        learner = stoker.Learner(nn.Linear(6, 4), loss=nn.CrossEntropyLoss(), seed=0, accumulate=accumulate)
        result = learner.fit(stoker.data.Loader((x, y), batch_size=4), epochs=1, show=False)
        assert result.updates == updates
        assert math.isfinite(result.history["train/loss"][0])


def test_an_epoch_in_which_every_update_is_skipped_is_an_error():
    x, y = line()
    with pytest.raises(NotFinite, match=r"every update of epoch 1 was skipped \(4 of them\)"):
        linear(on_nan="skip").fit((x * torch.nan, y), updates=3, batch_size=16, show=False)


def test_a_nan_that_stops_the_fit_stays_out_of_running_statistics():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    with pytest.raises(NotFinite):
        linear(model=model).fit(data_with(torch.nan, batch=3), epochs=1, show=False)
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())


def test_a_gradient_norm_that_overflows_is_not_an_error():
    model = nn.Linear(3, 1)
    large = Gradients({"weight": torch.full((1, 3), 3e38), "bias": torch.ones(1)}, model)
    assert is_finite(torch.tensor(1.0), large, None)
    assert is_finite(torch.tensor(1.0), large, torch.tensor(torch.inf))
    assert not is_finite(torch.tensor(torch.nan), large, None)
    broken = Gradients({"weight": torch.tensor([[1.0, torch.nan, 1.0]]), "bias": torch.ones(1)}, model)
    assert not is_finite(None, broken, None)


def test_sparse_gradients_are_checked():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 1, sparse=True)

        def forward(self, x):
            return self.table(x).squeeze(1)

    x, y = torch.arange(5), torch.tensor([1.0, 2, 3, 4, torch.inf])
    learner = linear(model=Words())
    with pytest.raises(NotFinite, match=r"the batch\[1\]"):
        learner.fit(stoker.data.Loader((x, y), batch_size=5), epochs=1, show=False)
    assert torch.isfinite(learner.model.table.weight).all()


@pytest.mark.parametrize("limit", [{"epochs": 2}, {"updates": 6}, {"epochs": 9}], ids=["epochs", "updates", "callback"])
@pytest.mark.parametrize("settings", [{}, {"on_nan": "skip"}, {"accumulate": 3}], ids=["plain", "skip", "window"])
def test_an_overflow_in_the_last_update_is_an_error(limit, settings, tmp_path):
    """No batch follows that would notice it, so that a completed fit would return infinite weights."""
    stop = callbacks.on(epoch_end=lambda ctx: ctx.stop("enough") if ctx.epoch == 2 else None)

    def fit(rate):
        learner = linear(
            loss=lambda pred, target: 1e3 * F.mse_loss(pred, target),
            optimizer=optim.SGD(),
            lr=lambda update: rate if update == updates - 1 else 1e-6,
            **settings,
        )
        arguments = {"batch_size": 16, "callbacks": [stop], "run": tmp_path / f"{rate}", "show": False, **limit}
        return learner.fit(line(), **arguments)

    updates = 10**9
    updates = fit(1e-6).updates
    assert fit(1e-5).updates == updates
    with pytest.raises(NotFinite, match=r"parameter 'weight' is not finite after the last update \(\d+\)"):
        fit(1e38)
    run = tmp_path / "1e+38"
    newest = Store(run / "checkpoints", run=Run.open(run).id).newest().state["model"]["parameters"]
    assert all(bool(tensor.isfinite().all()) for tensor in newest.values())
