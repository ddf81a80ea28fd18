"""The sums and rows that states are made of: algorithms with their own specification, tested directly."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.metrics._states import add, add_sums, append_rows, merge_rows, read, read_rows, zero_count, zero_sum

CPU = torch.device("cpu")
NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), max_size=60)


@given(NUMBERS, NUMBERS)
def test_a_compensated_float32_sum_is_as_exact_as_float64(a, b):
    """Used on devices without float64; tested here on the CPU."""
    sums = []
    for part in (a, b):
        total = zero_sum(CPU, torch.float32)
        for number in part:
            total = add(total, torch.tensor(number))
        sums.append(total)
    exact, size = math.fsum([*a, *b]), math.fsum(map(abs, [*a, *b]))
    assert read(add_sums(*sums)).item() == pytest.approx(exact, abs=1e-12 * size)


def test_plain_float32_would_lose_what_the_compensated_sum_has():
    total, plain = zero_sum(CPU, torch.float32), torch.zeros(())
    for number in [1e8] + [1.0] * 100:
        total, plain = add(total, torch.tensor(number)), plain + number
    assert read(total).item() == 1e8 + 100 != plain.item()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sum_takes_the_shape_of_what_is_added(dtype):
    total = add(zero_sum(CPU, dtype), torch.tensor([1.0, 2.0]), times=3)
    assert read(total).tolist() == [3.0, 6.0]
    for both in (add_sums(zero_sum(CPU, dtype), total), add_sums(total, zero_sum(CPU, dtype))):
        assert read(both).tolist() == [3.0, 6.0]
    assert read(add(total, 1.5)).tolist() == [4.5, 7.5]


def test_a_half_precision_amount_is_multiplied_in_full_precision():
    third = torch.tensor(1 / 3, dtype=torch.bfloat16)
    assert read(add(zero_sum(CPU), third, times=3)).item() == third.double().item() * 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_count_becomes_a_sum_when_weights_are_added(dtype):
    count = add(zero_count(CPU), 3)
    assert count.dtype == torch.int64
    total = add(add(count, torch.tensor(0.5, dtype=dtype)), 2)
    assert read(total).item() == 5.5
    assert read(add_sums(count, total)).item() == 8.5 == read(add_sums(total, count)).item()


@given(st.lists(st.integers(0, 20), max_size=40))
def test_rows_are_read_in_order_from_few_chunks(sizes):
    rows = torch.arange(sum(sizes))
    state = {}
    for part in rows.split(sizes) if sizes else ():
        state = append_rows(state, {"a": part, "b": -part})
    found = read_rows(state)
    if len(rows):
        assert torch.equal(found["a"], rows) and torch.equal(found["b"], -rows)
    else:
        assert found == {}
    assert len(state) <= 2 * len(rows).bit_length()


def test_merged_rows_are_padded_to_one_width():
    a, b = append_rows({}, {"a": torch.ones(1, 2)}), append_rows({}, {"a": torch.zeros(2, 3)})
    assert read_rows(merge_rows(a, b))["a"].tolist() == [[1, 1, -1], [0, 0, 0], [0, 0, 0]]
    assert merge_rows({}, b).keys() == b.keys() and merge_rows(b, {}) == b
