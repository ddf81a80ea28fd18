"""Whether an update may be applied, decided without anybody waiting."""

import math
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stoker.program import Verdict, compiling

CPU = torch.device("cpu")
FINE = [torch.tensor(1.0), torch.tensor(2.0)]


def judged(*runs):
    verdict, allowed = Verdict(CPU), []
    for numbers, weight in runs:
        verdict.judge([torch.tensor(each) for each in numbers], weight)
        verdict.end()
        allowed.append(verdict.allowed.item())
    return verdict, allowed


NUMBERS = st.lists(
    st.sampled_from([0.0, -2.5, 1e38, float("nan"), float("inf"), float("-inf")]), min_size=1, max_size=3
)
WEIGHTS = st.one_of(
    st.just(1), st.sampled_from([0, 3]).map(torch.tensor), st.sampled_from([0.0, 0.5]).map(torch.tensor)
)


@pytest.mark.parametrize("written_out", [False, True])
@given(st.lists(st.tuples(NUMBERS, WEIGHTS), max_size=6))
def test_it_allows_what_is_finite_and_weighs_something_up_to_the_first_bad_run(written_out, runs):
    with compiling() if written_out else nullcontext():
        verdict, allowed = judged(*runs)
    bad = [not all(map(math.isfinite, numbers)) and bool(weight != 0) for numbers, weight in runs]
    assert verdict.halted == any(bad)
    assert verdict.at == (bad.index(True) if any(bad) else len(runs)) + 1
    assert allowed == [not any(bad[: at + 1]) and bool(weight != 0) for at, (_, weight) in enumerate(runs)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")], ids=["nan", "inf", "-inf"])
def test_from_the_first_bad_run_on_nothing_is_allowed(bad):
    verdict, allowed = judged(([1.0], 1), ([1.0, bad], 1), ([1.0], 1), ([bad], 1))
    assert allowed == [True, False, False, False]
    assert verdict.halted and verdict.at == 2


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_of_all_types_are_judged(at, bad):
    types = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.bfloat16]
    fine = [torch.tensor(1.5, dtype=dtype) for dtype in types]
    verdict = Verdict(CPU)
    verdict.judge([*fine, torch.tensor(1e300, dtype=torch.float64)])  # of which float32 would make an infinity
    assert verdict.allowed.item()
    verdict.judge([*fine[:at], torch.tensor(bad, dtype=types[at]), *fine[at + 1 :]])
    assert not verdict.allowed.item()


def test_it_starts_anew():
    verdict, _ = judged(([float("nan")], 1))
    verdict.clear()
    verdict.judge(FINE)
    assert verdict.allowed.item() and not verdict.halted and verdict.at == 1


@pytest.mark.parametrize("loss", [float("nan"), 0.0], ids=["nan", "finite"])
def test_what_weighs_nothing_changes_nothing_and_stops_nothing(loss):
    verdict, allowed = judged(([1.0], torch.tensor(3)), ([loss], torch.tensor(0)), ([1.0], torch.tensor(2)))
    assert allowed == [True, False, True]
    assert not verdict.halted


def test_it_says_whether_the_last_one_weighed_nothing():
    """A micro-batch of nothing in a window that has something is no update of nothing."""
    verdict, _ = judged(([float("nan")], torch.tensor(0)))
    assert verdict.empty.item()
    verdict.judge(FINE, torch.tensor(4))
    assert not verdict.empty.item()
    verdict.judge([torch.tensor(float("nan"))], torch.tensor(0))
    verdict.judge(FINE)
    assert not verdict.empty.item()


def test_large_numbers_of_half_precision_are_fine():
    verdict = Verdict(CPU)
    verdict.judge([torch.tensor(65504.0, dtype=torch.float16), torch.tensor(1.0)])
    assert verdict.allowed.item() and not verdict.halted
