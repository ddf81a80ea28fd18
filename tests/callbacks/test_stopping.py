"""EarlyStopping, ReduceLROnPlateau and StopOnTime."""

import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker import InvalidArgument, NoSuchMetric, StateMismatch
from stoker.callbacks import Callback, EarlyStopping, Hooks, ReduceLROnPlateau, StopOnTime, on
from tests.callbacks.fits import begin, context, drive, epoch_end, train

NAN, INF = math.nan, math.inf
VALUES = st.lists(st.one_of(st.integers(-3, 3).map(float), st.just(NAN), st.floats(-3, 3)), max_size=30)
FEW = settings(deadline=None, max_examples=40)


@pytest.mark.parametrize(
    ("arguments", "values", "stops"),
    [
        ({"patience": 1}, [3, 2, 2, 1], 3),  # an equal value is not an improvement
        ({"patience": 2}, [3, 2, 3, 1, 2, 2], 6),
        ({"patience": 2, "min_delta": 0.5}, [3, 2.8, 2.6, 1], 3),  # both are within 0.5 of the best
        ({"patience": 2, "warmup": 3}, [1, 2, 3, 4, 5, 6], 5),  # epochs 4 and 5 count
        ({"patience": 2, "baseline": 1.0}, [3, 2, 1], 2),
        ({"patience": 2, "baseline": 1.0}, [3, 0.9, 2, 2], 4),
        ({"patience": 2, "direction": "max"}, [1, 2, 3, 3, 2], 5),
        ({"patience": 2, "direction": "max", "min_delta": 1}, [1, 1.5, 2, 3], 3),
        ({"patience": 2, "direction": "max", "baseline": 5}, [4, 5, 6], 2),
        ({"patience": 2}, [NAN, NAN, 1], 2),
    ],
)
def test_early_stopping_waits_for_an_improvement(arguments, values, stops):
    ctx = drive(EarlyStopping(**arguments), values)
    assert (ctx.epoch if ctx.stopping else None) == stops


def test_early_stopping_gives_its_reason():
    ctx = drive(EarlyStopping(patience=3), [0.5, 0.25, 0.3, 0.3, 0.3, 0.3])
    assert ctx.stopping == "Early stopping at epoch 5 of 6: valid/loss was not better than 0.25 (epoch 2) for 3 epochs"
    ctx = drive(EarlyStopping(patience=1, baseline=0.1), [0.5], ctx=context(epochs=None))
    assert ctx.stopping == "Early stopping at epoch 1: valid/loss was not better than the baseline 0.1 for 1 epoch"
    ctx = drive(EarlyStopping(patience=1), [NAN])
    assert ctx.stopping == "Early stopping at epoch 1 of 1: valid/loss was not a finite number for 1 epoch"


def scales(callback, values, ctx=None):
    ctx = ctx or context(epochs=len(values))
    hooks, found = Hooks([callback]), []
    hooks.fire("on_fit_begin", ctx)
    for value in values:
        epoch_end(hooks, ctx, valid_loss=value)
        found.append(ctx.lr_scale)
    return found


@FEW
@given(
    VALUES,
    st.sampled_from(["min", "max"]),
    st.sampled_from([0.1, 0.5, 0.9]),
    st.integers(0, 4),
    st.integers(0, 3),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from([0.0, 0.3]),
)
def test_reduce_lr_on_plateau_equals_torchs_scheduler(
    values, direction, factor, patience, cooldown, min_delta, min_scale
):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    common = {"factor": factor, "patience": patience, "cooldown": cooldown}
    theirs = {"mode": direction, "threshold": min_delta, "threshold_mode": "abs", "min_lr": min_scale, "eps": 0}
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **common, **theirs)
    expected = []
    for value in values:
        scheduler.step(value)
        expected.append(optimizer.param_groups[0]["lr"])
    callback = ReduceLROnPlateau(**common, direction=direction, min_delta=min_delta, min_scale=min_scale)
    assert scales(callback, values) == expected


def test_reduce_lr_on_plateau_multiplies_the_present_scale_and_notes_it():
    ctx = context(epochs=3)
    ctx.lr_scale = 0.5
    assert scales(ReduceLROnPlateau(factor=0.1, patience=0), [1.0, 1.0], ctx) == [0.5, 0.05]
    (note,) = ctx.record.events_of("note")
    assert note.text == "valid/loss is on a plateau at epoch 2: learning rates × 0.05"
    assert scales(ReduceLROnPlateau(patience=0, min_scale=0.1), [1.0, 1.0], ctx) == [0.05, 0.05]


