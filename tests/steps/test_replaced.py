import weakref
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker.steps._replaced import holds_modules, replaced

OLD, NEW = nn.ReLU(), nn.Tanh()
Pair = namedtuple("Pair", "module scale")


class Words(list):
    pass


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
        (Pair(OLD, 1), Pair(NEW, 1)),
        (deque([1, OLD]), deque([1, NEW])),
        (defaultdict(list, a=OLD), defaultdict(list, a=NEW)),
        (Words([OLD]), Words([NEW])),
        (SimpleNamespace(a=[OLD]), SimpleNamespace(a=[NEW])),
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
    words = dict.fromkeys(range(100_000), "word") | {"last": OLD}
    assert replaced(words, swap) is words
    counted = Counter(words.keys())
    assert replaced(counted, swap) is counted


def test_a_copy_of_a_container_has_all_that_the_container_has():
    limited, lists = deque([OLD], maxlen=2), defaultdict(list, a=OLD)
    assert replaced(limited, swap).maxlen == 2
    assert replaced(lists, swap)["new"] == []
    words = Words([1])
    words.module, words.name = OLD, "words"
    other = replaced(words, swap)
    assert (other.module, other.name, other[0]) == (NEW, "words", 1)
    assert (limited[0], lists, words.module) == (OLD, {"a": OLD}, OLD)


def test_a_container_that_does_more_when_it_is_walked_is_only_looked_into():
    class Lazy(list):
        def __iter__(self):
            raise AssertionError("walked")

    lazy = Lazy([1, "word"])
    assert replaced(lazy, swap) is lazy


def test_default_arguments():
    def call(x, first=OLD, *, second=OLD):
        return first, second, x

    assert replaced(call, swap)(3) == (NEW, NEW, 3)
    assert call(3) == (OLD, OLD, 3)
    assert holds_modules([call])


def test_weak_references():
    class Thing:
        module = OLD

    thing, gone = Thing(), weakref.ref(Thing())
    assert replaced(weakref.ref(OLD), swap)() is NEW
    assert replaced(weakref.proxy(OLD), swap) is NEW
    for other in (weakref.ref(thing), gone, weakref.proxy(thing)):
        assert replaced(other, swap) is other
    proxy = weakref.proxy(nn.ReLU())
    assert replaced(proxy, swap) is proxy
    assert not holds_modules([proxy, gone])


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
