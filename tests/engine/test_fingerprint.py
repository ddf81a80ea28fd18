"""A model's fingerprint changes when a compiled step may be wrong; side effects of a step are found and undone."""

import random
from collections import OrderedDict

import numpy
import pytest
import torch
from torch import nn

from stoker.engine._replayable import SideEffects, fingerprint_modules


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.drop = nn.Linear(2, 2), nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(2))
        self.scale, self.options, self.extra, self.calls = 1.0, {"a": [1, 2]}, torch.zeros(2), [1]


class Loss:
    def __init__(self):
        self.gamma = 1.0

    def __call__(self, predictions, targets):
        return (predictions - targets).square().mean() * self.gamma


def fingerprint(model, loss=None):
    return fingerprint_modules(list(model.modules()), list(model.parameters()), [loss])


CHANGES = {
    "number": lambda model: setattr(model, "scale", 2.0),
    "list in a dict": lambda model: model.options["a"].append(3),
    "list": lambda model: model.calls.append(1),
    "dropout": lambda model: setattr(model.drop, "p", 0.1),
    "eval mode": lambda model: model.drop.eval(),
    "requires_grad": lambda model: model.body.weight.requires_grad_(False),
    "buffer": lambda model: setattr(model, "mean", torch.zeros(2)),
    "memory of a buffer": lambda model: model.mean.set_(torch.zeros(2)),
    "tensor": lambda model: setattr(model, "extra", torch.ones(2)),
    "tensor in place": lambda model: model.extra.add_(1),
    "parameter": lambda model: setattr(model.body, "weight", nn.Parameter(torch.zeros(2, 2))),
    "module": lambda model: setattr(model, "body", nn.Linear(2, 2)),
    "hook": lambda model: model.body.register_forward_hook(lambda *arguments: None),
    "new attribute": lambda model: setattr(model, "added", 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_the_model_changes_the_fingerprint(name):
    model = Model()
    before = fingerprint(model)
    assert hash(before) == hash(fingerprint(model)) and before == fingerprint(model)
    CHANGES[name](model)
    assert fingerprint(model) != before


@pytest.mark.parametrize("setting", ["matmul", "deterministic"])
def test_settings_of_torch_change_the_fingerprint(setting):
    model = nn.Linear(2, 2)
    before = fingerprint(model)
    try:
        if setting == "matmul":
            torch.set_float32_matmul_precision("high")
        else:
            torch.use_deterministic_algorithms(True)
        assert fingerprint(model) != before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.use_deterministic_algorithms(False)
    assert fingerprint(model) == before


def test_what_a_step_writes_in_place_does_not_change_the_fingerprint():
    model = nn.LSTM(2, 2)  # which keeps its weights in a list as well
    before = fingerprint(model)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)
    normed = nn.BatchNorm1d(2)
    own = fingerprint(normed)
    normed(torch.randn(4, 2))
    assert fingerprint(model) == before and fingerprint(normed) == own


def test_attributes_of_a_loss_function_change_the_fingerprint():
    model, loss = Model(), Loss()
    before = fingerprint(model, loss)
    assert fingerprint(model, loss) == before
    loss.gamma = 2.0
    assert fingerprint(model, loss) != before


def test_cycles_of_objects_are_followed_once():
    model, one, two = Model(), Loss(), Loss()
    one.other, two.other = two, one
    model.extra, model.calls = one, [model]
    assert fingerprint(model) == fingerprint(model)


def test_side_effects_name_the_changed_attribute():
    model = Model()
    before = SideEffects(model)
    assert before.describe_change(SideEffects(model)) is None
    model.scale = 2.0
    assert before.describe_change(SideEffects(model)) == (
        "Model sets its attribute `scale` in every step, which only Python can do"
    )
    model.scale, model.mean = 1.0, torch.ones(2)
    assert before.describe_change(SideEffects(model), generators=False) == (
        "Model replaces its buffer `mean` in every step, which only Python can do"
    )


def test_side_effects_name_the_module_or_the_loss():
    model, loss = Model(), nn.MSELoss()
    before = SideEffects(model, loss)
    model.drop.p = 0.1
    assert "Dropout ('drop') sets its attribute `p`" in before.describe_change(SideEffects(model, loss))
    model.drop.p, loss.calls = 0.5, 1
    assert "MSELoss ('loss') sets its attribute `calls`" in before.describe_change(SideEffects(model, loss))


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (random.random, "draws from Python's or numpy's random numbers"),
        (numpy.random.rand, "draws from Python's or numpy's random numbers"),
        (lambda: torch.rand(1), "draws random numbers on the host"),
    ],
    ids=["python", "numpy", "torch"],
)
def test_side_effects_find_and_undo_random_numbers(draw, text):
    model = Model()
    before = SideEffects(model)
    first = draw()
    now = SideEffects(model)
    assert text in before.describe_change(now) and before.describe_change(now, generators=False) is None
    before.undo()
    assert draw() == first


def test_side_effects_restore_attributes_buffers_and_parameters():
    model = Model()
    first, weight, mean = fingerprint(model), model.body.weight, model.mean
    before = SideEffects(model)
    model.scale, model.added, model.mean = 3.0, 1, torch.ones(2)
    model.body.weight = nn.Parameter(torch.zeros(2, 2))
    before.undo()
    assert fingerprint(model) == first and not hasattr(model, "added")
    assert model.body.weight is weight and model.mean is mean


def test_side_effects_restore_what_was_changed_in_place():
    model = Model()
    model.config = Loss()
    before = SideEffects(model)
    model.calls.append(2)
    model.options["a"].append(3)
    model.config.gamma = 2.0
    model.extra.add_(1)
    before.undo()
    assert model.calls == [1] and model.options == {"a": [1, 2]} and model.config.gamma == 1.0
    assert model.extra.tolist() == [0.0, 0.0]


def test_side_effects_do_not_call_the_methods_of_a_mapping():
    """Transformers' table of activation functions creates a module for every entry that is read."""

    class Table(OrderedDict):
        def __getitem__(self, name):
            return super().__getitem__(name)()

    model = Model()
    model.table = Table(a=nn.GELU, b=nn.ReLU)
    before = SideEffects(model)
    model.scale = 3.0
    before.undo()
    assert list(model.table.items()) == [("a", nn.GELU), ("b", nn.ReLU)] and model.scale == 1.0
