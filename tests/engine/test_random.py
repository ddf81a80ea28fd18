"""The random numbers of a fit are its own, and the global ones are as they were."""

import random

import numpy
import torch
from torch import nn

from stoker.checkpoint import random_state, set_random_state
from stoker.engine import preserve_rng, seeded
from tests.engine.fits import learner, same, samples


def drawn():
    return random.random(), numpy.random.rand(), torch.rand(()).item()


def test_after_a_fit_with_a_seed_all_generators_stand_where_they_stood():
    with preserve_rng():
        expected = drawn()
    learner().fit(samples(), valid=0.2, epochs=1, show=False)
    assert drawn() == expected


def test_two_fits_with_a_seed_are_the_same_whatever_was_drawn_before():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 4)

        def forward(self, x):
            return self.layer(x) + random.random() + numpy.random.rand() + torch.rand(())

    first = learner(Drawing).fit(samples(), epochs=1, show=False).model
    drawn()
    assert same(first, learner(Drawing).fit(samples(), epochs=1, show=False).model)
    assert not same(first, learner(Drawing, seed=4).fit(samples(), epochs=1, show=False).model)


def test_without_a_seed_the_global_generator_decides_and_the_seed_is_told():
    torch.manual_seed(0)
    first = learner(seed=None).fit(samples(), epochs=1, show=False)
    second = learner(seed=None).fit(samples(), epochs=1, show=False)
    torch.manual_seed(0)
    third = learner(seed=None).fit(samples(), epochs=1, show=False)
    assert same(first.model, third.model) and not same(first.model, second.model)
    seeds = [each.record.events_of("begin")[0].extra["seed"] for each in (first, second, third)]
    assert seeds[0] == seeds[2] != seeds[1]


def test_a_state_can_be_taken_and_preserve_rng():
    state = random_state()
    first = drawn()
    set_random_state(state)
    assert drawn() == first
    with seeded(7):
        inside = drawn()
    with seeded(7):
        assert drawn() == inside
