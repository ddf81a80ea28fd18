import copy

import pytest
import torch
from torch import nn

from stoker import InvalidArgument, NoSuchParameter, optim
from stoker.callbacks import FreezeUntil, Hooks
from tests.callbacks.fits import context, train


def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def values(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def changed(before, after):
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_the_chosen_part_trains_from_its_epoch_on():
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


def test_the_optimizers_state_of_frozen_parameters_is_untouched():
    """A model that has trained, then freezes a part: its Adam moments wait, unchanged, for the thaw."""
    model = net()
    optimizer = optim.Adam().init(model)
    train([], model=model, optimizer=optimizer, epochs=1)
    states = [copy.deepcopy(optimizer.state_dict()["rules"][0]["state"])]
    train(
        [FreezeUntil("0", epoch=3)],
        model=model,
        optimizer=optimizer,
        epochs=3,
        after_epoch=lambda ctx: states.append(copy.deepcopy(optimizer.state_dict()["rules"][0]["state"])),
    )
    before, first, second, third = map(flat, states)
    own = [name for name in before if "0." in name]
    assert own
    for name in own:
        assert torch.equal(before[name], first[name]) and torch.equal(before[name], second[name]), name
    assert any(not torch.equal(second[name], third[name]) for name in own)
    others = [name for name in before if "2." in name]
    assert any(not torch.equal(before[name], first[name]) for name in others)


def flat(tree, path=""):
    if isinstance(tree, dict):
        return {name: leaf for key, each in tree.items() for name, leaf in flat(each, f"{path}/{key}").items()}
    return {path: tree} if isinstance(tree, torch.Tensor) else {}


def test_what_was_frozen_before_stays_frozen():
    model = net()
    model[0].bias.requires_grad_(False)
    train([FreezeUntil("0", epoch=2)], model=model, epochs=3)
    assert not model[0].bias.requires_grad and model[0].weight.requires_grad


def test_a_fit_that_ends_early_leaves_the_model_as_it_was():
    model = net()
    train([FreezeUntil(model[0], epoch=9)], model=model, epochs=2)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_an_exception_leaves_the_model_as_it_was():
    model = net()
    hooks, ctx = Hooks([FreezeUntil("0", epoch=9)]), context(model=model)
    hooks.fire("on_fit_begin", ctx)
    assert not model[0].weight.requires_grad
    hooks.fire("on_exception", ctx)
    assert model[0].weight.requires_grad


def test_a_run_that_goes_on_after_the_epoch_freezes_nothing():
    model = net()
    ctx = context(model=model)
    ctx.epoch = 5  # in the middle of it: no epoch begins before the next batch
    Hooks([FreezeUntil("0", epoch=3)]).fire("on_fit_begin", ctx)
    assert model[0].weight.requires_grad


def test_wrong_arguments():
    with pytest.raises(InvalidArgument, match="epoch is the first epoch that trains 'backbone', at least 2; got 1"):
        FreezeUntil("backbone", epoch=1)
    with pytest.raises(NoSuchParameter, match="'backbone' chooses no parameter"):
        train([FreezeUntil("backbone", epoch=2)])
    assert repr(FreezeUntil(net(), epoch=2)) == "FreezeUntil(the module Sequential, epoch=2)"
