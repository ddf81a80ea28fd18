import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import InvalidArgument, NoSuchMetric
from stoker.callbacks import Callback, EarlyStopping, Hooks, ReduceLROnPlateau
from stoker.callbacks._monitor import improved
from tests.callbacks.fits import begin, context, epoch_end

FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(FLOATS, FLOATS, st.floats(0, 10))
def test_better_in_one_direction_is_worse_in_the_other(value, best, delta):
    up = improved(value, best, direction="max", min_delta=delta)
    assert up == improved(-value, -best, direction="min", min_delta=delta)
    assert not (up and improved(value, best, direction="min", min_delta=delta))
    if math.isnan(value):
        assert not up


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_number_is_better_than_none(value):
    assert improved(value, None, direction="min", min_delta=0.0) and improved(value, None, direction="max", min_delta=1)
    for worthless in (math.nan, math.inf):
        assert not improved(worthless, None, direction="min", min_delta=0.0)


@pytest.mark.parametrize("kind", [EarlyStopping, ReduceLROnPlateau])
def test_an_unknown_monitor_is_an_error_at_the_first_epoch_end(kind):
    ctx, hooks = context(epochs=3), Hooks([kind("valid/acuracy")])
    hooks.fire("on_fit_begin", ctx)
    with pytest.raises(
        NoSuchMetric, match="monitors 'valid/acuracy', and there is no such number; did you mean"
    ) as error:
        epoch_end(hooks, ctx, train_loss=1.0, valid_loss=1.0, valid_accuracy=0.5)
    assert "'valid/accuracy'? (there are: train/loss, valid/loss, valid/accuracy)" in str(error.value)
    assert kind.__name__ in str(error.value)


@pytest.mark.parametrize("monitor", [None, "train/loss"])
def test_without_validation_it_says_what_to_do(monitor):
    ctx, hooks = context(epochs=3), Hooks([EarlyStopping()])
    begin(ctx, monitor=monitor)
    with pytest.raises(
        NoSuchMetric, match=r"no such number; nothing was validated: give fit a valid=\.\.\. \(there are: train/loss\)"
    ):
        epoch_end(hooks, ctx, train_loss=1.0)


def test_an_epoch_that_did_not_measure_is_not_counted():
    """Validation every other epoch, from the second on: epochs 4, 6 and 8 measured no improvement."""
    ctx, hooks = context(epochs=20), Hooks([EarlyStopping(patience=3)])
    begin(ctx)
    while not ctx.stopping:
        epoch_end(hooks, ctx, train_loss=1.0, **({} if ctx.epoch % 2 == 0 else {"valid_loss": 1.0}))
    assert ctx.epoch == 8


def test_a_fit_that_was_stopped_before_its_first_validation_ends_in_peace():
    ctx, hooks = context(epochs=3), Hooks([EarlyStopping("test/loss")])
    ctx.stop("Ctrl-C")
    epoch_end(hooks, ctx, train_loss=1.0)
    assert ctx.stopping == "Ctrl-C"


def test_an_unknown_monitor_is_an_error_at_the_first_validation_where_that_comes_later():
    ctx, hooks = context(epochs=3), Hooks([EarlyStopping("tset/loss")])
    begin(ctx, monitor="test/loss")
    epoch_end(hooks, ctx, train_loss=1.0)
    with pytest.raises(NoSuchMetric, match=r"'tset/loss'.*did you mean 'test/loss'"):
        ctx.log("test/loss", 1.0)
        epoch_end(hooks, ctx, train_loss=1.0)


def test_the_direction_is_the_metrics_own():
    ctx, hooks = context(epochs=9), Hooks([EarlyStopping("valid/score", patience=2)])
    begin(ctx, score="max")
    for score in (0.1, 0.2, 0.3):
        epoch_end(hooks, ctx, valid_score=score)
    assert ctx.stopping is None


def test_an_unknown_direction_has_to_be_said():
    with pytest.raises(
        InvalidArgument, match="EarlyStopping can't know what is better for 'valid/score'; say direction="
    ):
        epoch_end(Hooks([EarlyStopping("valid/score")]), context(), valid_score=1.0)
    epoch_end(Hooks([EarlyStopping("valid/score", direction="max")]), context(), valid_score=1.0)


def test_a_logged_number_can_be_monitored():
    class Log(Callback):
        def on_epoch_end(self, ctx):
            ctx.log("mine", 1.0)

    ctx, hooks = context(epochs=9), Hooks([Log(), EarlyStopping("mine", patience=2, direction="min")])
    while not ctx.stopping:
        epoch_end(hooks, ctx, train_loss=0.0)
    assert ctx.epoch == 3


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"monitor": ""}, "monitor is the name of a number"),
        ({"monitor": 3}, "monitor is the name of a number"),
        ({"direction": "down"}, """direction is "min", "max" or None .*; got 'down'"""),
        ({"min_delta": -1.0}, "min_delta is at least 0, got -1.0"),
        ({"min_delta": math.nan}, "min_delta is at least 0, got nan"),
        ({"patience": -1}, "patience is a whole number of epochs, at least"),
        ({"patience": 2.5}, "patience is a whole number of epochs"),
        ({"patience": True}, "patience is a whole number of epochs"),
    ],
)
@pytest.mark.parametrize("kind", [EarlyStopping, ReduceLROnPlateau])
def test_settings_that_cannot_be_meant(kind, settings, text):
    with pytest.raises(InvalidArgument, match=text):
        kind(**settings)
