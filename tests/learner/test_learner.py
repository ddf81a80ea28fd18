"""The Learner is a value: what it takes, and that fitting does not change it."""

import copy
import re

import pytest
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import InvalidArgument, Learner, metrics, optim
from tests.engine.fits import Net, copied, learner, line, linear, same, samples


def public(thing):
    return [name for name in dir(thing) if not name.startswith("_")]


def test_few_public_names():
    assert len(public(Learner)) <= 12 and len(public(stoker.Fitted)) <= 14
    assert public(Learner) == ["explain", "fit", "hparams"]


def test_a_class_is_made_anew_for_every_fit_and_two_fits_are_the_same_bits():
    given = learner()
    first, second = (given.fit(samples(), valid=0.2, epochs=2, show=False) for _ in range(2))
    assert first.model is not second.model and same(first.model, second.model)
    assert first.history["valid/loss"] == second.history["valid/loss"]


def test_an_instance_is_trained_in_place():
    model = Net()
    given = learner(model)
    first = given.fit(samples(), epochs=1, show=False)
    assert first.model is model
    after_one = copied(model)
    given.fit(samples(), epochs=1, show=False)
    assert not same(model, after_one)  # the second fit went on from the first
    assert model.head.weight.grad is None and model.training


def test_fitting_changes_nothing_in_the_learner():
    loss, rates, recipe = nn.CrossEntropyLoss(), {"head": 1e-2, "*": 1e-3}, {"head": optim.SGD(), "*": optim.AdamW()}
    given = learner(Net, loss=loss, lr=rates, optimizer=recipe, metrics=[metrics.Accuracy()])
    said, spec = repr(given), copy.copy(given._spec)
    given.fit(samples(), epochs=1, show=False)
    given.explain(samples(), epochs=1)
    assert repr(given) == said and given._spec == spec
    assert rates == {"head": 1e-2, "*": 1e-3} and recipe == {"head": optim.SGD(), "*": optim.AdamW()}


def test_hparams_of_an_instance():
    with pytest.raises(InvalidArgument, match="the model is an instance already"):
        linear().hparams(width=3)


def test_defaults_are_enough():
    result = Learner(nn.Linear(3, 1), loss=F.mse_loss).fit(line(), epochs=1, show=False)
    assert result.updates == 2 and result.stopped == "Completed 1 epochs"


def test_it_says_what_it_is():
    said = repr(linear(lr=0.5))
    assert re.fullmatch(r"Learner\(Linear, optimizer=SGD\(.*\), lr=0.5\)", said)
