from collections import namedtuple
from types import MappingProxyType

import pytest

from stoker.data._tree import is_namedtuple, map_leaves, named_leaves

Pair = namedtuple("Pair", ["a", "b"])


def test_the_structure_stays():
    tree = (1, {"x": Pair(2, (3,))})
    assert map_leaves(lambda leaf: leaf * 10, tree) == (10, {"x": Pair(20, (30,))})
    assert type(map_leaves(str, Pair(1, 2))) is Pair
    assert map_leaves(str, 5) == "5"


def test_mappings_of_any_kind_become_dicts():
    assert type(map_leaves(str, MappingProxyType({"x": 1}))) is dict


def test_several_trees_are_walked_together():
    assert map_leaves(lambda *leaves: sum(leaves), (1, {"x": 2}), (3, {"x": 4}), (5, {"x": 6})) == (9, {"x": 12})
    with pytest.raises(ValueError, match="zip"):
        map_leaves(lambda a, b: a, (1, 2), (1,))


def test_leaves_are_named_as_one_would_index_them():
    tree = (1, {"x": Pair(2, 3), 4: 5})
    assert list(named_leaves(tree)) == [("[0]", 1), ("[1]['x'][0]", 2), ("[1]['x'][1]", 3), ("[1][4]", 5)]
    assert list(named_leaves(7)) == [("", 7)]


def test_namedtuples_are_told_from_tuples():
    assert is_namedtuple(Pair(1, 2))
    assert not is_namedtuple((1, 2))