@FEW
@given(VALUES, st.integers(1, 4), st.integers(0, 30))
@pytest.mark.parametrize("kind", [EarlyStopping, ReduceLROnPlateau])
def test_a_restored_state_continues_to_the_same_end(kind, values, patience, pause):
    def end(ctx):
        return ctx.epoch, ctx.stopping, ctx.lr_scale

    whole = drive(kind(patience=patience), values)
    first, second = kind(patience=patience), kind(patience=patience)
    ctx = drive(first, values[:pause], ctx=context(epochs=len(values)))
    if not ctx.stopping:
        hooks = Hooks([second])
        hooks.fire("on_fit_begin", ctx)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        for value in values[pause:]:
            epoch_end(hooks, ctx, valid_loss=value)
            if ctx.stopping:
                break
    assert end(ctx) == end(whole)


def test_a_state_with_other_entries_is_rejected():
    callback = EarlyStopping()
    with pytest.raises(StateMismatch, match="EarlyStopping has the entries best, best_epoch, waited, monitor; got"):
        callback.load_state_dict({"waited": 3})
    assert callback.state_dict() == {"best": None, "best_epoch": 0, "waited": 0, "monitor": None}
    with pytest.raises(StateMismatch, match="ReduceLROnPlateau has the entries best, waited, cooling, monitor; got"):
        ReduceLROnPlateau().load_state_dict([])


@pytest.mark.parametrize("kind", [EarlyStopping, ReduceLROnPlateau])
def test_an_unknown_metric_is_an_error_at_the_first_epoch_end(kind):
    ctx, hooks = context(epochs=3), Hooks([kind("valid/acuracy")])
    hooks.fire("on_fit_begin", ctx)
    with pytest.raises(NoSuchMetric, match="monitors 'valid/acuracy', but there is no such metric; did") as error:
        epoch_end(hooks, ctx, train_loss=1.0, valid_loss=1.0, valid_accuracy=0.5)
    assert "'valid/accuracy'? (the metrics are: train/loss, valid/loss, valid/accuracy)" in str(error.value)
    assert kind.__name__ in str(error.value)


def fit_two_epochs(*callbacks, valid=True, model=None, **options):
    torch.manual_seed(0)
    data = torch.randn(16, 3), torch.randn(16, 1)
    learner = stoker.Learner(model or torch.nn.Linear(3, 1), loss=torch.nn.MSELoss(), lr=0.1, **options)
    sets = {"valid": data} if valid else {}
    return learner.fit(data, **sets, epochs=2, batch_size=8, callbacks=callbacks, show=False)


@pytest.mark.parametrize(
    ("monitor", "options", "text"),
    [
        ("valid/los", {}, "did you mean 'valid/loss'"),
        ("vald/loss", {}, "did you mean 'train/loss' or 'valid/loss'"),
        ("loss", {}, "did you mean 'train/loss' or 'valid/loss'"),
        ("valid/loss", {"valid": False}, "nothing is validated: give fit valid="),
        ("valid/accuracy", {}, "The metrics are: train/loss, valid/loss"),
    ],
)
@pytest.mark.parametrize("kind", [EarlyStopping, ReduceLROnPlateau])
def test_a_metric_that_nothing_measures_is_an_error_before_the_first_update(kind, monitor, options, text):
    model = torch.nn.Linear(3, 1)
    before = model.weight.clone()
    expected = f"{kind.__name__} monitors '{monitor}', but there is no such metric.*{text}"
    with pytest.raises(NoSuchMetric, match=expected):
        fit_two_epochs(kind(monitor), model=model, **options)
    assert torch.equal(model.weight, before)


def test_a_metric_that_may_be_logged_is_at_most_a_warning():
    log = on(epoch_end=lambda ctx: [ctx.log(name, 1.0) for name in ("valid/los", "heat", "test/score")])
    fitted = fit_two_epochs(log, *(EarlyStopping(name, direction="min") for name in ("heat", "test/score")))
    assert fitted.record.events_of("warning") == []
    fitted = fit_two_epochs(log, EarlyStopping("valid/los", direction="min"))
    (warning,) = fitted.record.events_of("warning")
    assert warning.text.startswith("EarlyStopping monitors 'valid/los', which this fit does not measure unless it is")
    assert warning.epoch == 0


def test_a_metric_without_a_direction_is_an_error_before_the_first_update():
    class Bias(stoker.metrics.MAE):
        name: str = "bias"
        direction = None

    with pytest.raises(InvalidArgument, match="EarlyStopping does not know whether a larger 'valid/bias' is better"):
        fit_two_epochs(EarlyStopping("valid/bias"), metrics=[Bias()])


def test_epochs_that_did_not_measure_the_metric_do_not_count():
    """With validation in every other epoch, epochs 4, 6 and 8 measured no improvement."""
    ctx, hooks = context(epochs=20), Hooks([EarlyStopping(patience=3)])
    begin(ctx)
    while not ctx.stopping:
        epoch_end(hooks, ctx, train_loss=1.0, **({} if ctx.epoch % 2 == 0 else {"valid_loss": 1.0}))
    assert ctx.epoch == 8


