"""Steps whose verdict is heard of late, on two ranks: both hear the same after the same step, or nobody is late.

On a GPU this is for real (test_cuda.py). Here events and pinned memory are stand-ins, so that what the ranks say to
each other can be seen on any machine.
"""

import pytest
import torch
from stoker.loop import _program
from torch import nn

from stoker import callbacks, data
from tests.distributed.fits import came_out, learner, samples
from tests.distributed.processes import launched
from tests.distributed.test_fit import differences


class Event:
    def record(self, stream):
        """Everything on a CPU is done when it is asked for."""

    def synchronize(self):
        """Nothing to wait for."""


def pretend():
    torch.cuda.Event, torch.cuda.current_stream = Event, lambda device=None: None
    torch.Tensor.pin_memory = lambda tensor: tensor
    _program._hears_late = lambda fit: next(_program._listeners(fit, _program.AFTER), None) is None


def network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).double()
    model.register_buffer("seen", torch.zeros(()))  # a message before every forward
    return model


def fitted(rank, size, count, nan, hooks):
    pretend()
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
    return came_out(found), found._prepared.fit.late


@pytest.mark.parametrize(("count", "hooks"), [(61, ""), (33, ""), (64, "listens")])
@pytest.mark.soak
def test_steps_that_are_checked_late_give_the_same(count, hooks):
    x, y = samples(count)
    expected = came_out(learner(network()).fit(data.Loader((x, y), batch_size=8), epochs=2, show=False))
    for found, late in launched(fitted, 2, count, None, hooks):
        assert differences(found, expected, "late") == []
        assert late == (hooks != "listens")


@pytest.mark.parametrize(
    ("count", "nan", "batch", "rank", "hooks"),
    [
        (64, 20, 3, 1, ""),
        (64, 2, 1, 0, ""),
        (64, 63, 8, 1, ""),
        (33, 16, 3, 0, ""),  # heard of when rank 0 has nothing of a batch
        (64, 20, 3, 1, "listens"),
    ],
)
@pytest.mark.soak
def test_both_ranks_locate_a_nan(count, nan, batch, rank, hooks):
    for kind, text in launched(fitted, 2, count, nan, hooks):
        assert kind == "NotFinite", text
        assert f"of rank {rank} is not finite at epoch 1, batch {batch}: the batch[0] holds NaN" in text


@pytest.mark.soak
def test_a_failure_beside_a_nan_is_reported_by_its_rank():
    (kind, text), (own_kind, own) = launched(fitted, 2, 64, 20, "fails")
    assert (own_kind, own) == ("ValueError", "the disk of rank 1 is full")
    assert kind in ("PeerFailed", "NotFinite"), text
