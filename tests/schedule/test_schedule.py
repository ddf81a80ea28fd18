"""The one type of the room: pure, comparable, serialisable, and made of whatever can be one."""

import dataclasses
import json
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from stoker import schedule
from stoker.config import Config
from stoker.errors import ConfigError, InvalidArgument, WrongType
from stoker.schedule import Schedule, as_schedule
from tests.schedule.strategies import any_schedule

quick = settings(deadline=None, max_examples=80)


@quick
@given(any_schedule)
def test_a_schedule_is_a_pure_function(curve):
    updates = list(range(0, 150, 7))
    values = {update: curve(update) for update in updates}
    random.Random(0).shuffle(updates)
    copy = pickle.loads(pickle.dumps(curve))
    assert all(curve(update) == copy(update) == values[update] for update in updates)
    assert all(type(value) is float for value in values.values())


@quick
@given(any_schedule)
def test_every_composition_comes_back_from_plain_data(curve):
    back = Schedule.from_dict(curve.to_dict())
    assert back == curve and hash(back) == hash(curve) and repr(back) == repr(curve)
    assert [back(update) for update in range(0, 90, 9)] == [curve(update) for update in range(0, 90, 9)]


def test_files(tmp_path):
    curve = schedule.cosine(1e-3, steps=80, warmup=8).then(0.5 * schedule.constant(1e-4), at=80)
    assert Schedule.load(curve.save(tmp_path / "lr.json")) == curve
    with pytest.raises(dataclasses.FrozenInstanceError):
        curve.curve = None  # pyright: ignore


def test_only_the_known_kinds_are_read():
    with pytest.raises(ConfigError, match='curve.kind: expected "Constant" or .*got "Cosin"; did you mean \'Cosine\''):
        Schedule.from_dict({"curve": {"kind": "Cosin", "peak": 1.0, "steps": 5}})
    with pytest.raises(ConfigError, match="curve: schedule.cosine: steps is 0; expected at least 1"):
        Schedule.from_dict({"curve": {"kind": "Cosine", "peak": 1.0, "steps": 0}})
    with pytest.raises(ConfigError, match='curve.call: expected Callable, got "os.system"'):
        Schedule.from_dict({"curve": {"kind": "Function", "call": "os.system"}})


class Training(Config):
    lr: float | Schedule = 1e-3
    decay: Schedule = schedule.constant(0.1)


def test_a_schedule_is_a_field_of_a_config(tmp_path):
    for config in [Training(), Training(schedule.step(1.0, every=3)), Training(1, schedule.constant(2) * 3)]:
        assert Training.load(config.save(tmp_path / "config.json")) == config


def test_a_schedule_on_a_command_line_is_a_number_or_json(capsys):
    curve = schedule.cosine(1e-3, steps=80) * 2
    assert Training.from_args(["--lr", "0.5", "--decay", "2"]) == Training(0.5, schedule.constant(2))
    assert Training.from_args(["--lr", json.dumps(curve.to_dict())]) == Training(curve)
    for wrong in ("cosine", '{"curve": {"kind": "Cosin"}}', '"a"'):
        with pytest.raises(SystemExit):
            Training.from_args(["--decay", wrong])
    assert "did you mean 'Cosine'" in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("number", [1, 0.5, np.float32(0.5), np.int64(2)])
def test_a_number_is_a_constant(number):
    made = as_schedule(number)
    assert made == schedule.constant(float(number)) and made(7) == float(number)


def test_a_schedule_stays_and_a_function_is_called_but_not_saved():
    curve = schedule.constant(1.0)
    assert as_schedule(curve) is curve

    def decay(update: int) -> float:
        return 1 / (1 + update)

    mine = 2 * as_schedule(decay)
    assert mine(3) == 0.5 and mine == 2 * as_schedule(decay) and "as_schedule(" in repr(mine)
    with pytest.raises(ConfigError, match=r"curve\.right\.call: a function can't be saved, and this is one: <function"):
        mine.to_dict()


def test_what_a_function_gives_is_checked():
    assert as_schedule(lambda update: np.float32(0.5))(0) == 0.5
    assert type(as_schedule(lambda update: 1)(0)) is float
    with pytest.raises(WrongType, match="gives 'a' at update 3; expected a number"):
        as_schedule(lambda update: "a")(3)  # pyright: ignore
    with pytest.raises(InvalidArgument, match="has no finite value at update 3"):
        as_schedule(lambda update: float("nan"))(3)


@pytest.mark.parametrize("value", ["0.1", None, True, [0.1], float, torch.tensor(0.1)])
def test_nothing_else_is_a_schedule(value):
    with pytest.raises(WrongType, match="expected a number, a schedule, or a function from the number of an update"):
        as_schedule(value)


@pytest.mark.parametrize("other", ["2", None, True, [1]])
def test_arithmetic_with_anything_else_is_a_type_error(other):
    with pytest.raises(TypeError):
        schedule.constant(1.0) * other
    with pytest.raises(TypeError):
        other - schedule.constant(1.0)


def test_update_numbers():
    curve = schedule.linear(0, 10, 10)
    assert curve(np.int64(3)) == curve(torch.tensor(3)) == curve(3) == 3.0  # pyright: ignore
    with pytest.raises(InvalidArgument, match="updates are counted from 0, got -1"):
        curve(-1)
    for strange in (1.5, "1", None):
        with pytest.raises(WrongType, match="the number of an update is an int, got"):
            curve(strange)  # pyright: ignore
