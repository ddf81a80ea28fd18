"""Schedules are pure functions that can be compared, saved, printed as code and combined."""

import dataclasses
import json
import operator
import pickle
import random
import re
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from stoker import schedule
from stoker.config import Config
from stoker.errors import ConfigError, InvalidArgument, WrongType
from stoker.schedule import Schedule, as_schedule

rates = st.floats(-10.0, 10.0)
lengths = st.integers(1, 60)
gammas = st.floats(0.1, 1.0)


@st.composite
def with_warmup(draw: st.DrawFn) -> Schedule:
    updates, peak, end = draw(lengths), draw(rates), draw(rates)
    warmup = draw(st.integers(0, updates))
    decay = draw(st.integers(0, updates - warmup))
    return draw(
        st.sampled_from(
            [
                schedule.cosine(peak, updates=updates, warmup=warmup, end=end),
                schedule.cosine(peak, updates=updates + 8, warmup=warmup, end=end, restarts=2, growth=1.3),
                schedule.warmup_stable_decay(peak, updates=updates, warmup=warmup, decay=decay, end=end, shape="sqrt"),
                schedule.inverse_sqrt(peak, warmup=warmup),
                schedule.noam(updates, warmup=warmup + 1, scale=peak),
            ]
        )
    )


simple = st.one_of(
    st.builds(schedule.constant, rates),
    st.builds(schedule.linear, rates, rates, lengths),
    st.builds(schedule.exponential, rates, gamma=gammas),
    st.builds(schedule.step, rates, every=lengths, gamma=gammas),
    st.builds(schedule.multistep, rates, milestones=st.sets(lengths, max_size=4).map(sorted), gamma=gammas),
    st.builds(schedule.polynomial, rates, updates=lengths, end=rates, power=st.floats(0.3, 3.0)),
    st.builds(schedule.one_cycle, rates, updates=st.integers(2, 60), rise=st.floats(0, 0.9), end=st.none() | rates),
    with_warmup(),
)


def combined(inner: st.SearchStrategy[Schedule]) -> st.SearchStrategy[Schedule]:
    return st.one_of(
        st.builds(lambda a, b, at: a.then(b, at=at), inner, inner | rates, st.integers(0, 60)),
        st.builds(lambda a, b: a + b, inner, inner | rates),
        st.builds(lambda a, b: a - b, inner | rates, inner),
        st.builds(lambda a, b: a * b, inner | rates, inner),
        st.builds(lambda a, b: a / b, inner, st.floats(0.1, 10)),
        st.builds(lambda a: -a, inner),
        st.builds(lambda a, n: schedule.warmup(a, updates=n), inner, st.integers(0, 20)),
    )


any_schedule = st.recursive(simple, combined, max_leaves=5)

quick = settings(max_examples=60)
update_numbers = st.integers(0, 200)


@quick
@given(any_schedule)
def test_every_composition_is_a_pure_function_that_is_saved_pickled_and_printed_as_code(curve):
    updates = list(range(0, 150, 7))
    values = {update: curve(update) for update in updates}
    random.Random(0).shuffle(updates)
    assert all(type(value) is float for value in values.values())
    code = eval(repr(curve), {"schedule": schedule})
    for copy in (pickle.loads(pickle.dumps(curve)), Schedule.from_dict(curve.to_dict()), code):
        assert copy == curve and hash(copy) == hash(curve) and repr(copy) == repr(curve)
        assert all(curve(update) == copy(update) == values[update] for update in updates)


def test_schedules_are_saved_to_files_and_frozen(tmp_path):
    curve = schedule.linear(1e-2, 1e-3, updates=80).then(0.5 * schedule.constant(1e-4), at=80)
    half = {"kind": "Constant", "value": 0.5}, "*", {"kind": "Constant", "value": 1e-4}
    assert curve.to_dict() == {  # the format of files: it must not change
        "curve": {
            "kind": "Then",
            "first": {"kind": "Linear", "start": 1e-2, "end": 1e-3, "steps": 80},
            "second": {"kind": "Arithmetic", **dict(zip(("left", "operator", "right"), half, strict=True))},
            "at": 80,
        }
    }
    assert Schedule.load(curve.save(tmp_path / "lr.json")) == curve
    with pytest.raises(dataclasses.FrozenInstanceError):
        curve.curve = None  # pyright: ignore


