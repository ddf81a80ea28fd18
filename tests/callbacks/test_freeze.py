import json

import pytest
import torch
from torch import nn

from stoker import InvalidArgument, NoSuchParameter, StateMismatch
from stoker.callbacks import FreezeUntil, Hooks
from tests.callbacks.fits import context, train


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def values(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_selected_part_trains_from_the_given_epoch_on():
    model, moved = net(), []
    last = values(model)

    def look(ctx):
        nonlocal last
        now = values(model)
        moved.append(changed(last, now))
        last = now

    ctx = train([FreezeUntil("0", epoch=3)], model=model, epochs=4, after_epoch=look)
    head, everything = {"2.weight", "2.bias"}, set(last)
    assert moved == [head, head, everything, everything]
    assert [note.text for note in ctx.record.events_of("note")] == ["'0' trains from epoch 3 on"]
    assert ctx.record.events_of("warning") == []
    (warning,) = train([FreezeUntil("0", epoch=4)], epochs=3).record.events_of("warning")
    assert warning.text == "FreezeUntil('0', epoch=4) never trains these parameters: the fit has 3 epochs"


def test_parameters_frozen_before_the_fit_stay_frozen():
    model = net()
    model[0].bias.requires_grad_(False)
    train([FreezeUntil("0", epoch=2)], model=model, epochs=3)
    assert not model[0].bias.requires_grad and model[0].weight.requires_grad


def test_a_fit_that_ends_early_unfreezes_the_model():
    model = net()
    train([FreezeUntil(model[0], epoch=9)], model=model, epochs=2)
    assert trainable(model) == [True] * 4
    hooks, ctx = Hooks([FreezeUntil("0", epoch=9)]), context(model=model)
    hooks.fire("on_fit_begin", ctx)
    assert trainable(model) == [False] * 2 + [True] * 2
    hooks.fire("on_exception", ctx)
    assert trainable(model) == [True] * 4


def test_wrong_arguments_are_rejected():
    with pytest.raises(InvalidArgument, match="epoch is the first epoch that trains 'backbone', at least 2; got 1"):
        FreezeUntil("backbone", epoch=1)
    with pytest.raises(NoSuchParameter, match="'backbone' matches no parameter"):
        train([FreezeUntil("backbone", epoch=2)])
    assert repr(FreezeUntil(net(), epoch=2)) == "FreezeUntil(the module Sequential, epoch=2)"


@pytest.mark.parametrize("saved_at", [1, 2, 3])
@pytest.mark.parametrize("marked", [True, False], ids=["the-model-is-frozen", "the-model-is-not-frozen"])
def test_a_resumed_run_trains_the_selected_part_from_the_same_epoch_on(saved_at, marked):
    """A restored model may already be frozen; the callback knows from its state that it froze it, not the user."""
    model, callback = net(), FreezeUntil("0", epoch=3)
    ctx, hooks = context(model=model), Hooks([callback])
    hooks.fire("on_fit_begin", ctx)
    for ctx.epoch in range(1, saved_at + 1):
        hooks.fire("on_epoch_begin", ctx)
    state, trains = json.loads(json.dumps(callback.state_dict())), trainable(model)
    assert trains == ([False] * 2 + [True] * 2 if saved_at < 3 else [True] * 4)

    other, callback = net(), FreezeUntil("0", epoch=3)
    if marked:
        for parameter, flag in zip(other.parameters(), trains, strict=True):
            parameter.requires_grad_(flag)
    ctx, hooks = context(model=other), Hooks([callback])
    ctx.epoch = saved_at
    hooks.fire("on_fit_begin", ctx)
    callback.load_state_dict(state)
    assert trainable(other) == trains
    for ctx.epoch in range(saved_at + 1, 5):
        hooks.fire("on_epoch_begin", ctx)
        assert trainable(other) == ([False] * 2 + [True] * 2 if ctx.epoch < 3 else [True] * 4)
    hooks.fire("on_fit_end", ctx)
    assert trainable(other) == [True] * 4


def test_a_finished_fit_that_is_continued_freezes_again_until_the_epoch():
    model, callback = net(), FreezeUntil("0", epoch=3)
    ctx, hooks = context(model=model), Hooks([callback])
    hooks.fire("on_fit_begin", ctx)
    ctx.epoch = 1
    hooks.fire("on_epoch_begin", ctx)
    hooks.fire("on_fit_end", ctx)
    state = callback.state_dict()
    assert trainable(model) == [True] * 4 and state == {"frozen": []}
    hooks.fire("on_fit_begin", ctx)
    model.requires_grad_(True)  # as the checkpoint of a finished fit does
    callback.load_state_dict(state)
    assert trainable(model) == [False] * 2 + [True] * 2


def test_a_state_of_another_model_or_callback_is_rejected():
    callback = FreezeUntil("0", epoch=3)
    Hooks([callback]).fire("on_fit_begin", context(model=net()))
    with pytest.raises(StateMismatch, match=r"FreezeUntil froze 2.bias, but '0' does not select that in this model"):
        callback.load_state_dict({"frozen": ["0.weight", "2.bias"]})
    with pytest.raises(StateMismatch, match="the state of FreezeUntil has the entries frozen; got best, waited"):
        callback.load_state_dict({"best": 1, "waited": 2})


def trainable(model):
    return [parameter.requires_grad for parameter in model.parameters()]
