"""Schedules without a length, which a fit or `with_updates` completes, and parts that are fractions of it."""

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import schedule
from stoker.config import Config
from stoker.errors import InvalidArgument
from stoker.schedule import Schedule

COSINE = schedule.cosine(1.0, warmup=0.1)

# Schedules without a length, and the same ones with the length 80 written out.
COMPLETED = {
    "linear": (schedule.linear(1.0, 0.1), schedule.linear(1.0, 0.1, 80)),
    "cosine": (COSINE, schedule.cosine(1.0, updates=80, warmup=8)),
    "a count of warm-up": (schedule.cosine(1.0, warmup=7), schedule.cosine(1.0, updates=80, warmup=7)),
    "restarts": (schedule.cosine(1.0, restarts=2, growth=2), schedule.cosine(1.0, updates=80, restarts=2, growth=2)),
    "polynomial": (schedule.polynomial(1.0, power=2), schedule.polynomial(1.0, updates=80, power=2)),
    "one cycle": (schedule.one_cycle(1.0, rise=0.4), schedule.one_cycle(1.0, updates=80, rise=0.4)),
    "exponential": (schedule.exponential(1.0, end=0.01), schedule.exponential(1.0, gamma=0.01 ** (1 / 80), end=0.01)),
    "inverse sqrt": (schedule.inverse_sqrt(1.0, warmup=0.25), schedule.inverse_sqrt(1.0, warmup=20)),
    "noam": (schedule.noam(64, warmup=0.25), schedule.noam(64, warmup=20)),
    "trapezoid": (
        schedule.warmup_stable_decay(1.0, warmup=0.05, decay=0.2),
        schedule.warmup_stable_decay(1.0, updates=80, warmup=4, decay=16),
    ),
    "warm-up": (
        schedule.warmup(schedule.linear(1, 0), updates=0.1),
        schedule.warmup(schedule.linear(1, 0, 72), updates=8),
    ),
    "warm-up count": (schedule.warmup(COSINE, updates=10), schedule.warmup(COSINE.with_updates(70), updates=10)),
    "then": (
        schedule.linear(0.0, 1.0).then(COSINE, at=20),
        schedule.linear(0.0, 1.0, 20).then(schedule.cosine(1.0, updates=60, warmup=6), at=20),
    ),
    "then at a fraction": (COSINE.then(0.5, at=0.5), schedule.cosine(1.0, updates=40, warmup=4).then(0.5, at=40)),
    "arithmetic": (
        2 * COSINE + schedule.linear(1.0, 0.0, 10),
        2 * schedule.cosine(1.0, updates=80, warmup=8) + schedule.linear(1.0, 0.0, 10),
    ),
}


@pytest.mark.parametrize("name", COMPLETED)
def test_a_schedule_without_a_length_has_that_of_the_training(name):
    without, written = COMPLETED[name]
    completed = without.with_updates(80)
    assert without.needs_length and not completed.needs_length
    assert [completed(u) for u in range(100)] == pytest.approx([written(u) for u in range(100)], rel=1e-13, abs=1e-15)
    if name != "exponential":
        assert completed == written and repr(completed) == repr(written)
    assert completed.with_updates(7) is completed, "a length that is known stays"


@pytest.mark.parametrize("name", COMPLETED)
def test_it_is_saved_printed_as_code_and_pickled_without_a_length(name):
    without, _ = COMPLETED[name]
    copies = [
        Schedule.from_dict(json.loads(json.dumps(without.to_dict()))),
        eval(repr(without), {"schedule": schedule}),
        pickle.loads(pickle.dumps(without)),
    ]
    for copy in copies:
        assert copy == without and copy.needs_length and repr(copy) == repr(without)
    assert without.to_dict() != without.with_updates(80).to_dict()


def test_it_can_be_a_field_of_a_config(tmp_path):
    class Training(Config):
        lr: float | Schedule = COSINE

    config = Training.load(Training().save(tmp_path / "config.json"))
    assert config == Training() and config.lr.with_updates(80)(8) == 1.0


fractions = st.floats(0, 0.5)
leaves = st.one_of(
    st.builds(schedule.linear, st.floats(0, 1), st.floats(0, 1)),
    st.builds(lambda warmup: schedule.cosine(1.0, warmup=warmup), fractions),
    st.builds(
        lambda warmup, decay: schedule.warmup_stable_decay(1.0, warmup=warmup, decay=decay), fractions, fractions
    ),
    st.builds(lambda warmup: schedule.inverse_sqrt(1.0, warmup=warmup), fractions),
    st.builds(lambda updates: schedule.polynomial(1.0, updates=updates), st.integers(1, 50)),
)


