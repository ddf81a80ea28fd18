import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import InvalidArgument, StateMismatch
from stoker.callbacks import EarlyStopping, Hooks
from tests.callbacks.fits import context, drive, epoch_end

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("settings", "numbers", "stops"),
    [
        ({"patience": 1}, [3, 2, 2, 1], 3),  # a tie is no improvement
        ({"patience": 2}, [3, 2, 3, 1, 2, 2], 6),
        ({"patience": 2}, [5, 4, 3, 2, 1], None),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.8, 2.6, 1], 3),  # both are within 0.5 of the best
        ({"patience": 2, "min_delta": 0.5}, [3, 2.8, 2.4, 2.4], None),
        ({"patience": 2, "warmup": 3}, [1, 2, 3, 4, 5, 6], 5),  # epochs 4 and 5 count
        ({"patience": 2, "warmup": 3}, [1, 2, 3, 0.5, 1, 1], 6),
        ({"patience": 2, "baseline": 1.0}, [3, 2, 1], 2),
        ({"patience": 2, "baseline": 1.0}, [3, 0.9, 2, 2], 4),
        ({"patience": 2, "baseline": 1.0}, [3, 0.9, 0.8, 0.7], None),
        ({"patience": 2, "direction": "max"}, [1, 2, 3, 3, 2], 5),
        ({"patience": 2, "direction": "max", "min_delta": 1}, [1, 1.5, 2, 3], 3),
        ({"patience": 2, "direction": "max", "baseline": 5}, [4, 5, 6], 2),
        ({"patience": 2}, [NAN, NAN, 1], 2),
        ({"patience": 2}, [2, NAN, 1, NAN, NAN], 5),
        ({"patience": 2}, [INF, INF, 1], 2),
    ],
)
def test_when_it_stops(settings, numbers, stops):
    ctx = drive(EarlyStopping(**settings), numbers)
    assert (ctx.epoch if ctx.stopping else None) == stops


def test_the_reason():
    ctx = drive(EarlyStopping(patience=3), [0.5, 0.25, 0.3, 0.3, 0.3, 0.3])
    assert ctx.stopping == (
        "Early stopping at epoch 5 of 6: valid/loss has not been better than 0.25 (epoch 2) for 3 epochs"
    )
    ctx = drive(EarlyStopping(patience=1, baseline=0.1), [0.5], ctx=context(epochs=None))
    assert ctx.stopping == (
        "Early stopping at epoch 1: valid/loss has not been better than the baseline 0.1 for 1 epoch"
    )
    ctx = drive(EarlyStopping(patience=1), [NAN])
    assert ctx.stopping == "Early stopping at epoch 1 of 1: valid/loss has not been a finite number for 1 epoch"


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 5))
def test_the_best_epoch_is_patience_before_the_stop(losses, patience):
    """What the record calls the best and what early stopping waited for are one thing."""
    ctx = drive(EarlyStopping(patience=patience), losses)
    best = ctx.record.best("valid/loss")
    if ctx.stopping:
        assert ctx.epoch - best.epoch == patience
    else:
        assert len(losses) - best.epoch < patience


@settings(deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, NAN]), min_size=2, max_size=20), st.integers(1, 4), st.data())
def test_a_state_in_the_middle_goes_on_to_the_same_end(losses, patience, data):
    whole = drive(EarlyStopping(patience=patience), losses)
    pause = data.draw(st.integers(0, len(losses)))
    first = EarlyStopping(patience=patience)
    ctx = drive(first, losses[:pause], ctx=context(epochs=len(losses)))
    if not ctx.stopping:
        second = EarlyStopping(patience=patience)
        hooks = Hooks([second])
        hooks.fire("on_fit_begin", ctx)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for loss in losses[pause:]:
            epoch_end(hooks, ctx, valid_loss=loss)
            if ctx.stopping:
                break
    assert (ctx.epoch, ctx.stopping) == (whole.epoch, whole.stopping)


def test_a_second_fit_counts_anew():
    callback = EarlyStopping(patience=2)
    assert drive(callback, [1, 2, 3]).epoch == 3
    assert drive(callback, [5, 4, 3, 2]).stopping is None


def test_it_needs_some_patience():
    with pytest.raises(InvalidArgument, match="patience is a whole number of epochs, at least 1; got 0"):
        EarlyStopping(patience=0)
    with pytest.raises(InvalidArgument, match="warmup is a whole number of epochs, at least 0; got -1"):
        EarlyStopping(warmup=-1)


def test_a_state_of_something_else_is_refused():
    callback = EarlyStopping()
    with pytest.raises(StateMismatch, match="the state of EarlyStopping has best, best_epoch, waited; got waited"):
        callback.load_state_dict({"waited": 3})
    assert callback.state_dict() == {"best": None, "best_epoch": 0, "waited": 0}
