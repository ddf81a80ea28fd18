from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from stoker.steps import valid
from stoker.steps._objects import is_ordinary
from stoker.steps._replaced import holds_modules, replaced
from stoker.steps._shadow import Shadow
from tests.steps.architectures import BATCH, Helper, noisy

OLD, NEW = nn.ReLU(), nn.Tanh()


def swap(module):
    return NEW if module is OLD else module


def back(module):
    return OLD if module is NEW else module


class Holder(ABC):
    heard = []

    def __init_subclass__(cls):
        Holder.heard.append(cls)

    def __init__(self, module):
        self.module, self.calls = module, 0

    def call(self):
        self.calls += 1
        return self.again(), [self.module]

    def again(self):
        return self.module

    @abstractmethod
    def __len__(self): ...


class Empty(Holder):
    def __len__(self):
        return 0


def test_an_object_is_seen_with_other_modules_and_its_methods_too():
    holder = Empty(OLD)
    other = replaced(holder, swap)
    assert other.module is NEW
    assert other.call() == (NEW, [NEW])
    assert isinstance(other, Holder)
    assert type(other).__name__ == "Empty"
    assert holder.module is OLD
    assert holds_modules([holder])  # which is empty, and so false
    assert Holder.heard == [Empty]


def test_what_is_written_is_written_to_the_object():
    holder = Empty(OLD)
    replaced(holder, swap).call()
    assert holder.calls == 1
    replaced(holder, swap).later = 5
    assert holder.later == 5


def test_the_way_back_gives_the_very_object():
    holder = Empty(OLD)
    other = replaced(holder, swap)
    assert replaced(other, swap) is other
    assert replaced([other], back) == [holder]
    assert replaced(other.call, back).__self__ is holder


def test_an_object_that_holds_no_module_is_the_very_same():
    for value in (Empty(3), Empty(nn.Tanh()), object(), torch.device("cpu"), Empty, ModuleType("m")):
        assert replaced(value, swap) is value


def test_what_is_not_looked_into():
    @dataclass(slots=True)
    class Slotted:
        module: nn.Module

    class Both:
        __slots__ = ("__dict__", "module")

    class Number(float):
        pass

    for kind in (Slotted, Both, Number, SimpleNamespace, ModuleType, torch.fx.Graph, type):
        assert not is_ordinary(kind)
    slotted = Slotted(OLD)
    assert replaced(slotted, swap) is slotted
    assert not holds_modules([slotted, nn])


class Recorder:
    """Keeps what a layer gave, and knows the model, as feature extractors do."""

    def __init__(self, model):
        self.model, self.last, self.training, self.where = model, None, None, None

    def __call__(self, module, args, out):
        self.last, self.training, self.where = out, self.model.training, self.model[0]


@pytest.mark.parametrize("hook", [lambda r: r, lambda r: r.__call__, lambda r: lambda *args: r(*args)])
def test_a_hook_of_an_object_sees_the_view_and_writes_to_the_object(hook):
    model = noisy()
    recorder = Recorder(model)
    model[1].register_forward_hook(hook(recorder))
    valid(model)(BATCH)
    assert recorder.last.shape == (6, 8)
    assert recorder.training is False
    assert recorder.where is model[0]
    model(BATCH)
    assert recorder.training is True


def test_an_object_that_a_forward_stores_is_stored_as_it_was():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = noisy()
            self.helper = Helper(self.net)

        def forward(self, x):
            self.same, self.new = self.helper, Helper(self.net)
            return self.helper(x)

    model = Model()
    valid(model)(BATCH)
    assert model.same is model.helper
    assert model.new.blocks[0] is model.net
    assert not isinstance(model.new.inner.block, Shadow)
    assert isinstance(valid(model).helper.blocks[0], Shadow)
    assert valid(model).helper.apply.__name__ == "apply"
    assert not valid(model).helper(BATCH).requires_grad
