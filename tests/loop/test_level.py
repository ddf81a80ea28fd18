from types import SimpleNamespace

from torch import nn, ones

from stoker.loop._level import level, level_loss
from stoker.loop._weights import Average


class Told:
    """A world that only listens."""

    def __init__(self, size):
        self.size, self.given = size, []

    def broadcast(self, tensors):
        self.given += tensors


def test_buffers_of_the_model_its_average_and_its_loss_are_rank_0_s():
    model = nn.BatchNorm1d(2)
    average = Average(model, 0.5)
    world = Told(2)
    loss = nn.CrossEntropyLoss(weight=ones(2))
    supervised = SimpleNamespace(loss=loss)
    level(SimpleNamespace(world=world, model=model, average=average, supervised=supervised))
    expected = [*model.buffers(), *average.model.buffers(), loss.weight]
    assert len(world.given) == 7 and all(a is b for a, b in zip(world.given, expected, strict=True))
    alone = Told(1)
    level(SimpleNamespace(world=alone, model=model, average=None))
    assert alone.given == []


def test_a_loss_has_rank_0_s_buffers_before_it_is_asked():
    weighed = nn.CrossEntropyLoss(weight=ones(2))
    for loss, expected in ((weighed, [weighed.weight]), (nn.MSELoss(), []), (max, [])):
        split = Told(2)
        level_loss(SimpleNamespace(split=split, supervised=SimpleNamespace(loss=loss)))
        assert all(a is b for a, b in zip(split.given, expected, strict=True))
