"""Validation inside a fit runs the user's own code: the loss is that of the same model in eval mode, bit for bit."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import callbacks, optim

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
Y = X.sum(1, keepdim=True)


class ByType(nn.Module):
    """Chooses what to do by the exact class of a layer."""

    table = {nn.Linear: lambda layer, x: 2 * layer(x), nn.Dropout: lambda layer, x: layer(x)}

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)])

    def forward(self, x):
        for layer in self.layers:
            x = self.table[type(layer)](layer, x) if type(layer) is nn.Linear else layer(x)
        return x


class ById(nn.Module):
    """A table with the `id` of each layer, and a mode that is read past `nn.Module`."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(4, 8), nn.Linear(8, 1), nn.Dropout(0.5)
        self.scales = {id(self.first): 2.0, id(self.last): 0.5}

    def forward(self, x):
        noise = 100 if self.__dict__["training"] else 0
        for layer in (self.first, self.last):
            x = self.scales[id(layer)] * layer(self.drop(x))
        return x + noise


class Captured(nn.Module):
    """Closures, hooks, bound methods and objects that have captured the model."""

    def __init__(self):
        super().__init__()
        self.body, self.head, self.extra, self.drop = nn.Linear(4, 8), nn.Linear(8, 1), nn.Linear(8, 8), nn.Dropout(0.5)
        self.run = lambda x: self.head(self.drop(self.body(x)))
        self.body.register_forward_hook(lambda module, args, out: out + self.extra(self.drop(out)))
        self.head.register_forward_pre_hook(self.mix)

    def mix(self, module, args):
        return (args[0] + self.extra(args[0]),)

    def forward(self, x):
        return self.run(x)


class Slotted(nn.Module):
    __slots__ = ("helper",)

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        object.__setattr__(self, "helper", [self.net])

    def forward(self, x):
        return self.helper[0](x)


class AlwaysFrozen(nn.Module):
    """An overridden `train` that keeps batch norm in eval mode."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def train(self, mode=True):
        super().train(mode)
        self.net[1].eval()
        return self

    def forward(self, x):
        return self.net(x)


MODELS = [ByType, ById, Captured, Slotted, AlwaysFrozen]


def make(kind):
    torch.manual_seed(0)
    return kind()


def fit(model, hooks=(), epochs=2, **settings):
    learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=optim.SGD(), lr=0.01, seed=0, **settings)
    return learner.fit((X, Y), valid=(X, Y), batch_size=64, epochs=epochs, keep="last", callbacks=hooks, show=False)


def loss_in_eval_mode(kind, weights):
    """The reference: a new model, which has captured nothing but itself."""
    model = make(kind)
    model.load_state_dict(weights)
    with torch.no_grad():
        return F.mse_loss(model.eval()(X), Y).item()


@pytest.mark.parametrize("kind", MODELS)
def test_the_validation_loss_is_that_of_the_model_in_eval_mode(kind):
    weights = []
    keep = callbacks.on(valid_begin=lambda ctx: weights.append(copy.deepcopy(ctx.model.state_dict())))
    found = fit(make(kind), [keep])
    assert found.history["valid/loss"] == [loss_in_eval_mode(kind, each) for each in weights]


@pytest.mark.parametrize("kind", MODELS)
def test_the_averaged_weights_are_validated_everywhere_in_the_model(kind):
    trained = {}
    keep = callbacks.on(train_end=lambda ctx: trained.update(copy.deepcopy(ctx.model.state_dict())))
    found = fit(make(kind), [keep], ema=0.9, epochs=5)
    loss = found.history["valid/loss"][-1]
    assert loss == loss_in_eval_mode(kind, found.model.state_dict())  # a fit gives back the averaged weights
    assert loss != pytest.approx(loss_in_eval_mode(kind, trained), rel=1e-3)


@pytest.mark.parametrize("kind", [ByType, AlwaysFrozen])
def test_lr_find_does_not_touch_the_model(kind):
    def losses(model):
        learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=optim.SGD(), seed=0)
        return stoker.lr_find(learner, (X, Y), steps=10, start_lr=1e-3, end_lr=1e-1, batch_size=32).losses

    def make_without_noise():
        model = make(kind)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    model = make_without_noise()
    before = copy.deepcopy(model.state_dict())
    assert losses(model) == losses(make_without_noise)  # which makes a model for the trial
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_is_validated_in_place_and_trained_as_without_validation():
    def make_scripted():
        torch.manual_seed(0)
        return nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))), nn.Linear(8, 1))

    model, alone = make_scripted(), make_scripted()
    found = fit(model)
    stoker.Learner(alone, loss=nn.MSELoss(), optimizer=optim.SGD(), lr=0.01, seed=0).fit(
        (X, Y), batch_size=64, epochs=2, show=False
    )
    assert all(map(torch.equal, model.state_dict().values(), alone.state_dict().values()))
    with torch.no_grad():
        assert found.history["valid/loss"][-1] == F.mse_loss(model.eval()(X), Y).item()
    assert found.predict(X).shape == (64, 1)
