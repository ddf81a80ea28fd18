"""Objectives: losses for parts of the model."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Objective, optim


def test_an_objective_is_frozen():
    objective = Objective("critic", torch.tensor(1.0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        objective.name = "other"


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
        self.seen = []

    def train_step(self, batch):
        before = self.a.weight.detach().clone(), self.b.weight.detach().clone()
        yield Objective("a", (self.a(batch[0]) + self.b(batch[0])).square().mean())
        middle = self.a.weight.detach().clone(), self.b.weight.detach().clone()
        yield Objective("b", F.mse_loss(self.a(batch[0]) + self.b(batch[0]), batch[0]))
        self.seen.append((before, middle, (self.a.weight.detach().clone(), self.b.weight.detach().clone())))


def test_each_part_is_updated_before_the_step_continues():
    result = stoker.Learner(Pair(), optimizer=optim.SGD(), lr=0.1, seed=0).fit(
        (torch.randn(8, 1),), updates=1, show=False
    )
    ((before, middle, after),) = result.model.seen
    assert not torch.equal(before[0], middle[0]) and torch.equal(before[1], middle[1])
    assert torch.equal(middle[0], after[0]) and not torch.equal(middle[1], after[1])
    assert result.updates == 1


def test_error_for_a_part_that_does_not_exist():
    class Wrong(Pair):
        def train_step(self, batch):
            yield Objective("critc", self.a(batch[0]).mean())

    with pytest.raises(stoker.NoSuchParameter, match="critc"):
        stoker.Learner(Wrong(), seed=0).fit((torch.randn(8, 1),), updates=1, show=False)
