import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import InvalidArgument, StateMismatch
from stoker.callbacks import Hooks, ReduceLROnPlateau
from tests.callbacks.fits import context, drive, epoch_end

NUMBERS = st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(math.nan), st.floats(-3, 3)), max_size=40)


def scales(callback, numbers):
    ctx, hooks, found = context(epochs=len(numbers)), Hooks([callback]), []
    hooks.fire("on_fit_begin", ctx)
    for number in numbers:
        epoch_end(hooks, ctx, valid_loss=number)
        found.append(ctx.lr_scale)
    return found


@settings(deadline=None)
@given(
    NUMBERS,
    st.sampled_from(["min", "max"]),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from([0.0, 0.3]),
)
def test_it_is_torchs_scheduler(numbers, direction, factor, patience, cooldown, min_delta, min_scale):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer,
        mode=direction,
        factor=factor,
        patience=patience,
        threshold=min_delta,
        threshold_mode="abs",
        cooldown=cooldown,
        min_lr=min_scale,
        eps=0,
    )
    expected = []
    for number in numbers:
        scheduler.step(number)
        expected.append(optimizer.param_groups[0]["lr"])
    callback = ReduceLROnPlateau(
        factor=factor,
        patience=patience,
        cooldown=cooldown,
        min_delta=min_delta,
        min_scale=min_scale,
        direction=direction,
    )
    assert scales(callback, numbers) == expected


def test_it_scales_what_another_callback_has_scaled_and_says_so():
    ctx = context(epochs=3)
    ctx.lr_scale = 0.5
    drive(ReduceLROnPlateau(factor=0.1, patience=0), [1.0, 1.0], ctx=ctx)
    assert ctx.lr_scale == 0.05
    (note,) = ctx.record.events_of("note")
    assert note.text == "valid/loss is on a plateau at epoch 2: learning rates × 0.05 from now on"


def test_a_scale_below_the_smallest_is_left_alone():
    ctx = context(epochs=3)
    ctx.lr_scale = 0.05
    drive(ReduceLROnPlateau(patience=0, min_scale=0.1), [1.0, 1.0], ctx=ctx)
    assert ctx.lr_scale == 0.05 and not ctx.record.events_of("note")


@settings(deadline=None)
@given(NUMBERS, st.integers(0, 40))
def test_a_state_in_the_middle_goes_on_to_the_same_end(numbers, pause):
    settings = {"factor": 0.5, "patience": 1, "cooldown": 2}
    whole = scales(ReduceLROnPlateau(**settings), numbers)
    first, second = ReduceLROnPlateau(**settings), ReduceLROnPlateau(**settings)
    ctx = drive(first, numbers[:pause], ctx=context(epochs=len(numbers)))
    hooks = Hooks([second])
    hooks.fire("on_fit_begin", ctx)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for number in numbers[pause:]:
        epoch_end(hooks, ctx, valid_loss=number)
    assert ctx.lr_scale == (whole[-1] if whole else 1.0)


def test_a_second_fit_counts_anew():
    callback = ReduceLROnPlateau(patience=1, factor=0.5)
    assert scales(callback, [1, 2, 3]) == [1, 1, 0.5]
    assert scales(callback, [9, 8, 7]) == [1, 1, 1]


@pytest.mark.parametrize("factor", [0, 1, 1.5, -0.1])
def test_the_factor_shrinks(factor):
    with pytest.raises(InvalidArgument, match="factor is between 0 and 1, so that the learning rate shrinks; got"):
        ReduceLROnPlateau(factor=factor)


def test_the_other_settings():
    with pytest.raises(InvalidArgument, match=r"min_scale is between 0 and 1, .*; got 2"):
        ReduceLROnPlateau(min_scale=2)
    with pytest.raises(InvalidArgument, match="cooldown is a whole number of epochs"):
        ReduceLROnPlateau(cooldown=-1)


def test_a_state_of_something_else_is_refused():
    with pytest.raises(StateMismatch, match="the state of ReduceLROnPlateau has best, waited, cooling; got list"):
        ReduceLROnPlateau().load_state_dict([])
