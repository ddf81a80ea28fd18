"""What a state may hold, how it is stored, and which values are refused."""

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
from safetensors.torch import load_file
from torch import Tensor, nn

from stoker.checkpoint import Store
from stoker.errors import InvalidArgument, WrongType
from tests.checkpoint.states import place, same, write_and_read

dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex128])
tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    dtypes,
    st.integers(0, 2**31),
)
# NaNs with any bits; hypothesis generates only the usual ones.
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
@settings(max_examples=100, deadline=None)
def test_any_state_is_restored_to_the_bit(state):
    assert same(write_and_read(state), state)


def test_the_files_are_strict_json_and_safetensors(tmp_path):
    one = torch.ones(1)
    state = {
        "model": {"a.b": one, "a": {"b": one, "c": [one]}, "__metadata__": one},
        "x": one,
        "s": {"t": (1, 2.5), "n": math.inf, "d": deque([1], 3), "k": {3: b"\0"}, "f": torch.float16},
    }
    store = Store(tmp_path)
    folder = tmp_path / store.write(state, place(1)).name
    plain = json.loads((folder / "state.json").read_text(), parse_constant=pytest.fail)
    assert plain["s"] == {
        "t": {"$tuple": [1, 2.5]},
        "n": {"$float": "7ff0000000000000"},
        "d": {"$deque": [1], "maxlen": 3},
        "k": {"$mapping": [[3, {"$bytes": "AA=="}]]},
        "f": {"$dtype": "float16"},
    }
    assert plain["model"]["a"] == {"b": {"$tensor": "a.b#1"}, "c": [{"$tensor": "a.c.0"}]}
    assert sorted(load_file(folder / "model.safetensors")) == ["__metadata__#1", "a.b", "a.b#1", "a.c.0"]
    assert list(load_file(folder / "x.safetensors")) == ["x"]


def test_subclasses_become_plain_values_and_parameters_tensors():
    class Color(IntEnum):
        RED = 1

    state = {"s": [np.float64(0.1), Color.RED, OrderedDict(a=1), torch.Size([2, 3]), np.str_("x")]}
    assert same(write_and_read(state), {"s": [0.1, 1, {"a": 1}, (2, 3), "x"]})
    back = write_and_read({"model": {"w": nn.Parameter(torch.ones(2))}})["model"]["w"]
    assert type(back) is Tensor and not back.requires_grad


@pytest.mark.parametrize(("value", "text"), [
    ({1}, r"'callbacks\.0\.seen' is a set, which cannot be saved; a state holds tensors, mappings"),
    (object(), r"'callbacks\.0\.seen' is a object"),
    (np.zeros(3), r"'callbacks\.0\.seen' is a numpy\.ndarray"),
    (np.float32(1), r"is a numpy\.float32"),
    (bytearray(b"x"), r"is a bytearray"),
    (1j, r"is a complex"),
    (namedtuple("Point", "x y")(1, 2), r"is a .*Point"),
    ({torch.ones(1): 1}, r"'callbacks\.0\.seen' has a tensor as a key"),
    ({frozenset(): 1}, r"is a frozenset"),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_value_that_cannot_be_saved_is_named_by_its_path(value, text):
    with pytest.raises(WrongType, match=text):
        write_and_read({"callbacks": [{"seen": value}]})


class Mine(Tensor):
    pass


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(("make", "text"), [
    (lambda: torch.ones(2, 2).to_sparse(), r"'model\.w\.0' has the layout torch\.sparse_coo"),
    (lambda: torch.ones(2, device="meta"), r"'model\.w\.0' is on the meta device"),
    (lambda: torch.ones(2).as_subclass(Mine), r"'model\.w\.0' is a Mine, a subclass of Tensor"),
    (lambda: torch.empty(2, dtype=torch.bits8), r"'model\.w\.0' has the dtype torch\.bits8"),
    (lambda: nn.LazyLinear(2).weight, r"'model\.w\.0' has no shape yet"),
    (lambda: torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.quint8), r"dtype torch\.quint8"),
], ids=["sparse", "meta", "subclass", "dtype", "lazy", "quantized"])  # fmt: skip
def test_a_tensor_that_cannot_be_saved_is_named_by_its_path(make, text):
    with pytest.raises(InvalidArgument, match=text):
        write_and_read({"model": {"w": [make()]}})


def test_a_state_is_a_mapping_with_strings_as_keys():
    for wrong, text in (([], "a list"), ({1: 2}, "the key 1"), (None, "a NoneType")):
        with pytest.raises(WrongType, match=f"a state is a mapping with strings as keys; got {text}"):
            write_and_read(wrong)
    with pytest.raises(InvalidArgument, match=r"the part 'a/b' of the state holds tensors, so a file is named after"):
        write_and_read({"a/b": torch.ones(1)})
    assert write_and_read({"a/b": 1}) == {"a/b": 1}  # without tensors there is no file
    with pytest.raises(InvalidArgument, match=r"'x' is an integer of 2049 bits; at most 2048 are saved"):
        write_and_read({"x": 2**2048})


def test_at_most_64_levels_are_nested():
    def nested(depth, wrap):
        value = 1
        for _ in range(depth):
            value = wrap(value)
        return {"x": value}

    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: {1: v}, lambda v: deque([v])):
        deep = nested(63, wrap)
        assert same(write_and_read(deep), deep)
        with pytest.raises(InvalidArgument, match=r"is nested deeper than 64 levels, or contains itself"):
            write_and_read(nested(64, wrap))
    loop: list = []
    loop.append(loop)
    with pytest.raises(InvalidArgument, match="contains itself"):
        write_and_read({"x": loop})