def test_only_known_curves_are_loaded():
    with pytest.raises(ConfigError, match='curve.kind: expected "Constant" or .*got "Cosin"; did you mean \'Cosine\''):
        Schedule.from_dict({"curve": {"kind": "Cosin", "peak": 1.0, "steps": 5}})
    with pytest.raises(ConfigError, match="curve: schedule.cosine: updates is 0; expected at least 1"):
        Schedule.from_dict({"curve": {"kind": "Cosine", "peak": 1.0, "steps": 0}})
    with pytest.raises(ConfigError, match='curve.call: expected Callable, got "os.system"'):
        Schedule.from_dict({"curve": {"kind": "Function", "call": "os.system"}})


class Training(Config):
    lr: float | Schedule = 1e-3
    decay: Schedule = schedule.constant(0.1)


def test_a_schedule_can_be_a_field_of_a_config(tmp_path):
    for config in [Training(), Training(schedule.step(1.0, every=3)), Training(1, schedule.constant(2) * 3)]:
        assert Training.load(config.save(tmp_path / "config.json")) == config


def test_a_schedule_on_a_command_line_is_a_number_or_json(capsys):
    curve = schedule.cosine(1e-3, updates=80) * 2
    assert Training.from_args(["--lr", "0.5", "--decay", "2"]) == Training(0.5, schedule.constant(2))
    assert Training.from_args(["--lr", json.dumps(curve.to_dict())]) == Training(curve)
    for wrong in ("cosine", '{"curve": {"kind": "Cosin"}}', '"a"'):
        with pytest.raises(SystemExit):
            Training.from_args(["--decay", wrong])
    assert "did you mean 'Cosine'" in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_numbers_and_schedules_are_schedules():
    for number in (1, 0.5, np.float32(0.5), np.int64(2)):
        assert as_schedule(number) == schedule.constant(float(number))
    curve = schedule.constant(1.0)
    assert as_schedule(curve) is curve


def test_a_function_is_called_but_cannot_be_saved():

    def decay(update: int) -> float:
        return 1 / (1 + update)

    mine = 2 * as_schedule(decay)
    assert mine(3) == 0.5 and mine == 2 * as_schedule(decay) and "as_schedule(" in repr(mine)
    with pytest.raises(ConfigError, match=r"curve\.right\.call: a function can't be saved, got <function"):
        mine.to_dict()
    assert as_schedule(lambda update: np.float32(0.5))(0) == 0.5
    assert type(as_schedule(lambda update: 1)(0)) is float
    with pytest.raises(WrongType, match="gives 'a' at update 3; expected a number"):
        as_schedule(lambda update: "a")(3)  # pyright: ignore
    with pytest.raises(InvalidArgument, match="has no finite value at update 3"):
        as_schedule(lambda update: float("nan"))(3)


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1], float, torch.tensor(0.1)])
def test_other_values_are_not_schedules(value):
    with pytest.raises(WrongType, match="expected a number, a schedule such as .*, or a function from the number"):
        as_schedule(value)


@pytest.mark.parametrize("other", ["2", None, True, [1]])
def test_arithmetic_with_anything_else_is_a_type_error(other):
    with pytest.raises(TypeError):
        schedule.constant(1.0) * other
    with pytest.raises(TypeError):
        other - schedule.constant(1.0)


def test_update_numbers_are_checked():
    curve = schedule.linear(0, 10, 10)
    assert curve(np.int64(3)) == curve(torch.tensor(3)) == curve(3) == 3.0  # pyright: ignore
    with pytest.raises(InvalidArgument, match="updates are counted from 0, got -1"):
        curve(-1)
    for wrong in (1.5, "1", None):
        with pytest.raises(WrongType, match="the number of an update is an int, got"):
            curve(wrong)  # pyright: ignore


@quick
@given(any_schedule, any_schedule, st.integers(0, 60), update_numbers)
def test_then_lets_the_second_schedule_count_from_its_own_zero(first, second, at, update):
    both = first.then(second, at=at)
    assert both(update) == (first(update) if update < at else second(update - at))
    with pytest.raises(InvalidArgument, match="then: at is -1; expected at least 0"):
        first.then(second, at=-1)


@quick
@given(any_schedule, any_schedule, rates, update_numbers)
def test_arithmetic_applies_at_every_update(left, right, number, update):
    for sign in (operator.add, operator.sub, operator.mul):
        assert sign(left, right)(update) == sign(left(update), right(update))
        assert sign(left, number)(update) == sign(left(update), number)
        assert sign(number, left)(update) == sign(number, left(update))
    assert (-left)(update) == -left(update) and (left / 4)(update) == left(update) / 4


