from types import SimpleNamespace

from torch import nn

from stoker.loop._level import level
from stoker.loop._weights import Average


class Told:
    """A world that only listens."""

    def __init__(self, size):
        self.size, self.given = size, []

    def broadcast(self, tensors):
        self.given += tensors


def test_buffers_of_the_model_and_of_its_average_are_rank_0_s():
    model = nn.BatchNorm1d(2)
    average = Average(model, 0.5)
    world = Told(2)
    level(SimpleNamespace(world=world, model=model, average=average))
    expected = [*model.buffers(), *average.model.buffers()]
    assert len(world.given) == 6 and all(a is b for a, b in zip(world.given, expected, strict=True))
    alone = Told(1)
    level(SimpleNamespace(world=alone, model=model, average=None))
    assert alone.given == []
