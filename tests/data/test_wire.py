import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.data._wire import packed


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint16]),
    st.lists(st.integers(0, 4), max_size=3),
)
def test_tensors_arrive_as_they_left(dtype, shape):
    sent = torch.arange(64).to(dtype)[: torch.Size(shape).numel()].reshape(shape)
    found = pickle.loads(packed({"x": sent}))["x"]
    assert found.dtype == dtype
    assert torch.equal(found, sent)
    found.zero_()  # it is writable, and its own


def test_a_view_sends_only_what_can_be_seen():
    whole = torch.arange(1_000_000)
    assert len(packed(whole[5:8])) < 1000
    assert pickle.loads(packed(whole.view(1000, 1000).T[2, :3])).tolist() == [2, 1002, 2002]


def test_conjugates_and_negatives_are_resolved():
    z = torch.tensor([1 + 2j])
    assert pickle.loads(packed(z.conj())).tolist() == [1 - 2j]
    assert pickle.loads(packed(z.conj().imag)).tolist() == [-2]


def test_sending_by_value_leaves_the_tensor_where_it_is():
    x = torch.zeros(1000)
    address, before = x.data_ptr(), descriptors()
    packed([x])
    assert x.data_ptr() == address
    assert not x.is_shared()
    assert descriptors() == before


@pytest.mark.parametrize(("size", "shared"), [(100, False), (101, True)])
def test_large_tensors_are_shared(size, shared):
    x = torch.zeros(size, dtype=torch.uint8)
    packed(x, share_above=100)
    assert x.is_shared() == shared


def test_gradients_and_subclasses_travel_as_torch_sends_them():
    found = pickle.loads(packed(torch.nn.Parameter(torch.ones(2))))
    assert isinstance(found, torch.nn.Parameter)
    assert pickle.loads(packed(torch.ones(2, requires_grad=True))).requires_grad
