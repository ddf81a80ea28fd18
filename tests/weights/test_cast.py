import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from stoker.weights._cast import cast
from stoker.weights._head import DTYPES

WHOLE = [
    dtype for dtype in DTYPES.values() if not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool
]
EDGES = [
    sign * 2**power + off for power in (7, 8, 15, 16, 31, 32, 53, 63, 64) for off in (-1, 0, 1) for sign in (1, -1)
]


@settings(max_examples=300, deadline=None)
@given(
    value=st.sampled_from([0, 1, -1, *EDGES]) | st.integers(-(2**63), 2**64), to=st.sampled_from(WHOLE), data=st.data()
)
def test_an_integer_fits_exactly_where_python_says_so(value, to, data):
    holding = [dtype for dtype in WHOLE if torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max]
    if not holding:
        return
    made, problem = cast(torch.tensor([value], dtype=data.draw(st.sampled_from(holding))), to)
    limits = torch.iinfo(to)
    assert (problem is None) == (limits.min <= value <= limits.max)
    assert problem or made.tolist() == [value]


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_an_integer_becomes_a_float_only_exactly(to):
    for value in (each for each in (0, 1, *EDGES) if -(2**63) <= each < 2**64):
        whole = torch.uint64 if value >= 2**63 else torch.int64
        made, problem = cast(torch.tensor([value], dtype=whole), to)
        back = made.real.double().item()
        assert (problem is None) == (math.isfinite(back) and int(back) == value), value


@pytest.mark.parametrize(("value", "to", "fits"), [
    (2.0, torch.int8, True), (2.5, torch.int64, False), (float("nan"), torch.int64, False),
    (float("inf"), torch.int32, False), (300.0, torch.uint8, False), (-1.0, torch.uint8, False),
    (2.0**63, torch.int64, False), (2.0**64, torch.uint64, False), (-(2.0**63), torch.int64, True),
    (1.0, torch.bool, True), (0.5, torch.bool, False), (1e6, torch.float16, False), (65519.0, torch.float16, True),
    (1e-30, torch.float16, True), (1e39, torch.float32, False), (float("inf"), torch.float16, True),
    (float("nan"), torch.float16, True), (1e30, torch.float8_e4m3fn, False), (448.0, torch.float8_e4m3fn, True),
    (-3.0, torch.float8_e8m0fnu, False), (4.0, torch.float8_e8m0fnu, True), (float("nan"), torch.float8_e8m0fnu, True),
    (0.1, torch.complex64, True),
])  # fmt: skip
def test_a_float_stays_what_it_is_or_is_refused(value, to, fits):
    _, problem = cast(torch.tensor([1.0, value], dtype=torch.float64), to)
    assert (problem is None) == fits, problem


def test_complex_numbers_and_booleans():
    assert cast(torch.tensor([1 + 0j]), torch.float32)[1] == "complex numbers don't fit into real ones"
    assert cast(torch.tensor([True, False]), torch.float16)[1] is None
    assert cast(torch.tensor([0, 1, 2]), torch.bool)[1] == "2 is no bool"
    assert cast(torch.tensor([-5], dtype=torch.int8), torch.uint32)[1] == "-5 is no uint32"


def test_every_pair_of_dtypes_is_known():
    for one in DTYPES.values():
        for other in DTYPES.values():
            made, problem = cast(torch.ones(2, dtype=one), other)
            if one.is_complex and not other.is_complex:
                assert problem
            else:
                assert problem is None, (one, other, problem)
                assert made.dtype == other
