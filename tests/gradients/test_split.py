"""Split tensors share the memory, keep the order, and are not more than a kernel takes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.gradients._split import split_long

LENGTHS = st.lists(st.integers(0, 20_000), min_size=1, max_size=12)


def _columns(lengths):
    parameters = [torch.randn(length) for length in lengths]
    return [parameters, [each.clone() for each in parameters], [torch.tensor(float(n)) for n in range(len(lengths))]]


@given(lengths=LENGTHS, most=st.integers(1, 40))
def test_parts_have_the_same_elements_in_the_same_rows(lengths, most):
    columns = _columns(lengths)
    parts, copies, counters = split_long(columns, most)
    assert len(parts) == len(copies) == len(counters) <= max(most, len(lengths))
    for number, whole in enumerate(columns[0]):
        own = [part for part, counter in zip(parts, counters, strict=True) if counter is columns[2][number]]
        assert torch.equal(torch.cat(own), whole)
    assert all(torch.equal(part, copy) for part, copy in zip(parts, copies, strict=True))
    for part in parts:
        part.fill_(7)
    assert all((whole == 7).all() for whole in columns[0])


def test_a_long_tensor_is_split_up_to_the_limit():
    (parts,) = split_long([[torch.zeros(1024, 512), torch.zeros(512)]], 30)
    assert 20 < len(parts) <= 30 and len({len(part) for part in parts}) <= 3


def test_tensors_that_are_not_contiguous_stay_whole():
    parameter, moment = torch.randn(300, 200).t(), torch.randn(200, 300)
    whole, other = split_long([[parameter], [moment]], 30)
    assert whole[0] is parameter and other[0] is moment


def test_a_large_model_is_not_split():
    columns = [[torch.zeros(2**21)]]
    assert split_long(columns, 30) is columns
