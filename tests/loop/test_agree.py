from types import SimpleNamespace

import pytest
from torch import nn

from stoker.callbacks import Context
from stoker.distributed import Agreement, World
from stoker.loop._agree import agree, depart, stop


def shared_fit(rank=0):
    """A fit as far as an agreement knows it; alone, an `Accord` hears at once."""
    ctx = Context(model=nn.Linear(1, 1))
    ctx._requests.pending, ctx._requests.can_save = {}, True
    world = World(rank=rank, size=rank + 1)
    given = {"interrupted": False, "terminated": False, "left": None}
    return SimpleNamespace(ctx=ctx, world=world, record=ctx.record, accord=Agreement(World()), **given)


@pytest.mark.parametrize("now", [False, True])
def test_a_wish_is_only_done_when_all_have_agreed(now):
    fit = shared_fit()
    fit.ctx.stop("enough")
    fit.ctx.stop("a second reason")
    fit.ctx.save("before it ends")
    assert (fit.ctx.stopping, fit.ctx._requests.save_reason) == (None, None)
    agree(fit, now=now)
    assert (fit.ctx.stopping, fit.ctx._requests.save_reason, fit.interrupted) == ("enough", "before it ends", False)
    assert fit.ctx._requests.pending == {}


def test_to_leave_goes_before_to_stop_and_is_no_end():
    fit = shared_fit()
    fit.ctx._requests.pending |= {"stop": "enough", "leave": "Terminated", "terminated": True}
    agree(fit)
    assert (fit.ctx.stopping, fit.left, fit.interrupted, fit.terminated) == ("Terminated", "Terminated", True, True)


def test_the_first_reason_is_kept():
    fit = shared_fit()
    stop(fit, "Completed 2 epochs")
    stop(fit, "Completed 9 updates")
    depart(fit, "Interrupted")
    assert (fit.ctx.stopping, fit.left, fit.interrupted) == ("Completed 2 epochs", None, True)


def test_rank_0_says_what_other_ranks_warn_of_once():
    fit = shared_fit()
    fit.ctx.warn("the disk is slow")
    answer = {"stop": None, "leave": None, "terminated": None, "save": None}
    said = [(1, "the disk is slow"), (1, "it is hot here"), (2, "it is hot here")]
    fit.accord = SimpleNamespace(hand_in=lambda wishes: {**answer, "warnings": said})
    agree(fit)
    assert [event.text for event in fit.record.events_of("warning")] == ["the disk is slow", "rank 1: it is hot here"]


def test_alone_there_is_nothing_to_agree_on():
    fit = SimpleNamespace(accord=None)
    agree(fit)
    agree(fit, now=True)
