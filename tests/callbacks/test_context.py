import math

import numpy as np
import pytest
import torch

from stoker import InvalidArgument, WrongType
from stoker.callbacks import Context
from stoker.record import History, Record
from tests.callbacks.fits import context


def test_every_field_has_a_value_from_the_start():
    ctx = context(epochs=3)
    for name in Context.__slots__:
        getattr(ctx, name)
    assert (ctx.epoch, ctx.batch_number, ctx.update, ctx.lr_scale, ctx.phase) == (0, 0, 0, 1.0, "train")
    assert ctx.loss_mix is None and ctx.stopping is None and ctx.device == torch.device("cpu")


def test_two_contexts_share_nothing():
    one, two = context(), context()
    one.state["a"] = one.metrics["a"] = 1
    one.note("hello")
    assert two.state == two.metrics == {} and len(two.record.events) == 0


def test_a_misspelt_field_is_an_error_read_or_written():
    ctx = context()
    with pytest.raises(AttributeError, match="ctx has no 'bacth'; did you mean 'batch'"):
        ctx.bacth = 1
    with pytest.raises(AttributeError, match="ctx has no 'lr_sclae'; did you mean 'lr_scale'"):
        ctx.lr_sclae
    with pytest.raises(AttributeError, match=r"ctx has no 'zzz'; what is your own goes into ctx\.state"):
        ctx.zzz = 1
    with pytest.raises(AttributeError, match=r"ctx has no 'zzz'; there are: accumulating, batch, .*, history"):
        ctx.zzz
    with pytest.raises(AttributeError, match=r"ctx\.history can't be set"):
        ctx.history = 1
    with pytest.raises(AttributeError, match=r"ctx\.stop can't be set"):
        ctx.stop = "now"
    assert not hasattr(ctx, "zzz")


def test_the_first_reason_to_stop_is_kept():
    ctx = context()
    ctx.stop("first")
    ctx.stop("second")
    assert ctx.stopping == "first"


@pytest.mark.parametrize("reason", ["", None, 3])
def test_stopping_needs_a_reason(reason):
    with pytest.raises(InvalidArgument, match=r"ctx\.stop needs the reason"):
        context().stop(reason)


@pytest.mark.parametrize(
    "value", [2, 2.0, True + 1, torch.tensor(2.0), torch.tensor([2]), np.float32(2), np.int64(2), np.array(2.0)]
)
def test_a_logged_number_is_in_the_record_and_in_the_epochs_row(value):
    ctx = context(record=Record())
    ctx.epoch, ctx.batch_number, ctx.update = 1, 4, 9
    ctx.log("mine", value)
    (event,) = ctx.record.events
    assert (event.kind, event.epoch, event.batch, event.update) == ("log", 1, 4, 9)
    assert event.values == {"mine": 2.0} and ctx.metrics == {"mine": 2.0}
    assert isinstance(ctx.history, History) and ctx.history["mine"] == [2.0]


def test_nan_is_a_number_too():
    ctx = context()
    ctx.epoch = 1
    ctx.log("mine", torch.tensor(math.nan))
    assert math.isnan(ctx.history["mine"][0])


def test_only_numbers_can_be_logged():
    with pytest.raises(
        WrongType, match=r"ctx\.log\('mine', \.\.\.\) takes one number, got str; text goes to ctx\.note"
    ):
        context().log("mine", "3")
    with pytest.raises(WrongType, match=r"takes one number, got a tensor of shape \[2\]"):
        context().log("mine", torch.ones(2))
    with pytest.raises(WrongType, match="the name is 3"):
        context().log(3, 3.0)


def test_notes_and_warnings_stand_in_the_record():
    ctx = context()
    ctx.epoch = 2
    ctx.note("by the way")
    ctx.warn("look out")
    assert [(each.kind, each.text, each.epoch) for each in ctx.record.events] == [
        ("note", "by the way", 2),
        ("warning", "look out", 2),
    ]
