"""Small models and data, and the loop that a user would write by hand on stoker's parts."""

import random

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import data, optim


class Net(nn.Module):
    """With dropout and batch norm, so that random numbers and running statistics count."""

    def __init__(self, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(self.body(x))


def samples(count=150):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 6, generator=generator)
    return x, torch.randint(0, 4, (count,), generator=generator)


def line(count=64):
    """A regression that a linear model can learn."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 3, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]])


def learner(model=Net, **settings):
    return stoker.Learner(
        model, **{"loss": F.cross_entropy, "optimizer": optim.AdamW(), "lr": 1e-2, "seed": 3, **settings}
    )


def linear(**settings):
    return stoker.Learner(
        settings.pop("model", None) or nn.Linear(3, 1),
        **{"loss": nn.MSELoss(), "optimizer": optim.SGD(), "lr": 0.05, "seed": 0, **settings},
    )


def seed_everything(seed=3):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def walk(loader, updates):
    """(batch of the epoch, whether it is the epoch's last, batch) for as long as somebody asks."""
    for epoch in range(updates):
        for number, batch in enumerate(loader.at(epoch=epoch), start=1):
            yield number, number == len(loader), batch


def same(a, b):
    """Every parameter and buffer, bit for bit."""
    left, right = (each if isinstance(each, dict) else each.state_dict() for each in (a, b))
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


def copied(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


__all__ = ["F", "Net", "copied", "data", "learner", "line", "linear", "same", "samples", "seed_everything", "walk"]
