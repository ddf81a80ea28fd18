"""The sums and rows that states are made of: algorithms with their own specification, tested directly."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.metrics._states import add, append_rows, merge_rows, read, read_rows, zero_count, zero_sum

CPU = torch.device("cpu")


def test_a_sum_takes_the_shape_of_what_is_added_and_is_exact():
    total = add(zero_sum(CPU), torch.tensor([1.0, 2.0]), times=3)
    assert read(total).tolist() == [3.0, 6.0] and read(add(total, 1.5)).tolist() == [4.5, 7.5]
    for third in (torch.tensor(1 / 3, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64)):
        assert read(add(zero_sum(CPU), third, times=3)).item() == third.double().item() * 3
    count = add(zero_count(CPU), 3)
    assert count.dtype == torch.int64
    exact = add(add(add(count, 2**40), torch.tensor(0.5)), 2)  # weights turn a count into a sum in float64
    assert read(exact).item() == 2**40 + 5.5


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
