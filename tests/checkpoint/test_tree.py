import json
import math
import struct
from collections import OrderedDict, deque, namedtuple
from enum import IntEnum

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from stoker.checkpoint._json import from_json, to_json
from stoker.checkpoint._tree import MOST_DEPTH, joined, split
from stoker.errors import BadFile, InvalidArgument, WrongType


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(a, b) -> bool:
    """Whether two states are the same in type, order and every bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return same(list(a), list(b)) and same(list(a.values()), list(b.values()))
    if isinstance(a, list | tuple | deque):
        lengths = len(a) == len(b) and getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        return lengths and all(map(same, a, b))
    return a == b


def through(state):
    plain, tensors = split(state)
    return joined(from_json(to_json(plain), "here"), tensors)


dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex128])
tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    dtypes,
    st.integers(0, 2**31),
)
# NaNs with any bits: what a float strategy gives is only the usual one
odd_floats = st.integers(0, 2**64 - 1).map(lambda number: struct.unpack("d", struct.pack("Q", number))[0])
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**2000), 2**2000)
    | st.floats()
    | odd_floats
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | dtypes
)
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
names = st.sampled_from(["", "a", "b", "a.b", "$tensor", "$", "__metadata__", "0", "a#1", "\ud800"]) | st.text()
trees = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(3, 9))
        | st.dictionaries(names, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=15,
)


@given(st.dictionaries(st.sampled_from(["model", "optimizer", "random", "callbacks", "_x-1"]), trees, max_size=4))
@settings(max_examples=300)
def test_any_state_comes_back_to_the_bit(state):
    assert same(through(state), state)


def test_keys_are_paths_and_no_two_are_the_same():
    one = torch.ones(1)
    plain, found = split({"model": {"a.b": one, "a": {"b": one, "c": [one]}, "__metadata__": one}, "x": one})
    assert list(found["model"]) == ["a.b", "a.b#1", "a.c.0", "__metadata__#1"]
    assert list(found["x"]) == ["x"]
    assert plain["model"]["a"] == {"b": {"$tensor": "a.b#1"}, "c": [{"$tensor": "a.c.0"}]}


def test_what_is_written_is_strict_json_that_people_can_read():
    plain, _ = split({"s": {"t": (1, 2.5), "n": math.inf, "d": deque([1], 3), "k": {3: b"\0"}, "f": torch.float16}})
    text = to_json(plain).decode()
    assert json.loads(text, parse_constant=pytest.fail)["s"] == {
        "t": {"$tuple": [1, 2.5]},
        "n": {"$float": "7ff0000000000000"},
        "d": {"$deque": [1], "maxlen": 3},
        "k": {"$mapping": [[3, {"$bytes": "AA=="}]]},
        "f": {"$dtype": "float16"},
    }


def test_kinds_of_plain_values_come_back_as_the_plain_ones():
    class Color(IntEnum):
        RED = 1

    state = {"s": [np.float64(0.1), Color.RED, OrderedDict(a=1), torch.Size([2, 3]), np.str_("x")]}
    assert same(through(state), {"s": [0.1, 1, {"a": 1}, (2, 3), "x"]})


def test_parameters_come_back_as_tensors_without_their_gradient():
    back = through({"model": {"w": nn.Parameter(torch.ones(2))}})["model"]["w"]
    assert type(back) is Tensor
    assert not back.requires_grad


class Mine(Tensor):
    pass


@pytest.mark.parametrize(("value", "text"), [
    ({1}, r"'callbacks\.0\.seen' is a set, which can't be saved; a state holds tensors, mappings"),
    (object(), r"'callbacks\.0\.seen' is a object"),
    (np.zeros(3), r"'callbacks\.0\.seen' is a numpy\.ndarray"),
    (np.float32(1), r"is a numpy\.float32"),
    (bytearray(b"x"), r"is a bytearray"),
    (1j, r"is a complex"),
    (namedtuple("Point", "x y")(1, 2), r"is a .*Point"),
    ({torch.ones(1): 1}, r"'callbacks\.0\.seen' has a tensor as a key"),
    ({frozenset(): 1}, r"is a frozenset"),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_what_cant_be_saved_is_named_by_its_path(value, text):
    with pytest.raises(WrongType, match=text):
        split({"callbacks": [{"seen": value}]})


@pytest.mark.parametrize(("make", "text"), [
    (lambda: torch.ones(2, 2).to_sparse(), r"'model\.w\.0' is a tensor of the layout torch\.sparse_coo"),
    (lambda: torch.ones(2, device="meta"), r"'model\.w\.0' is on the meta device"),
    (lambda: torch.ones(2).as_subclass(Mine), r"'model\.w\.0' is a Mine, a tensor of a kind of its own"),
    (lambda: torch.empty(2, dtype=torch.bits8), r"'model\.w\.0' has the dtype torch\.bits8"),
    (lambda: nn.LazyLinear(2).weight, r"'model\.w\.0' has no shape yet"),
], ids=["sparse", "meta", "subclass", "dtype", "lazy"])  # fmt: skip
def test_tensors_that_cant_be_saved_are_named_by_their_path(make, text):
    with pytest.raises(InvalidArgument, match=text):
        split({"model": {"w": [make()]}})


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # torch is about to take them away
def test_quantized_tensors_are_refused():
    made = torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.quint8)
    with pytest.raises(InvalidArgument, match=r"'model\.w' has the dtype torch\.quint8"):
        split({"model": {"w": made}})


def test_states_that_are_none():
    for wrong, text in (([], "a list"), ({1: 2}, "the key 1"), (None, "a NoneType")):
        with pytest.raises(WrongType, match=f"a state is a mapping with strings as keys; got {text}"):
            split(wrong)
    with pytest.raises(InvalidArgument, match=r"the part 'a/b' of the state holds tensors, so a file is named after"):
        split({"a/b": torch.ones(1)})
    assert through({"a/b": 1}) == {"a/b": 1}  # without tensors there is no file
    with pytest.raises(InvalidArgument, match=r"'x' is an integer of 2049 bits; at most 2048 are saved"):
        split({"x": 2**2048})


def test_depth_is_limited_the_same_way_in_both_directions():
    def nested(depth, wrap):
        value = 1
        for _ in range(depth):
            value = wrap(value)
        return {"x": value}

    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}, lambda v: deque([v])):
        deep = nested(MOST_DEPTH - 1, wrap)
        assert same(through(deep), deep)
        with pytest.raises(InvalidArgument, match=r"is nested deeper than 64 levels, or holds itself"):
            split(nested(MOST_DEPTH, wrap))
    loop: list = []
    loop.append(loop)
    with pytest.raises(InvalidArgument, match="holds itself"):
        split({"x": loop})


@pytest.mark.parametrize("plain", [
    [], None, 3, "x",
    {"a": {"$tensor": "missing"}}, {"a": {"$tensor": 3}}, {"a": {"$tensor": "w", "more": 1}},
    {"a": [{"$tensor": "w"}, {"$tensor": "w"}]}, {"b": {"$tensor": "w"}}, {"a": 1},
    {"a": {"$what": 1}}, {"a": {"$tuple": 3}}, {"a": {"$tuple": [], "$float": "x"}},
    {"a": {"$deque": [], "maxlen": -1}}, {"a": {"$deque": [], "maxlen": 2**70}}, {"a": {"$deque": []}},
    {"a": {"$mapping": [1]}}, {"a": {"$mapping": [[1]]}}, {"a": {"$mapping": [[[], 1]]}},
    {"a": {"$mapping": [[1, 1], [1, 2]]}}, {"a": {"$mapping": [[None, 1, 2]]}},
    {"a": {"$float": "xyz"}}, {"a": {"$float": "00"}}, {"a": {"$bytes": "?"}}, {"a": {"$bytes": "é"}},
    {"a": {"$dtype": "load"}}, {"a": {"$dtype": "nn"}}, {"a": {"$dtype": "_dynamo"}},
], ids=range(28))  # fmt: skip
def test_what_split_cant_have_given_is_refused(plain):
    with pytest.raises(BadFile, match=r"^there "):
        joined(plain, {"a": {"w": torch.ones(1)}}, where="there")


def test_too_deep_a_text_is_refused():
    plain = {"a": 1}
    for _ in range(MOST_DEPTH):
        plain = {"a": plain}
    with pytest.raises(BadFile, match="the state is not as it was written: it is nested deeper than 64 levels"):
        joined(plain, {})
