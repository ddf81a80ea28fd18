"""Nested structures: every function visits the same leaves in the same order, and rebuilds the containers it met."""

from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker._tree import (
    OpaqueValue,
    find_tensors,
    first_tensor,
    flatten,
    map_leaves,
    map_state,
    map_tensors,
    named_leaves,
    tensors_in,
    unflatten,
    unsavable_type,
)

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Sample:
    image: Any
    label: Any = None
    cached: Any = field(default=None, init=False)


def example():
    return (
        Point(torch.tensor(0.0), "text"),
        [torch.tensor(1.0), {"b": torch.tensor(2.0), "a": None}],
        Sample(torch.tensor(3.0), (torch.tensor(4.0), 7)),
    )


def test_map_tensors_keeps_containers_and_other_leaves():
    before = example()
    point, items, sample = map_tensors(lambda tensor: tensor + 10, before)
    assert (type(point), point.x, point.y) == (Point, torch.tensor(10.0), "text")
    assert items == [torch.tensor(11.0), {"b": torch.tensor(12.0), "a": None}]
    assert (type(sample), sample.image, sample.label) == (Sample, torch.tensor(13.0), (torch.tensor(14.0), 7))
    assert [float(tensor) for tensor in tensors_in(before)] == [0, 1, 2, 3, 4]  # the argument is unchanged


def test_all_functions_agree_on_the_order_of_tensors():
    tree = example()
    tensors, _ = flatten(tree)
    named = [(name, leaf) for name, leaf in named_leaves(tree, "tree") if isinstance(leaf, Tensor)]
    for name, leaf in named:
        assert eval(name, {"tree": tree}) is leaf
    expected = list(map(id, tensors_in(tree)))
    assert list(map(id, tensors)) == expected == [id(leaf) for _, leaf in named]
    assert first_tensor(tree) is tensors[0]


def test_a_structure_without_tensors_has_no_first_tensor():
    assert first_tensor({"a": [1, "text", None]}) is None
    assert tensors_in("text") == []


def test_mappings_of_any_kind_become_dicts():
    for tree in ({"x": 1}, OrderedDict(x=1), MappingProxyType({"x": 1})):
        assert type(map_leaves(lambda leaf: leaf + 1, tree)) is dict


def test_a_mapping_that_is_a_dataclass_keeps_its_class():
    @dataclass
    class Output(OrderedDict[str, Any]):
        logits: Any = None
        hidden: Any = None

    output = Output(torch.zeros(1))
    assert type(map_tensors(torch.neg, output)) is Output
    assert [name for name, _ in named_leaves(output, "output")] == ["output.logits", "output.hidden"]
    assert type(unflatten(flatten(output)[1], [torch.ones(1)])) is Output


def test_other_trees_are_matched_by_key():
    assert map_leaves(lambda a, b: (a, b), {"x": 1, "y": 2}, {"y": 20, "x": 10}) == {"x": (1, 10), "y": (2, 20)}
    with pytest.raises(ValueError, match="zip"):
        map_leaves(lambda a, b: (a, b), (1, 2), (10, 20, 30))


def test_is_leaf_stops_the_walk():
    tree = ([1, 2], {"a": [3]})
    assert map_leaves(len, tree, is_leaf=lambda value: isinstance(value, list)) == (2, {"a": 1})
    assert dict(named_leaves(tree, is_leaf=lambda value: isinstance(value, list))) == {"[0]": [1, 2], "[1]['a']": [3]}


def test_unflatten_undoes_flatten():
    tree = example()
    tensors, structure = flatten(tree)
    again, same = flatten(unflatten(structure, tensors))
    assert same == structure and hash(same) == hash(structure)
    assert list(map(id, again)) == list(map(id, tensors))


def test_structures_differ_where_anything_but_a_tensor_differs():
    one = torch.ones(1)
    trees = [(one, 1), (one, 1.0), (one, True), [one, 1], (one, one), {"a": one, "b": 1}, {"b": one, "a": 1}]
    trees += [Point(one, 1), Sample(one, 1), (one, "1"), (one, None), (one, torch.float32)]
    assert len({flatten(tree)[1] for tree in trees}) == len(trees)
    assert flatten((one, 1))[1] == flatten((torch.zeros(5), 1))[1]


@pytest.mark.parametrize("value", [object(), {1, 2}, len, Sample, MappingProxyType({})])
def test_flatten_refuses_values_that_may_hide_tensors(value):
    with pytest.raises(OpaqueValue):
        flatten((torch.ones(1), value))


def test_tensors_are_found_in_attributes_containers_and_bound_methods_once():
    class Holder:
        def method(self):
            pass

    holder, tensors = Holder(), [torch.full((), float(number)) for number in range(4)]
    holder.own, holder.again, holder.inner = tensors[0], {"a": [tensors[1], (tensors[0],)]}, deque([tensors[2], holder])
    module = nn.Module()
    module.call, module.plain, module.kind = holder.method, tensors[3], Holder
    assert sorted(find_tensors(module)) == tensors


def test_a_state_is_copied_with_its_containers_and_what_can_not_be_saved_is_named():
    state = {"a": (torch.ones(2), [1, None]), 3: deque([torch.zeros(1), b"x"], maxlen=4), "kind": torch.float16}
    copied = map_state(torch.clone, state)
    assert unsavable_type(state) is None
    assert copied["a"][1] == [1, None] and copied["a"][1] is not state["a"][1]
    assert torch.equal(copied["a"][0], state["a"][0]) and copied["a"][0] is not state["a"][0]
    assert type(copied[3]) is deque and copied[3].maxlen == 4
    assert unsavable_type({"a": [deque([{1}])]}) == "set"
    assert unsavable_type({torch: 1}) == "module"
