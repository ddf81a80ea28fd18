"""Tensors in parts are the same memory, in the same order, and no more of them than a kernel takes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.gradients import split_long as cut

LENGTHS = st.lists(st.integers(0, 20_000), min_size=1, max_size=12)


def _columns(lengths):
    parameters = [torch.randn(length) for length in lengths]
    return [parameters, [each.clone() for each in parameters], [torch.tensor(float(n)) for n in range(len(lengths))]]


@given(lengths=LENGTHS, most=st.integers(1, 40))
def test_parts_are_the_same_numbers_in_the_same_rows(lengths, most):
    columns = _columns(lengths)
    parts, copies, counters = cut(columns, most)
    assert len(parts) == len(copies) == len(counters) <= max(most, len(lengths))
    for number, whole in enumerate(columns[0]):
        own = [part for part, counter in zip(parts, counters, strict=True) if counter is columns[2][number]]
        assert torch.equal(torch.cat(own), whole)
    assert all(torch.equal(part, copy) for part, copy in zip(parts, copies, strict=True))
    for part in parts:
        part.fill_(7)
    assert all((whole == 7).all() for whole in columns[0])


def test_a_long_one_is_cut_as_far_as_there_is_room():
    (parts,) = cut([[torch.zeros(1024, 512), torch.zeros(512)]], 30)
    assert 20 < len(parts) <= 30 and len({len(part) for part in parts}) <= 3


def test_what_does_not_lie_in_one_row_stays_whole():
    parameter, moment = torch.randn(300, 200).t(), torch.randn(200, 300)
    whole, other = cut([[parameter], [moment]], 30)
    assert whole[0] is parameter and other[0] is moment


def test_a_large_model_keeps_a_gpu_busy_as_it_is():
    columns = [[torch.zeros(2**21)]]
    assert cut(columns, 30) is columns