def test_a_fit_that_stops_before_its_first_validation_ends_without_an_error():
    ctx, hooks = context(epochs=3), Hooks([EarlyStopping("test/loss")])
    ctx.stop("Ctrl-C")
    epoch_end(hooks, ctx, train_loss=1.0)
    assert ctx.stopping == "Ctrl-C"


def test_the_direction_is_the_metrics_own_or_has_to_be_given():
    ctx, hooks = context(epochs=9), Hooks([EarlyStopping("valid/score", patience=2)])
    begin(ctx, score="max")
    for score in (0.1, 0.2, 0.3):
        epoch_end(hooks, ctx, valid_score=score)
    assert ctx.stopping is None
    with pytest.raises(InvalidArgument, match="does not know whether a larger 'valid/score' is better; give it dir"):
        epoch_end(Hooks([EarlyStopping("valid/score")]), context(), valid_score=1.0)
    epoch_end(Hooks([EarlyStopping("valid/score", mode="max")]), context(), valid_score=1.0)


def test_a_logged_number_can_be_monitored():
    class Log(Callback):
        def on_epoch_end(self, ctx):
            ctx.log("mine", 1.0)

    ctx, hooks = context(epochs=9), Hooks([Log(), EarlyStopping("mine", patience=2, direction="min")])
    while not ctx.stopping:
        epoch_end(hooks, ctx, train_loss=0.0)
    assert ctx.epoch == 3


@pytest.mark.parametrize(
    ("kinds", "arguments", "text"),
    [
        ("ER", {"monitor": ""}, "monitor takes the name of a metric"),
        ("ER", {"direction": "down"}, """direction is "min", "max" or None .*; got 'down'"""),
        ("ER", {"mode": "down"}, """direction is "min", "max" or None .*; got 'down'"""),
        ("ER", {"direction": "min", "mode": "max"}, "direction='min' and mode='max'; they mean the same, give one"),
        ("ER", {"min_delta": NAN}, "min_delta must be at least 0, got nan"),
        ("ER", {"patience": -1}, "patience is a whole number of epochs, at least"),
        ("ER", {"patience": 2.5}, "patience is a whole number of epochs"),
        ("E", {"patience": 0}, "patience is a whole number of epochs, at least 1; got 0"),
        ("E", {"warmup": -1}, "warmup is a whole number of epochs, at least 0; got -1"),
        ("R", {"cooldown": -1}, "cooldown is a whole number of epochs"),
        ("R", {"factor": 0}, "factor must be between 0 and 1, so that the learning rate shrinks; got 0"),
        ("R", {"min_scale": 2}, "min_scale is a fraction of the schedule's rate, from 0 to 1; got 2"),
    ],
)
def test_wrong_arguments_are_rejected(kinds, arguments, text):
    for letter in kinds:
        with pytest.raises(InvalidArgument, match=text):
            (EarlyStopping if letter == "E" else ReduceLROnPlateau)(**arguments)


class Clock:
    """A clock that the test advances."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def tick(self, ctx):
        self.now += 10


@pytest.mark.parametrize(
    ("limit", "batches", "reason"),
    [
        ({"seconds": 30}, 3, "Time limit of 30 seconds reached at epoch 1, batch 3"),
        ({"seconds": 31}, 4, "Time limit of 31 seconds reached at epoch 1, batch 4"),
        ({"minutes": 1.5}, 9, "Time limit of 1.5 minutes reached at epoch 3, batch 1"),
    ],
)
def test_stop_on_time_stops_after_the_first_batch_past_the_limit(limit, batches, reason):
    clock = Clock()
    ctx = train([on(update=clock.tick), StopOnTime(**limit, clock=clock)], epochs=9, batches=4)
    assert (ctx.update, ctx.stopping) == (batches, reason)


def test_stop_on_time_counts_validation_and_starts_again_with_every_fit():
    clock = Clock()
    ctx = train([on(epoch_end=lambda ctx: [clock.tick(ctx) for _ in range(10)]), StopOnTime(seconds=100, clock=clock)])
    assert (ctx.epoch, ctx.batch_number) == (2, 1)
    callback = StopOnTime(seconds=50, clock=clock)
    assert callback.transient and callback.state_dict() == {}
    for _ in range(2):
        assert train([on(update=clock.tick), callback], epochs=1, batches=4).stopping is None


def test_stop_on_time_uses_a_monotonic_clock_and_takes_one_limit_above_zero():
    assert train([StopOnTime(minutes=60)]).stopping is None
    assert train([StopOnTime(seconds=1e-9)]).update == 1
    for limit, text in (({}, "either"), ({"minutes": 1, "seconds": 1}, "either"), ({"seconds": 0}, "above 0")):
        with pytest.raises(InvalidArgument, match=text):
            StopOnTime(**limit)
