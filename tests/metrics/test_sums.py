import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.metrics._sums import add, fresh, fresh_count, join, ratio, read, weighted, wide

CPU = torch.device("cpu")
NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), max_size=60)


@given(NUMBERS, NUMBERS)
def test_a_compensated_sum_in_float32_is_as_good_as_float64(a, b):
    """What a device without float64 does; tried here on one that has it."""
    sums = []
    for part in (a, b):
        total = fresh(CPU, torch.float32)
        for number in part:
            total = add(total, torch.tensor(number))
        sums.append(total)
    exact, size = math.fsum([*a, *b]), math.fsum(map(abs, [*a, *b]))
    assert read(join(*sums)).item() == pytest.approx(exact, abs=1e-12 * size)


def test_float32_alone_would_lose_what_the_pair_keeps():
    total, plain = fresh(CPU, torch.float32), torch.zeros(())
    for number in [1e8] + [1.0] * 100:
        total, plain = add(total, torch.tensor(number)), plain + number
    assert read(total).item() == 1e8 + 100 != plain.item()


def test_only_apples_devices_lack_float64():
    assert wide(torch.device("cuda")) == wide(CPU) == torch.float64
    assert wide(torch.device("mps")) == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sum_takes_the_shape_of_what_comes(dtype):
    total = add(fresh(CPU, dtype), torch.tensor([1.0, 2.0]), times=3)
    assert read(total).tolist() == [3.0, 6.0]
    assert read(join(fresh(CPU, dtype), total)).tolist() == [3.0, 6.0] == read(join(total, fresh(CPU, dtype))).tolist()
    assert read(add(total, 1.5)).tolist() == [4.5, 7.5]


def test_a_half_precision_amount_is_multiplied_in_full_precision():
    third = torch.tensor(1 / 3, dtype=torch.bfloat16)
    assert read(add(fresh(CPU), third, times=3)).item() == third.double().item() * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_count_becomes_a_sum_when_weights_come(dtype):
    count = add(fresh_count(CPU), 3)
    assert count.dtype == torch.int64
    total = add(add(count, torch.tensor(0.5, dtype=dtype)), 2)
    assert read(total).item() == 5.5
    assert read(join(count, total)).item() == 8.5 == read(join(total, count)).item()


def test_what_weighs_nothing_is_not_looked_at():
    values = torch.tensor([1.0, 2.0, float("nan")])
    assert weighted(values, torch.tensor([1.0, 0.5, 0.0])) == 2
    assert weighted(values, torch.tensor([True, False, False])) == 1
    assert weighted(values > 0, torch.tensor([True, False, True])) == 1
    assert weighted(values > 0, None) == 2
    assert weighted(values, None).isnan()


def test_a_ratio_to_nothing_is_nan():
    assert math.isnan(ratio(fresh(CPU), fresh(CPU)))