def test_a_division_by_zero_names_the_update():
    assert (1 / schedule.constant(4))(0) == 0.25
    with pytest.raises(InvalidArgument, match=r"1.0 / schedule.linear\(1.0, 0.0, 2\) has no finite value at update 2"):
        (1 / schedule.linear(1, 0, 2))(2)


@pytest.mark.parametrize(
    ("curve", "text"),
    [
        (schedule.cosine(1e-2, updates=80, warmup=8), "schedule.cosine(0.01, updates=80, warmup=8)"),
        (schedule.linear(0, 1, 5), "schedule.linear(0.0, 1.0, 5)"),
        (0.1 * schedule.step(1, every=3) + 2, "(0.1 * schedule.step(1.0, every=3)) + 2.0"),
        (schedule.constant(1) * 2, "schedule.constant(1.0) * 2.0"),
        (schedule.constant(1).then(3, at=4), "schedule.constant(1.0).then(schedule.constant(3.0), at=4)"),
        (schedule.warmup(1, updates=4), "schedule.warmup(schedule.constant(1.0), updates=4)"),
        (schedule.as_schedule(abs), "schedule.as_schedule(abs)"),
    ],
)
def test_the_printed_code_is_short_and_the_same_as_in_recorded_runs(curve, text):
    assert repr(curve) == text


def test_the_length_is_given_as_updates_or_as_steps():
    for build in (partial(schedule.linear, 1.0, 0.0), partial(schedule.cosine, 1.0), partial(schedule.warmup, 1.0)):
        assert build(updates=10) == build(steps=10) == build(updates=np.int64(10)) != build(updates=11)
    with pytest.raises(InvalidArgument, match=r"schedule.cosine: got updates=1 and steps=2; they mean the same"):
        schedule.cosine(1.0, updates=1, steps=2)
    with pytest.raises(InvalidArgument, match=r"schedule.warmup: the length is missing; write updates=\.\.\."):
        schedule.warmup(1.0)
    with pytest.raises(ConfigError, match=r"^updates: expected int, got 100\.0$"):
        schedule.cosine(1.0, updates=100.0)  # pyright: ignore


def test_settings_of_a_wrong_type_are_named():
    with pytest.raises(ConfigError, match=r"^shape: expected .*got .cos.; did you mean 'cosine'\?$"):
        schedule.one_cycle(1e-3, updates=10, shape="cos")  # pyright: ignore
    with pytest.raises(ConfigError, match=r"^milestones\[1\]: expected int, got 2\.5$"):
        schedule.multistep(1e-3, milestones=[1, 2.5])  # pyright: ignore


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda o: lr_scheduler.CosineAnnealingLR(o, 50, eta_min=0.1), "schedule.cosine(0.3, updates=50, end=0.1)"),
        (lambda o: lr_scheduler.StepLR(o, 30), "schedule.step(0.3, every=30, gamma=0.1)"),
        (lambda o: lr_scheduler.ExponentialLR(o, 0.9), "schedule.exponential(0.3, gamma=0.9)"),
        (lambda o: lr_scheduler.MultiStepLR(o, [9, 4]), "schedule.multistep(0.3, milestones=[4, 9], gamma=0.1)"),
        (lambda o: lr_scheduler.PolynomialLR(o, 20, 2.0), "schedule.polynomial(0.3, updates=20, power=2.0)"),
        (lambda o: lr_scheduler.LinearLR(o, 0.5, 1.0, 9), "schedule.linear(0.3 * 0.5, 0.3 * 1.0, updates=9)"),
        (lambda o: lr_scheduler.OneCycleLR(o, 0.3, 40), "schedule.one_cycle(0.3, updates=40)"),
    ],
)
def test_the_error_for_a_scheduler_of_torch_names_the_schedule_with_its_values(make, text):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler, found = make(optimizer), []
    with pytest.raises(WrongType, match=re.escape(f"write lr={text} (counted in updates)")):
        as_schedule(scheduler)
    for _ in range(39):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    replacement = eval(text, {"schedule": schedule})
    assert [replacement(update) for update in range(39)] == pytest.approx(found, rel=1e-6)


def test_the_error_for_other_schedulers_of_torch_says_what_to_use():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    with pytest.raises(WrongType, match=r"write callbacks.ReduceLROnPlateau\(factor=0.5, patience=3\)"):
        as_schedule(lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3))
    with pytest.raises(WrongType, match=r"CyclicLR of torch.*write lr=schedule.torch\(CyclicLR, lr=0.1, ...\)"):
        as_schedule(lr_scheduler.CyclicLR(optimizer, 0.1, 0.2))
