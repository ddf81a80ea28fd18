"""Finite checks that are read a few steps later, on two ranks: both raise for the same step, or neither defers.

This is for GPUs (see test_cuda.py). Here stand-ins for events and pinned memory show on any machine what the ranks
exchange.
"""

from functools import partial

import pytest
import torch
from torch import nn

from stoker import callbacks, data
from stoker.engine import _plan
from tests.distributed.fits import learner, results_of, samples
from tests.distributed.processes import launched
from tests.distributed.test_fit import differences


class Event:
    def record(self, stream):
        """On a CPU everything is done at once."""

    def synchronize(self):
        """Nothing to wait for."""


def pretend_to_be_a_gpu(*, defers):
    torch.cuda.Event, torch.cuda.current_stream = Event, lambda device=None: None
    torch.Tensor.pin_memory = lambda tensor: tensor
    _plan.Plan = partial(_plan.Plan, defers_check=defers)


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    model.register_buffer("seen", torch.zeros(()))  # a message before every forward
    return model


def fitted(rank, size, count, nan, hooks):
    pretend_to_be_a_gpu(defers=hooks != "listens" or rank != 1)  # a hook that sees gradients prevents it
    x, y = samples(count)
    if nan is not None:
        x[nan, 0] = float("nan")

    def act(ctx):
        if hooks == "fails" and rank == 1 and ctx.batch_number == 4:
            raise ValueError("the disk of rank 1 is full")

    own = [callbacks.on(train_batch_begin=act)]
    if hooks == "listens" and rank == 1:
        own.append(callbacks.on(train_batch_after_backward=lambda ctx: None))
    of = learner(network())
    try:
        found = of.fit(data.Loader((x, y), batch_size=8), epochs=2, show=False, callbacks=own)
    except Exception as error:
        return type(error).__name__, str(error)
    return results_of(found), found._prepared.fit.plan.defers_check


@pytest.mark.parametrize(("count", "hooks"), [(33, ""), (64, "listens")])
@pytest.mark.soak
def test_steps_that_are_checked_late_give_the_same(count, hooks):
    x, y = samples(count)
    expected = results_of(learner(network()).fit(data.Loader((x, y), batch_size=8), epochs=2, show=False))
    for found, is_deferred in launched(fitted, 2, count, None, hooks):
        assert differences(found, expected, "deferred") == []
        assert is_deferred == (hooks != "listens")


@pytest.mark.parametrize(
    ("count", "nan", "batch", "rank", "hooks"),
    [
        (33, 16, 3, 0, ""),  # read when rank 0 has a padding batch
        pytest.param(64, 63, 8, 1, "", marks=pytest.mark.soak),
        pytest.param(64, 20, 3, 1, "listens", marks=pytest.mark.soak),
    ],
)
def test_both_ranks_locate_a_nan(count, nan, batch, rank, hooks):
    for kind, text in launched(fitted, 2, count, nan, hooks):
        assert kind == "NotFinite", text
        assert f"of rank {rank} is not finite at epoch 1, batch {batch}: the batch[0] already holds NaN" in text


@pytest.mark.soak
def test_a_failure_beside_a_nan_is_reported_by_its_rank():
    (kind, text), (own_kind, own) = launched(fitted, 2, 64, 20, "fails")
    assert (own_kind, own) == ("ValueError", "the disk of rank 1 is full")
    assert kind in ("PeerFailed", "NotFinite"), text
