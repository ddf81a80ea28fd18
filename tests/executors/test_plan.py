"""The plan of a training step as text."""

from stoker.engine import Plan


def test_the_lines_give_mode_data_and_notes():
    plan = Plan("captured", data="1.5 kB stay on the device")
    plan.notes.append("graph memory 3.1 MB, one pool for all shapes")
    assert plan.lines() == [
        "step       captured: forward, backward, update and metrics are one CUDA graph of the eager operations",
        "data       1.5 kB stay on the device",
        "           graph memory 3.1 MB, one pool for all shapes",
    ]


def test_the_first_reason_is_kept():
    plan = Plan("compiled", wanted="compiled")
    plan.fall_back("eager", "a callback listens")
    plan.fall_back("eager", "the optimizer is wrapped")
    assert plan.lines() == [
        "step       eager, one operation after the other",
        "           not compiled: a callback listens",
    ]


def test_a_plan_that_is_eager_from_the_start_gives_no_reason():
    assert Plan("eager").lines() == ["step       eager, one operation after the other"]
