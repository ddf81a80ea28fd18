from abc import ABC, abstractmethod

import torch
from torch import nn

from stoker.steps import valid
from stoker.steps._shadow import Shadow, origin_of, unwrapped
from tests.steps.architectures import BATCH, noisy


def test_a_users_class_does_not_hear_of_its_shadows():
    heard = []

    class Meta(type):
        def __new__(mcs, name, bases, namespace):
            heard.append(name)
            return super().__new__(mcs, name, bases, namespace)

        def __init__(cls, name, bases, namespace):
            heard.append(name)
            super().__init__(name, bases, namespace)

    class Model(nn.Module, metaclass=Meta):
        def __init_subclass__(cls, **kwargs):
            heard.append(cls)

        def __new__(cls, *args):
            heard.append("new")
            return super().__new__(cls)

        def forward(self, x):
            return x

    model = Model()
    before, attributes = list(heard), dict(vars(Model))
    assert torch.equal(valid(model)(BATCH), BATCH)
    assert heard == before
    assert dict(vars(Model)) == attributes
    assert isinstance(valid(model), Model)
    assert not isinstance(model, Shadow)


def test_abstract_classes():
    class Base(nn.Module, ABC):
        @abstractmethod
        def forward(self, x): ...

    class Model(Base):
        def __init__(self):
            super().__init__()
            self.net = noisy()

        def forward(self, x):
            assert isinstance(self, Base)
            return self.net(x)

    class Other(Base):
        def forward(self, x):
            return x

    model = Model()
    view = valid(model)
    assert not view(BATCH).requires_grad
    assert isinstance(view, Base)
    assert isinstance(view, Model)
    assert not isinstance(view, Other)
    assert isinstance(Other(), Base)
    assert not isinstance(Other(), type(view))


def test_a_shadow_is_equal_to_its_module_so_that_what_is_kept_by_module_is_found():
    model = noisy()
    names = {module: name for name, module in model.named_modules()}
    view = valid(model)
    assert [names[module] for module in view.modules()] == ["", "0", "1", "2", "3"]
    assert view == model
    assert model == view
    assert view != model[0]
    assert view != 3
    assert view[0] in set(model)
    assert valid(model) == valid(model)


def test_hooks_see_the_shadow_and_bound_hooks_their_own_shadow():
    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.seen = noisy(), []
            self.net[0].register_forward_hook(self.watch)

        def watch(self, module, args, out):
            self.seen.append((self.training, module.training))

        def forward(self, x):
            return self.net(x)

    model = Watching()
    handle = model.net[1].register_forward_pre_hook(lambda module, args: model.seen.append(module.training))
    valid(model)(BATCH)
    assert model.seen == [(False, False), False]
    handle.remove()
    other = valid(model).net[0].register_forward_hook(lambda module, args, out: out * 0)
    assert len(model.net[0]._forward_hooks) == 2  # registered on the module itself
    other.remove()
    assert len(model.net[0]._forward_hooks) == 1
    valid(model)(BATCH)
    model(BATCH)
    assert model.seen[2:] == [(False, False), (True, True)]


def test_self_class_makes_a_view_of_a_new_module():
    class Growing(nn.Module):
        def __init__(self, net=None, *, depth=0):
            super().__init__()
            self.net, self.depth = net or noisy(), depth

        def forward(self, x):
            return x if self.depth == 2 else self.net(self.__class__(self.net, depth=self.depth + 1)(x))

    model = Growing()
    grown = type(valid(model))(model.net, depth=2)
    assert isinstance(grown, Shadow)
    assert type(origin_of(grown)) is Growing
    assert torch.equal(valid(model)(BATCH), model.eval()(BATCH))


def test_empty_containers_are_modules_like_any_other():
    model = nn.Sequential(nn.Sequential(), nn.ModuleList())
    view = valid(model)
    view.extra = view[0]
    assert model.extra is model[0]
    del view[1]
    assert model[0] is origin_of(view[0])
    assert not isinstance(model[0], Shadow)
    assert not valid(nn.Module()).training


def test_checkpointing_inside_a_view():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = noisy()

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=False)

    model = Model()
    out = valid(model)(BATCH)
    assert torch.equal(out, model.eval()(BATCH))
    assert not out.requires_grad


def test_wrappers_and_the_names_under_which_they_hold_the_module():
    model = noisy()
    assert unwrapped(model) == (model, ())
    assert unwrapped(nn.DataParallel(torch.compile(model, backend="eager"))) == (model, ("module", "_orig_mod"))
    assert origin_of(valid(model)) is model
    assert origin_of(model) is model
