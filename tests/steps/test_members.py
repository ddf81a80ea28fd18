import inspect
from functools import cached_property

import pytest
import torch
from torch import nn

from stoker.steps import valid
from tests.steps.architectures import BATCH, noisy


class Mixin:
    def mixed(self):
        return self.training, torch.is_grad_enabled()


class Model(nn.Module, Mixin):
    kind = "model"

    def __init__(self):
        super().__init__()
        self.net, self.gain = noisy(), 2.0

    def forward(self, x, *, scale: float = 1.0):
        """Runs the net."""
        return self.net(x) * scale

    def valid_step(self, batch):
        return self(batch).sum() + self.net[0].weight.sum()

    def encode(self, x):
        return self.forward(x)

    def parts(self, count):
        for number in range(count):
            yield self.net(BATCH) * number, torch.is_grad_enabled()
        return "done"

    @property
    def norm(self):
        """The size of the first weight."""
        return self.net[0].weight.norm()

    @property
    def loud(self):
        return self.gain

    @loud.setter
    def loud(self, value):
        self.gain = value * 10

    @cached_property
    def flag(self):
        return self.training

    @staticmethod
    def static():
        return torch.is_grad_enabled()

    @classmethod
    def named(cls):
        return cls.kind

    async def later(self):
        return self.training


class Sub(Model):
    def forward(self, x, *, scale: float = 1.0):
        return super().forward(x, scale=scale) + 1


def test_methods_of_the_users_classes_run_in_eval_mode_without_autograd():
    model = Sub()
    view = valid(model)
    assert not view.valid_step(BATCH).requires_grad
    assert torch.equal(view.encode(BATCH), view(BATCH))
    assert not view.forward(BATCH).requires_grad
    assert view.mixed() == (False, False)
    assert model.mixed() == (True, True)
    assert model.valid_step(BATCH).requires_grad


def test_signatures_and_docstrings_are_the_users():
    view = valid(Model())
    assert str(inspect.signature(view.forward)) == "(x, *, scale: float = 1.0)"
    assert view.forward.__doc__ == "Runs the net."
    assert type(view).norm.__doc__ == "The size of the first weight."
    assert inspect.isgeneratorfunction(view.parts)
    assert not inspect.isgeneratorfunction(view.encode)


def test_generators_run_without_autograd_and_their_caller_with_its_own():
    parts = valid(Model()).parts(2)
    for out, grad in parts:
        assert not grad
        assert not out.requires_grad
        assert torch.is_grad_enabled()
    empty = valid(Model()).parts(0)
    with pytest.raises(StopIteration) as stop:
        next(empty)
    assert stop.value.value == "done"


def test_properties():
    model = Model()
    view = valid(model)
    assert not view.norm.requires_grad
    assert model.norm.requires_grad
    view.loud = 3
    assert model.gain == 30


def test_a_cached_property_is_read_but_not_filled_by_a_view():
    model = Model()
    view = valid(model)
    assert view.flag is False
    assert "flag" not in model.__dict__
    assert model.flag is True
    assert view.flag is True  # what the model has kept, as an attribute
    del view.flag
    assert "flag" not in model.__dict__
    view.flag = 7
    assert model.flag == 7


def test_what_needs_no_module_is_left_alone():
    view = valid(Model())
    assert view.static()
    assert view.named() == "model"
    assert inspect.iscoroutinefunction(view.later)


def test_a_method_that_is_patched_later_is_found(monkeypatch):
    view = valid(Model())
    view(BATCH)
    monkeypatch.setattr(Model, "encode", lambda self, x: (self.training, torch.is_grad_enabled(), x))
    assert view.encode(4) == (False, False, 4)
