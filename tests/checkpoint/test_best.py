"""The best checkpoint by a number: strictly better, the first of equals, never NaN."""

import math

import pytest

from stoker.checkpoint._best import Measure
from stoker.errors import InvalidArgument, NoSuchMetric
from tests.checkpoint.test_policy import saved


@pytest.mark.parametrize(
    ("direction", "values", "best"),
    [
        ("min", [], None),
        ("min", [math.nan], None),
        ("min", [0.3, 0.2, 0.2, 0.4], 1),
        ("max", [0.3, 0.4, 0.2, 0.4], 1),
        ("min", [math.inf, math.nan, -math.inf, -math.inf], 2),
        ("max", [-math.inf, math.nan], 0),
    ],
)
def test_which_is_best(direction, values, best):
    there = [saved(update, loss=value) for update, value in enumerate(values)]
    found = Measure("valid/loss", direction).best(there)
    assert found is (None if best is None else there[best])


def test_checkpoints_without_the_number_are_passed_over():
    there = [saved(1), saved(2, loss=0.5), saved(3)]
    assert Measure("valid/loss", lambda name: "max").best(there) is there[1]


def test_a_direction_that_nobody_knows():
    with pytest.raises(InvalidArgument, match="is a low or a high 'valid/loss' better"):
        Measure("valid/loss", lambda name: None).best([saved(1, loss=0.5)])


def test_a_number_that_nobody_has():
    measure = Measure("valid/f1", "max")
    measure.check({"valid/f1": 0.5}, [])
    measure.check({"valid/loss": 0.5}, [saved(1, values={"valid/f1": 0.5})])
    with pytest.raises(
        NoSuchMetric, match=r"^keep_best='valid/f1', and there is no such number \(there are: train/x\)$"
    ):
        measure.check({"train/x": 0.5}, [saved(1, loss=0.5)])
