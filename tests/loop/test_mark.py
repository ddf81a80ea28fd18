"""The small part of the state, noted after every update: a later batch can't reach it."""

import torch
from torch import nn

from stoker import Callback
from stoker.checkpoint import RandomWatch
from stoker.loop._mark import buffers_in, marked
from tests.loop.fits import learner, samples


class Listing(Callback):
    def __init__(self):
        self.seen = []

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


def ready(**settings):
    """A fit that is over, with what a durable one has."""
    listing = Listing()
    fit = learner(**settings).fit(samples(48), epochs=1, batch_size=16, callbacks=[listing], show=False)._fit
    fit.watch = RandomWatch()
    fit.homes = [module._buffers for module in fit.model.modules() if module._buffers]
    return fit, listing


def test_it_says_where_the_fit_stands():
    fit, _ = ready()
    mark = marked(fit)
    assert (mark.epoch, mark.batch, mark.update, mark.stage) == (1, 3, 3, "closed")
    assert mark.lr == 1e-2 and mark.events == len(fit.record)


def test_what_happens_next_does_not_reach_it():
    fit, listing = ready()
    listing.seen.append(1)
    fit.ctx.state["mine"] = 1
    mark = marked(fit)
    before = [buffer.clone() for buffer in mark.buffers]
    listing.seen.append(2)
    fit.ctx.state["mine"] = 2
    fit.ctx.metrics["train/loss"] = -1.0
    for buffer in fit.model.buffers():
        buffer.add_(1)
    assert mark.callbacks == {"Listing": {"seen": [1]}} and mark.state == {"mine": 1}
    assert mark.metrics["train/loss"] != -1.0
    assert all(torch.equal(a, b) for a, b in zip(mark.buffers, before, strict=True))


def test_buffers_are_there_once_and_in_the_order_of_the_model():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(6)
            self.again = self.norm
            self.register_buffer("none", None)
            self.head = nn.Linear(6, 4)

        def forward(self, x):
            return self.head(self.norm(x))

    fit, _ = ready(model=Tied)
    found, own = buffers_in(fit.homes), list(fit.model.buffers())
    assert len(found) == len(own) == 3 and all(a is b for a, b in zip(found, own, strict=True))


def test_a_buffer_that_was_replaced_is_the_new_one():
    fit, _ = ready()
    norm = fit.model.body[1]
    norm.running_mean = torch.full_like(norm.running_mean, 7.0)
    assert marked(fit).buffers[0].tolist() == [7.0] * 12
