"""Plain values and back."""

from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.optim._state import from_plain, to_plain

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from([torch.float16, torch.int64]),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(lambda items: deque(items, maxlen=9))
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=8,
)


def only_plain(value):
    if isinstance(value, dict):
        return all(isinstance(key, str) and only_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(only_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


@given(plain)
def test_there_and_back(value):
    there = to_plain(value, "x")
    assert only_plain(there) and from_plain(there) == value
    assert not isinstance(value, tuple | deque) or type(from_plain(there)) is type(value)


def test_a_mapping_that_looks_like_a_mark_is_not_taken_for_one():
    value = {"__kind__": "tuple", "items": [1]}
    assert from_plain(to_plain(value, "x")) == value


def test_a_kind_that_is_not_known_is_refused():
    for value in ({"__kind__": "module", "items": "os"}, {"__kind__": "dtype", "items": "nn"}):
        with pytest.raises(stoker.StateMismatch, match="which is not known here"):
            from_plain(value)
