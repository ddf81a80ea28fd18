"""Nested values taken apart and put together again."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest
import torch

from stoker import data
from stoker.program import copied
from stoker.program._tree import Opaque, taken_apart, together, written_back

Pair = namedtuple("Pair", "one two")


@dataclass
class Output:
    loss: torch.Tensor
    name: str = "a"


VALUES = {
    "tensor": torch.ones(2),
    "dict": {"x": torch.ones(2), "n": 3},
    "nested": {"x": [torch.ones(1), (torch.zeros(2), None)], "y": {"z": torch.ones(3)}},
    "named tuple": Pair(torch.ones(1), 2.0),
    "dataclass": Output(torch.ones(())),
    "ordered": OrderedDict(b=torch.ones(1), a=torch.zeros(1)),
    "empty": {},
    "plain": (1, 1.0, True, "a", b"b", None, torch.float32),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_put_together_as_it_was(name):
    value, tensors = VALUES[name], []
    shape = taken_apart(value, tensors)
    assert repr(together(shape, iter(tensors))) == repr(dict(value) if name == "ordered" else value)
    again = []
    assert taken_apart(together(shape, iter(tensors)), again) == shape
    assert [id(each) for each in again] == [id(each) for each in tensors]


def test_equal_shapes_are_equal_but_for_their_tensors():
    one, two = (taken_apart({"x": torch.randn(2), "n": 3}, []) for _ in range(2))
    assert one == two and hash(one) == hash(two)


@pytest.mark.parametrize(
    ("one", "two"),
    [(1, 1.0), (1, True), (0.0, False), ({"a": 1}, {"b": 1}), ([1], (1,)), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
    ids=["int float", "int bool", "float bool", "names", "containers", "order"],
)
def test_what_python_could_tell_apart_is_another_shape(one, two):
    assert taken_apart(one, []) != taken_apart(two, [])


def test_what_may_hide_tensors_is_refused_by_its_name():
    class Hidden:
        pass

    with pytest.raises(Opaque, match="Hidden"):
        taken_apart({"x": [Hidden()]}, [])


def test_a_pick_has_its_rows_first_and_its_columns_after_them():
    loader = data.Loader((torch.arange(6.0), torch.arange(6)), batch_size=2)
    first, second = list(loader.at(epoch=0).row_selections())[:2]
    tensors = []
    shape = taken_apart(first, tensors)
    assert torch.equal(tensors[0], first.rows) and len(tensors) == 3
    assert shape == taken_apart(second, [])
    other = together(shape, iter([torch.tensor([5, 0]), torch.arange(6.0) * 2, tensors[2]]))
    assert [each.tolist() for each in other.gather()] == [[10.0, 0.0], [5, 0]]


def test_picks_of_other_columns_are_another_kind():
    one, two = (next(data.Loader(torch.arange(6.0), batch_size=2).at(epoch=0).row_selections()) for _ in range(2))
    assert taken_apart(one, []) != taken_apart(two, [])


def test_copies_have_tensors_of_their_own_also_where_a_value_is_opaque():
    class Hidden:
        def __init__(self):
            self.x, self.name = torch.ones(2), "a"

    for value, read in (({"x": torch.ones(2)}, lambda each: each["x"]), (Hidden(), lambda each: each.x)):
        twin = copied(value)
        read(value).zero_()
        assert read(twin).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("other", [lambda tensor: tensor, torch.Tensor.detach], ids=["the same", "a view"])
@pytest.mark.parametrize("turned", [False, True])
def test_what_is_left_under_another_name_is_not_written_over(other, turned):
    """A metric may keep a number of the batch before: what was read as the last one is left as the one before."""
    before, last, new = torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)
    places, left = [before, last], [other(last), new]
    written_back(*(each[::-1] if turned else each for each in (places, left)))
    assert (before.item(), last.item()) == (2, 3)
