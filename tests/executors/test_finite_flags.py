"""The flags that allow or suppress an update on the device, without synchronization."""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine._guard import DeviceGuard, LearningRates
from stoker.engine._replayable import pretend_compiling

CPU = torch.device("cpu")
FINE = [torch.tensor(1.0), torch.tensor(2.0)]


def check_all(*runs):
    flags, allowed = DeviceGuard(LearningRates(CPU), CPU), []
    for numbers, weight in runs:
        flags.check_values([torch.tensor(each) for each in numbers], weight)
        flags.end_step()
        allowed.append(flags.allowed.item())
    return flags, allowed


NUMBERS = st.lists(
    st.sampled_from([0.0, -2.5, 1e38, float("nan"), float("inf"), float("-inf")]), min_size=1, max_size=3
)
WEIGHTS = st.one_of(
    st.just(1), st.sampled_from([0, 3]).map(torch.tensor), st.sampled_from([0.0, 0.5]).map(torch.tensor)
)


@pytest.mark.parametrize("tracing", [False, True])
@given(st.lists(st.tuples(NUMBERS, WEIGHTS), max_size=6))
def test_steps_are_allowed_if_they_have_weight_and_nothing_was_nonfinite_so_far(tracing, runs):
    with pretend_compiling() if tracing else nullcontext():
        flags, allowed = check_all(*runs)
    bad = [not all(map(math.isfinite, numbers)) and bool(weight != 0) for numbers, weight in runs]
    assert flags.found_nonfinite == any(bad)
    assert flags.first_bad_step == (bad.index(True) if any(bad) else len(runs)) + 1
    assert allowed == [not any(bad[: at + 1]) and bool(weight != 0) for at, (_, weight) in enumerate(runs)]


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_of_all_dtypes_are_checked(at, bad):
    types = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bfloat16]
    fine = [torch.tensor(1.5, dtype=dtype) for dtype in types]
    flags = DeviceGuard(LearningRates(CPU), CPU)
    flags.check_values([*fine, torch.tensor(1e300, dtype=torch.float64)])  # infinite in float32
    assert flags.allowed.item()
    flags.check_values([*fine[:at], torch.tensor(bad, dtype=types[at]), *fine[at + 1 :]])
    assert not flags.allowed.item()


def test_clear_resets_the_flags():
    flags, _ = check_all(([float("nan")], 1))
    flags.clear()
    flags.check_values(FINE)
    assert flags.allowed.item() and not flags.found_nonfinite and flags.first_bad_step == 1


def test_weightless_tells_about_the_last_check():
    """A micro-batch without weight does not make the update of its window weightless."""
    flags, _ = check_all(([float("nan")], torch.tensor(0)))
    assert flags.weightless.item()
    flags.check_values(FINE, torch.tensor(4))
    assert not flags.weightless.item()
    flags.check_values([torch.tensor(float("nan"))], torch.tensor(0))
    flags.check_values(FINE)
    assert not flags.weightless.item()


def test_the_largest_half_precision_number_is_finite():
    flags = DeviceGuard(LearningRates(CPU), CPU)
    flags.check_values([torch.tensor(65504.0, dtype=torch.float16), torch.tensor(1.0)])
    assert flags.allowed.item() and not flags.found_nonfinite
