"""What `ctx` offers to a callback."""

import dataclasses

import numpy as np
import pytest
import torch

from stoker import InvalidArgument, WrongType
from stoker.callbacks import Context, Requests
from stoker.record import History
from tests.callbacks.fits import context


def public_fields():
    return [each.name for each in dataclasses.fields(Context) if not each.name.startswith("_")]


def test_every_field_has_a_value_from_the_start_and_is_documented():
    ctx = context(epochs=3)
    for name in public_fields():
        getattr(ctx, name)
        assert f"`{name}`" in Context.__doc__, name
    assert (ctx.epoch, ctx.batch_number, ctx.update, ctx.lr_scale, ctx.phase) == (0, 0, 0, 1.0, "train")
    assert ctx.loss_mix is None and ctx.stopping is None and ctx.device == torch.device("cpu")


def test_a_misspelt_field_is_an_error_read_or_written():
    ctx = context()
    with pytest.raises(AttributeError, match="ctx has no field 'bacth'; did you mean 'batch'"):
        ctx.bacth = 1
    with pytest.raises(AttributeError, match="ctx has no field 'lr_sclae'; did you mean 'lr_scale'"):
        ctx.lr_sclae
    with pytest.raises(AttributeError, match=r"ctx has no field 'zzz'; use ctx\.state for your own values"):
        ctx.zzz = 1
    with pytest.raises(AttributeError, match=r"ctx has no field 'zzz'; the fields are: accumulating, batch, .*history"):
        ctx.zzz
    with pytest.raises(AttributeError, match=r"ctx\.history cannot be set"):
        ctx.history = 1
    with pytest.raises(AttributeError, match=r"ctx\.stop cannot be set"):
        ctx.stop = "now"
    assert not hasattr(ctx, "zzz")


@pytest.mark.parametrize("reason", ["", None, 3])
@pytest.mark.parametrize("method", ["stop", "save"])
def test_stopping_and_saving_need_a_reason(method, reason):
    with pytest.raises(InvalidArgument, match=rf"ctx\.{method} takes the reason as a text"):
        getattr(context(), method)(reason)


def test_saving_needs_a_run():
    with pytest.raises(InvalidArgument, match=r"no run to write to: give fit run=\.\.\."):
        context().save("now")
    requests = Requests(can_save=True)
    context(requests=requests).save("now")
    assert requests.save_reason == "now"


def test_with_several_processes_requests_wait_until_the_ranks_exchange_them():
    requests = Requests(can_save=True, pending={})
    ctx = context(requests=requests)
    for reason in ("first", "second"):
        ctx.stop(reason)
        ctx.save(reason)
        ctx.warn(reason)
    assert ctx.stopping is None and requests.save_reason is None
    assert requests.pending == {"stop": "first", "save": "second", "warnings": ["first", "second"]}


@pytest.mark.parametrize(
    "value", [2, 2.0, True + 1, torch.tensor(2.0), torch.tensor([2]), np.float32(2), np.int64(2), np.array(2.0)]
)
def test_a_logged_number_is_in_the_record_and_in_the_row_of_the_epoch(value):
    ctx = context()
    ctx.epoch, ctx.batch_number, ctx.update = 1, 4, 9
    ctx.log("mine", value)
    (event,) = ctx.record.events
    assert (event.kind, event.epoch, event.batch, event.update) == ("log", 1, 4, 9)
    assert event.values == {"mine": 2.0} and ctx.metrics == {"mine": 2.0}
    assert isinstance(ctx.history, History) and ctx.history["mine"] == [2.0]


def test_only_numbers_can_be_logged():
    with pytest.raises(WrongType, match=r"ctx\.log\('mine', \.\.\.\) takes one number, got str; use ctx\.note"):
        context().log("mine", "3")
    with pytest.raises(WrongType, match=r"takes one number, got a tensor of shape \[2\]"):
        context().log("mine", torch.ones(2))
    with pytest.raises(WrongType, match="got the name 3"):
        context().log(3, 3.0)