def combine(inner):
    places = fractions | st.integers(0, 50)
    return st.one_of(
        st.builds(lambda a, b, at: a.then(b, at=at), inner, inner, places),
        st.builds(lambda a, n: schedule.warmup(a, updates=n), inner, places),
        st.builds(lambda a, b: a * 0.5 + b, inner, inner),
    )


@settings(max_examples=40)
@given(st.recursive(leaves, combine, max_leaves=4), st.integers(1, 90))
def test_every_combination_is_completed_and_saved_with_and_without_its_length(curve, updates):
    completed = curve.with_updates(updates)
    assert not completed.needs_length and all(completed(update) >= 0 for update in range(updates + 5))
    for each in (curve, completed):
        code = eval(repr(each), {"schedule": schedule})
        assert code == each == Schedule.from_dict(json.loads(json.dumps(each.to_dict())))
        assert code.with_updates(updates) == completed


@pytest.mark.parametrize("name", COMPLETED)
def test_calling_it_is_an_error_that_says_what_to_do(name):
    without, _ = COMPLETED[name]
    with pytest.raises(InvalidArgument, match=r"takes its length from the fit.*lr = lr.with_updates\(1000\)") as error:
        without(3)
    assert repr(without) in str(error.value)


@settings(max_examples=40)
@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_fractions_of_any_length_fit_into_it(updates, warmup, decay):
    trapezoid = schedule.warmup_stable_decay(1.0, warmup=warmup, decay=min(decay, 1 - warmup) if warmup else decay)
    curve = trapezoid.with_updates(updates).curve
    assert curve.warmup == round(warmup * updates) and curve.warmup + curve.decay <= updates
    assert schedule.cosine(1.0, warmup=warmup).with_updates(updates)(updates) == 0.0


def test_a_fraction_of_a_given_length_is_counted_at_once():
    with_fraction = schedule.cosine(1.0, updates=50, warmup=0.1)
    written = schedule.cosine(1.0, updates=50, warmup=5)
    assert [with_fraction(update) for update in range(60)] == [written(update) for update in range(60)]
    assert not with_fraction.needs_length


@pytest.mark.parametrize("wrong", [1.0, 1.5, -0.1])
def test_a_float_is_a_fraction(wrong):
    text = "a number of updates, such as 100, or a fraction of the length below 1, such as 0.05"
    for build in (
        lambda: schedule.cosine(1.0, warmup=wrong),
        lambda: schedule.warmup_stable_decay(1.0, warmup=0, decay=wrong),
        lambda: schedule.constant(1.0).then(0.5, at=wrong),
        lambda: schedule.warmup(1.0, updates=wrong),
        lambda: schedule.inverse_sqrt(1.0, warmup=wrong),
    ):
        with pytest.raises(InvalidArgument, match=f"is {wrong}; expected {text}"):
            build()


def test_a_part_that_ends_at_a_known_update_has_a_known_length():
    rise = schedule.linear(0.0, 1.0).then(0.5, at=10)
    assert rise.with_updates() == schedule.linear(0.0, 1.0, 10).then(0.5, at=10)
    assert schedule.linear(0.0, 1.0).then(COSINE, at=10).with_updates().needs_length


def test_a_length_must_be_long_enough_for_the_counts():
    with pytest.raises(InvalidArgument, match="cosine: warmup is 100; expected at most updates, which is 80"):
        schedule.cosine(1.0, warmup=100).with_updates(80)
    with pytest.raises(InvalidArgument, match="with_updates: updates is a number of at least 1, got 0"):
        COSINE.with_updates(0)


def test_settings_that_fit_no_length_are_errors_at_once():
    for build, text in (
        (lambda: schedule.cosine(1.0, growth=-1.0), "cosine: growth is -1.0; expected more than 0"),
        (lambda: schedule.one_cycle(1.0, rise=2.0), "one_cycle: rise is 2.0; expected a fraction"),
        (lambda: schedule.exponential(1.0), "start is 1.0 and end is None; expected two values with the same sign"),
        (lambda: schedule.warmup_stable_decay(1.0, warmup=0.6, decay=0.6), "decay is .*; expected at most updates - "),
    ):
        with pytest.raises(InvalidArgument, match=text):
            build()


def test_an_exponential_needs_a_factor_or_an_end():
    with pytest.raises(InvalidArgument, match="start is 1.0 and end is None; expected two values with the same sign"):
        schedule.exponential(1.0, updates=10)
    with pytest.raises(InvalidArgument, match="start is 1.0 and end is 0.0; expected two values with the same sign"):
        schedule.exponential(1.0, end=0.0, updates=10)
    with pytest.raises(InvalidArgument, match=r"gamma is 0.5 and updates is 10; expected one of them"):
        schedule.exponential(1.0, gamma=0.5, updates=10)
    halves = schedule.exponential(1.0, end=0.25, updates=2)
    assert [halves(update) for update in range(4)] == [1.0, 0.5, 0.25, 0.25]
