"""What a step's Python decides by: equal while a program stays right, and another value as soon as it may not."""

import random

import numpy
import pytest
import torch
from torch import nn

from stoker.engine._fingerprint import SideEffects, fingerprint_modules


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
    "inside of a mapping": lambda model: model.options["a"].append(3),
    "list": lambda model: model.calls.append(1),
    "dropout": lambda model: setattr(model.drop, "p", 0.1),
    "mode": lambda model: model.drop.eval(),
    "frozen": lambda model: model.body.weight.requires_grad_(False),
    "buffer": lambda model: setattr(model, "mean", torch.zeros(2)),
    "memory of a buffer": lambda model: model.mean.set_(torch.zeros(2)),
    "tensor": lambda model: setattr(model, "extra", torch.ones(2)),
    "tensor in place": lambda model: model.extra.add_(1),
    "parameter": lambda model: setattr(model.body, "weight", nn.Parameter(torch.zeros(2, 2))),
    "module": lambda model: setattr(model, "body", nn.Linear(2, 2)),
    "hook": lambda model: model.body.register_forward_hook(lambda *given: None),
    "new attribute": lambda model: setattr(model, "added", 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_shows(name):
    model = Model()
    before = fingerprint(model)
    assert hash(before) == hash(fingerprint(model)) and before == fingerprint(model)
    CHANGES[name](model)
    assert fingerprint(model) != before


@pytest.mark.parametrize("setting", ["matmul", "deterministic"])
def test_so_do_settings_of_torch(setting):
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


def test_what_a_step_writes_in_place_is_no_change():
    model = nn.LSTM(2, 2)  # which keeps its weights in a list as well
    before = fingerprint(model)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)
    normed = nn.BatchNorm1d(2)
    own = fingerprint(normed)
    normed(torch.randn(4, 2))
    assert fingerprint(model) == before and fingerprint(normed) == own


def test_a_loss_that_is_no_module_is_looked_at():
    model, loss = Model(), Loss()
    before = fingerprint(model, loss)
    assert fingerprint(model, loss) == before
    loss.gamma = 2.0
    assert fingerprint(model, loss) != before


def test_objects_that_know_each_other_come_to_an_end():
    model, one, two = Model(), Loss(), Loss()
    one.other, two.other = two, one
    model.extra, model.calls = one, [model]
    assert fingerprint(model) == fingerprint(model)


def test_side_effects_say_what_a_step_has_changed():
    model = Model()
    around = SideEffects(model)
    assert around.describe_change(SideEffects(model)) is None
    model.scale = 2.0
    assert around.describe_change(SideEffects(model)) == (
        "Model sets its attribute `scale` in every step, which only Python can do"
    )
    model.scale, model.mean = 1.0, torch.ones(2)
    assert around.describe_change(SideEffects(model), generators=False) == (
        "Model replaces its buffer `mean` in every step, which only Python can do"
    )


def test_side_effects_name_the_module_and_look_at_the_loss():
    model, loss = Model(), nn.MSELoss()
    around = SideEffects(model, loss)
    model.drop.p = 0.1
    assert "Dropout ('drop') sets its attribute `p`" in around.describe_change(SideEffects(model, loss))
    model.drop.p, loss.calls = 0.5, 1
    assert "MSELoss ('loss') sets its attribute `calls`" in around.describe_change(SideEffects(model, loss))


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (random.random, "draws from Python's or numpy's random numbers"),
        (numpy.random.rand, "draws from Python's or numpy's random numbers"),
        (lambda: torch.rand(1), "draws random numbers on the host"),
    ],
    ids=["python", "numpy", "torch"],
)
def test_side_effects_hear_of_numbers_that_are_drawn_and_put_them_back(draw, text):
    model = Model()
    around = SideEffects(model)
    first = draw()
    now = SideEffects(model)
    assert text in around.describe_change(now) and around.describe_change(now, generators=False) is None
    around.undo()
    assert draw() == first


def test_side_effects_put_back_attributes_buffers_and_parameters():
    model = Model()
    before, weight, mean = fingerprint(model), model.body.weight, model.mean
    around = SideEffects(model)
    model.scale, model.added, model.mean = 3.0, 1, torch.ones(2)
    model.body.weight = nn.Parameter(torch.zeros(2, 2))
    around.undo()
    assert fingerprint(model) == before and not hasattr(model, "added")
    assert model.body.weight is weight and model.mean is mean


def test_side_effects_put_back_what_was_changed_in_place():
    model = Model()
    model.config = Loss()
    around = SideEffects(model)
    model.calls.append(2)
    model.options["a"].append(3)
    model.config.gamma = 2.0
    model.extra.add_(1)
    around.undo()
    assert model.calls == [1] and model.options == {"a": [1, 2]} and model.config.gamma == 1.0
    assert model.extra.tolist() == [0.0, 0.0]
