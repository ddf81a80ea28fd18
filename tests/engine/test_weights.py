"""Weights beside the model's own."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stoker import InvalidArgument, StateMismatch
from stoker.checkpoint import load_model_state, model_state
from stoker.engine import EMA, copy_weights, restore_weights
from tests.checkpoint.states import write_and_read as through
from tests.engine.fits import Net, same


def test_a_snapshot_is_a_copy_and_goes_back_in_place():
    model = Net()
    kept, own = copy_weights(model), model.head.weight
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    assert not same(model, kept)
    restore_weights(model, kept)
    assert same(model, kept) and model.head.weight is own


def test_the_average_is_torchs_and_buffers_are_the_newest():
    model = Net()
    ours = EMA(model, 0.9)
    theirs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    theirs.update_parameters(model)  # its first update is a copy, where ours has begun already
    for _ in range(20):
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.add_(torch.rand_like(tensor) if tensor.is_floating_point() else 1)
        ours.update()
        theirs.update_parameters(model)
    for own, other in zip(ours.model.parameters(), theirs.module.parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)
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
    average = EMA(model, 0.5)
    before = average.model.a.weight.clone()
    with torch.no_grad():
        model.a.weight.add_(1)
    average.update()
    torch.testing.assert_close(average.model.b.weight, before + 0.5)


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.norm.bias = self.layer.bias
        self.register_buffer("cache", torch.zeros(3), persistent=False)


def step(model, average, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.add_(torch.rand(tensor.shape, generator=generator).to(tensor.dtype))
    average.update()


@pytest.mark.parametrize("place", [0, 1, 5])
def test_an_average_goes_on_to_the_same_bits(place):
    model = Cached()
    average = EMA(model, 0.9)
    for seed in range(5):
        if seed == place:
            other = Cached()
            again = EMA(other, 0.9)
            load_model_state(other, through(model_state(model)))
            again.load_state_dict(through(average.state_dict()))
        step(model, average, seed)
        if seed >= place:
            step(other, again, seed)
    if place == 5:
        again = EMA(Cached(), 0.9)
        again.load_state_dict(through(average.state_dict()))
    ours, theirs = dict(average.model.named_buffers()), dict(again.model.named_buffers())
    assert "cache" in ours and all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert same(average.model, again.model) and again.model.norm.bias is again.model.layer.bias
    assert not any(parameter.requires_grad for parameter in again.model.parameters())


def test_an_average_of_another_model_is_refused():
    average = EMA(nn.Linear(2, 2), 0.9)
    with pytest.raises(
        StateMismatch, match=r"'weight' is float32 \[3, 2\] in the state, float32 \[2, 2\] in the model"
    ):
        average.load_state_dict(EMA(nn.Linear(2, 3), 0.9).state_dict())


def test_a_decay_that_is_none():
    with pytest.raises(InvalidArgument, match="ema is a decay of at least 0 and below 1"):
        EMA(nn.Linear(1, 1), 1.0)


def test_an_average_that_may_not_move_keeps_its_buffers_too():
    """After a NaN the model's running statistics are none, and the average's are the last good ones."""
    model = nn.BatchNorm1d(2)
    average = EMA(model, decay=0.5)
    with torch.no_grad():
        model.running_mean.fill_(float("nan"))
        model.weight.fill_(3.0)
    average.update(torch.tensor(False))
    assert average.model.running_mean.tolist() == [0.0, 0.0] and average.model.weight.tolist() == [1.0, 1.0]
    average.update(torch.tensor(True))
    assert average.model.running_mean.isnan().all() and average.model.weight.tolist() == [2.0, 2.0]
