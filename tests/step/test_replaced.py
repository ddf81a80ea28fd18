from collections import OrderedDict
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.step._replaced import holds_modules, replaced

OLD, NEW = nn.ReLU(), nn.Tanh()


def swap(module):
    return NEW if module is OLD else module


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OLD, NEW),
        ([OLD, 1], [NEW, 1]),
        ((1, OLD), (1, NEW)),
        ({"a": OLD}, {"a": NEW}),
        ({OLD}, {NEW}),
        (frozenset({OLD}), frozenset({NEW})),
        (OrderedDict(a=[OLD]), OrderedDict(a=[NEW])),
        ([{"a": (OLD,)}], [{"a": (NEW,)}]),
    ],
)
def test_modules_are_changed_and_kinds_kept(value, expected):
    got = replaced(value, swap)
    assert got == expected
    assert type(got) is type(expected)
    assert holds_modules([value])


def test_methods_partials_and_closures():
    def call(x):
        """Says which."""
        return old, x

    old = OLD
    assert replaced(OLD.forward, swap).__self__ is NEW
    assert replaced(partial(OLD.forward, 2), swap).func.__self__ is NEW
    assert replaced(partial(print, OLD, end=OLD), swap).args == (NEW,)
    assert replaced(partial(print, OLD, end=OLD), swap).keywords == {"end": NEW}
    assert replaced(call, swap)(3) == (NEW, 3)
    assert replaced(call, swap).__name__ == "call"
    assert call(3) == (OLD, 3)
    assert holds_modules([call])
    assert holds_modules([OLD.forward])


def test_a_closure_shares_what_holds_no_module():
    module, calls = OLD, 0

    def call():
        nonlocal calls
        calls += 1
        return module

    assert replaced(call, swap)() is NEW
    assert calls == 1


def test_a_cell_that_is_not_filled_yet():
    def call():
        return later

    assert replaced(call, swap) is call
    later = 3
    assert call() == 3


def test_a_large_container_is_not_walked_through():
    class Counted(list):
        pass

    words = dict.fromkeys(range(100_000), "word") | {"last": OLD}
    assert replaced(words, swap) is words
    assert replaced(Counted([OLD]), swap) == [OLD]  # a kind of the user's own may mean anything


values = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3)),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3), st.dictionaries(st.integers(), parts, max_size=3), st.tuples(parts, parts)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(values)
def test_a_value_without_modules_is_the_very_same(value):
    assert replaced(value, swap) is value
    assert not holds_modules([value])
