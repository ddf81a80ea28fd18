"""Copies of weights, and the exponential moving average."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stoker import InvalidArgument, StateMismatch, callbacks, load_for_inference
from stoker.checkpoint import load_model_state, model_state
from stoker.engine import EMA, copy_weights, restore_weights
from tests.checkpoint.states import write_and_read
from tests.learner.fits import Net, fit, killed_run, learner, same, samples


def test_weights_are_copied_and_restored_in_place():
    model = Net()
    copied, own = copy_weights(model), model.head.weight
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    assert not same(model, copied.tensors)
    restore_weights(model, copied)
    assert same(model, copied.tensors) and model.head.weight is own


@pytest.mark.parametrize("when", [None, torch.tensor(True)], ids=["on the host", "on the device"])
def test_the_ema_is_that_of_torch_with_the_newest_buffers(when):
    model, updates = Net(), 0
    ours = EMA(model, 0.9)

    def average(averaged, newest, count):
        get_ema_multi_avg_fn(min(0.9, (1 + updates) / (10 + updates)))(averaged, newest, count)

    theirs = AveragedModel(model, multi_avg_fn=average)
    theirs.update_parameters(model)  # its first update copies the weights; ours starts with a copy
    for number in range(100):
        updates = number
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.add_(torch.rand_like(tensor) if tensor.is_floating_point() else 1)
        ours.update(when)
        theirs.update_parameters(model)
    for own, other in zip(ours.model.parameters(), theirs.module.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-5)
    for own, other in zip(ours.model.buffers(), model.buffers(), strict=True):
        assert torch.equal(own, other)
    assert not any(parameter.requires_grad for parameter in ours.model.parameters())


def test_tied_weights_are_averaged_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

    model = Tied()
    ema = EMA(model, 0.9)
    before = ema.model.a.weight.clone()
    with torch.no_grad():
        model.a.weight.add_(1)
    ema.update()
    torch.testing.assert_close(ema.model.b.weight, before + 0.9)


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.norm.bias = self.layer.bias
        self.register_buffer("cache", torch.zeros(3), persistent=False)


def step(model, ema, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(torch.rand(tensor.shape, generator=generator).to(tensor.dtype))
    ema.update()


@pytest.mark.parametrize("place", [0, 1, 5])
def test_an_ema_resumes_to_the_same_bits(place):
    model = Cached()
    ema = EMA(model, 0.9)
    for seed in range(5):
        if seed == place:
            other = Cached()
            again = EMA(other, 0.9)
            load_model_state(other, write_and_read(model_state(model)))
            again.load_state_dict(write_and_read(ema.state_dict()))
        step(model, ema, seed)
        if seed >= place:
            step(other, again, seed)
    if place == 5:
        again = EMA(Cached(), 0.9)
        again.load_state_dict(write_and_read(ema.state_dict()))
    ours, theirs = dict(ema.model.named_buffers()), dict(again.model.named_buffers())
    assert "cache" in ours and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert same(ema.model, again.model) and again.model.norm.bias is again.model.layer.bias
    assert not any(parameter.requires_grad for parameter in again.model.parameters())


def test_the_state_of_another_models_ema_is_refused():
    ema = EMA(nn.Linear(2, 2), 0.9)
    with pytest.raises(
        StateMismatch, match=r"'weight' is float32 \[3, 2\] in the state, float32 \[2, 2\] in the model"
    ):
        ema.load_state_dict(EMA(nn.Linear(2, 3), 0.9).state_dict())


def test_a_decay_of_one_is_an_error():
    with pytest.raises(InvalidArgument, match="ema is a decay of at least 0 and below 1"):
        EMA(nn.Linear(1, 1), 1.0)


def test_an_ema_that_must_not_change_keeps_its_buffers():
    """After a NaN the model's running statistics are not finite; the ema keeps the last good ones."""
    model = nn.BatchNorm1d(2)
    ema = EMA(model, decay=0.5)
    with torch.no_grad():
        model.running_mean.fill_(float("nan"))
        model.weight.fill_(3.0)
    ema.update(torch.tensor(False))
    assert ema.model.running_mean.tolist() == [0.0, 0.0] and ema.model.weight.tolist() == [1.0, 1.0]
    ema.update(torch.tensor(True))
    assert ema.model.running_mean.isnan().all() and ema.model.weight.tolist() == pytest.approx([2.8, 2.8])


class Grows(Net):
    """Keeps the mean of every batch in a buffer that grows, and counts batches in its extra state."""

    def __init__(self):
        super().__init__()
        self.seen = 0
        self.register_buffer("means", torch.zeros(0))
        self.register_buffer("level", torch.zeros((), dtype=torch.int64))  # a float after the first batch

    def forward(self, x):
        if self.training:
            self.seen += 1
            self.means = torch.cat([self.means, x.mean().reshape(1)])
            self.level = self.level + 0.5
        return super().forward(x)

    def get_extra_state(self):
        return {"seen": self.seen}

    def set_extra_state(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("ema", [None, 0.9])
def test_best_weights_have_the_extra_state_and_the_buffers_of_their_epoch(ema, tmp_path):
    """The valid loss rises after the second epoch; persistent buffers have grown and changed their type since."""

    def worsen(ctx):
        ctx.loss = ctx.loss * abs(ctx.epoch - 2.5)

    settings = {"epochs": 5, "callbacks": [callbacks.on(valid_batch_after_loss=worsen)], "of": learner(Grows, ema=ema)}
    whole = fit(tmp_path / "whole", **settings)
    batches = len(whole.model.means) // whole.best.epoch
    assert 2 <= whole.best.epoch <= 3 and batches == 6
    assert whole.model.seen == len(whole.model.means) == 2 * whole.model.level == 6 * whole.best.epoch
    assert whole.model.get_extra_state() == load_for_inference(tmp_path / "whole", Grows()).get_extra_state()
    left, _ = killed_run(tmp_path, **settings)
    resumed = fit(left, **settings)
    assert resumed.model.seen == whole.model.seen and torch.equal(resumed.model.means, whole.model.means)
    assert torch.equal(resumed.model.level, whole.model.level)
    assert same(*(dict(each.model.named_parameters()) for each in (resumed, whole)))


def test_the_average_of_a_short_fit_is_not_its_initial_weights():
    """`ema=0.999` over 18 updates; at the end of the fit hooks can evaluate the average."""
    seen = []

    def look(ctx):
        trained = [parameter.detach().clone() for parameter in ctx.model.parameters()]
        with ctx.evaluating() as model:
            differences = [
                ((average - first).norm() / (last - first).norm()).item()
                for average, last, first in zip(model.parameters(), trained, start, strict=True)
            ]
        seen.append((min(differences), max(differences)))

    for ema in (0.999, None):
        model = Net()
        start = [parameter.detach().clone() for parameter in model.parameters()]
        learner(model, ema=ema).fit(samples(), epochs=3, callbacks=[callbacks.on(fit_end=look)], show=False)
    (least, most), plain = seen
    assert least > 0.5 and most < 1 and plain == (1, 1)
