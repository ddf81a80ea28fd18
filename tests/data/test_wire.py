import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.data._wire import packed, stacked_to_share


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


STACKS = {
    "images": [torch.rand(3, 8, 8) for _ in range(4)],
    "one channel": [torch.rand(1, 8, 8) for _ in range(4)],
    "channels last": [torch.rand(8, 8, 3).permute(2, 0, 1) for _ in range(4)],
    "numbers": [torch.tensor(number) for number in range(40)],
    "truths": [torch.rand(100) > 0.5 for _ in range(4)],
    "nothing": [torch.empty(0, 3) for _ in range(4)],
    "with gradients": [torch.rand(100, requires_grad=True) for _ in range(4)],
    "parameters": [torch.nn.Parameter(torch.rand(100)) for _ in range(4)],
    "elsewhere": [torch.rand(100, device="meta") for _ in range(4)],
}


@pytest.mark.parametrize("above", [0, 200, 10**6])
@pytest.mark.parametrize("tensors", STACKS.values(), ids=STACKS)
def test_stacking_to_share_is_stacking(tensors, above):
    plain, made = torch.stack(tensors), stacked_to_share(tensors, above=above)
    assert (made.shape, made.stride(), made.dtype, made.device) == (
        plain.shape,
        plain.stride(),
        plain.dtype,
        plain.device,
    )
    assert made.requires_grad == plain.requires_grad
    assert made.device.type == "meta" or torch.equal(made, plain)


def test_what_is_stacked_to_share_is_sent_without_a_copy():
    made = stacked_to_share(STACKS["images"], above=100)
    address = made.data_ptr()
    assert made.is_shared()
    assert torch.equal(pickle.loads(packed(made, share_above=100)), made)
    assert made.data_ptr() == address
    assert not stacked_to_share(STACKS["images"], above=10**6).is_shared()
