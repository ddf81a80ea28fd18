"""The plan of a step, in words."""

import pytest
from stoker.program import Plan, size


def test_the_lines_say_mode_reason_data_and_what_turned_out():
    plan = Plan("captured", data="1.5 KiB stay on the device")
    plan.notes.append("graph memory 3.0 MiB, one pool for all shapes")
    assert plan.lines() == [
        "step       captured: forward, backward, update and metrics are one CUDA graph of the eager operations",
        "data       1.5 KiB stay on the device",
        "           graph memory 3.0 MiB, one pool for all shapes",
    ]


def test_the_first_reason_is_the_one_that_counts():
    plan = Plan("compiled", wanted="compiled")
    plan.narrow("eager", "a callback listens")
    plan.narrow("eager", "the optimizer is wrapped")
    assert plan.lines() == [
        "step       eager, one operation after the other",
        "           not compiled: a callback listens",
    ]


def test_a_plan_that_was_never_wider_gives_no_reason():
    assert Plan("eager").lines() == ["step       eager, one operation after the other"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (2**40, "1.0 TiB"),
        (2**50, "1024.0 TiB"),
    ],
)
def test_bytes_for_people(count, text):
    assert size(count) == text
