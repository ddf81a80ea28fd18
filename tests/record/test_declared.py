"""What is better of a number, and its unit."""

import pytest

from stoker.record._declared import direction_of, unit_of

BEGIN = {"metrics": {"accuracy": {"direction": "max", "unit": "%"}, "recall": {"direction": "max"}, "odd": "max"}}


@pytest.mark.parametrize(
    ("name", "direction", "unit"),
    [
        ("valid/accuracy", "max", "%"),
        ("accuracy", "max", "%"),
        ("valid/recall/3", "max", ""),
        ("train/loss", "min", ""),
        ("train/kl", "min", ""),
        ("lr", None, ""),
        ("valid/odd", None, ""),
        ("__proto__", None, ""),
    ],
)
def test_a_number_is_found_by_its_metric(name, direction, unit):
    assert direction_of(name, BEGIN, ["kl"]) == direction
    assert unit_of(name, BEGIN) == unit


def test_a_run_that_declared_nothing():
    assert (direction_of("valid/loss", {}), direction_of("valid/f1", {"metrics": None})) == ("min", None)
