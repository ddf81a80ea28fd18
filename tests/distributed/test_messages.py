"""Messages between ranks: values are packed and unpacked without loss, and nothing else is accepted."""

import enum
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from stoker.distributed import pack, unpack
from stoker.errors import WrongType

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float8_e4m3fn]


def tensor_of(dtype, shape):
    return (torch.arange(int(np.prod(shape))) % 5).reshape(shape).to(dtype)


tensors = some.builds(tensor_of, some.sampled_from(DTYPES), some.lists(some.integers(0, 3), max_size=3).map(tuple))
leaves = (
    some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.binary() | tensors
    | some.characters(categories=["Cs"])
)  # fmt: skip
keys = some.none() | some.integers(-(2**60), 2**60) | some.text()
trees = some.recursive(
    leaves,
    lambda inner: some.lists(inner) | some.lists(inner).map(tuple) | some.dictionaries(keys, inner),
    max_leaves=15,
)


def alike(one, other):
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and one.flatten().view(torch.uint8).equal(other.flatten().view(torch.uint8))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(alike(*pair) for pair in zip(one, other, strict=True))
    return one == other or (one != one and other != other)


@settings(max_examples=50, deadline=None)
@given(trees)
def test_values_are_the_same_after_packing_and_unpacking(tree):
    assert alike(tree, unpack(pack(tree)))


def test_tensors_of_unusual_layout():
    strided = torch.arange(12.0).reshape(3, 4).t()[::2]
    conjugate = torch.tensor([1 + 2j]).conj()
    needs = torch.ones(2, requires_grad=True)
    for given_ in (strided, conjugate, needs, torch.tensor(float("nan")), torch.empty(0, 3, dtype=torch.bfloat16)):
        back = unpack(pack(given_))
        torch.testing.assert_close(back, given_.detach(), equal_nan=True, rtol=0, atol=0)
        assert not back.requires_grad
        back.add_(1)  # an ordinary tensor, which can be written
    assert torch.equal(needs.detach(), torch.ones(2))


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.float64(1.5), 1.5), (np.str_("a"), "a"), (Point(1, 2), (1, 2)), (Colour.RED, 3), (bytearray(b"x"), b"x")],
    ids=["float64", "str_", "named tuple", "enum", "bytearray"],
)
def test_subclasses_become_their_base_class(value, plain):
    back = unpack(pack([value]))[0]
    assert back == plain and type(back) is type(plain)


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None], ids=["object", "set", "function"])
def test_errors_for_values_that_can_not_be_sent(value):
    text = r"^value\['deep'\]\[0\]\[1\] is a builtins\.\w+, which can't be sent .*torch\.as_tensor converts an array"
    with pytest.raises(WrongType, match=text):
        pack({"first": (1, [2]), "deep": [(3, value)]})
    with pytest.raises(WrongType, match=r"^value is a builtins\.\w+, which can't be sent"):
        pack(value)


def test_error_for_a_sparse_tensor():
    with pytest.raises(WrongType, match=r"only ordinary, dense tensors can be sent .*; use \.to_local\(\) or \.to_d"):
        pack(torch.eye(2).to_sparse())
