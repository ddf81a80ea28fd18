import pytest
import torch
from torch import nn

from stoker.errors import InvalidArgument, NoSuchParameter, WrongType
from stoker.weights import load
from stoker.weights._rename import renamed


@pytest.mark.parametrize(("rules", "expected"), [
    ({"a": "b"}, ["b.0.w", "b.0.v", "ab.w"]),
    ({"a": ""}, ["0.w", "0.v", "ab.w"]),
    ({"*": "net.*"}, ["net.a.0.w", "net.a.0.v", "net.ab.w"]),
    ({"*.w": "*.weight"}, ["a.0.weight", "a.0.v", "ab.weight"]),
    ({"a.*.w": "x.*.y"}, ["x.0.y", "a.0.v", "ab.w"]),
    ({"a.*": "*"}, ["0.w", "0.v", "ab.w"]),
    ({"a.0.w": "first", "a": "rest"}, ["first", "rest.0.v", "ab.w"]),
    ({"*.*.w": "*-*"}, ["a-0", "a.0.v", "ab.w"]),
    ({"ab": None}, ["a.0.w", "a.0.v"]),
    (str.upper, ["A.0.W", "A.0.V", "AB.W"]),
    (lambda name: name if name.startswith("ab") else None, ["ab.w"]),
    (None, ["a.0.w", "a.0.v", "ab.w"]),
])  # fmt: skip
def test_names_are_changed_by_mapping_pattern_or_function(rules, expected):
    assert list(renamed(["a.0.w", "a.0.v", "ab.w"], rules).values()) == expected


def test_what_is_wrong_with_a_rule_is_said():
    names = ["body.weight", "body.bias"]
    with pytest.raises(NoSuchParameter, match=r"rename: 'bodi' matches no name in the file; did you mean 'body'"):
        renamed(names, {"bodi": "x"})
    with pytest.raises(InvalidArgument, match=r"makes 'x' of both 'body.weight' and 'body.bias'"):
        renamed(names, lambda name: "x")
    with pytest.raises(InvalidArgument, match=r"'\*\.x\.\*' has more '\*' than 'body\.\*'"):
        renamed(names, {"body.*": "*.x.*"})
    with pytest.raises(WrongType, match=r"rename is a mapping of names or globs, or a function; got int"):
        renamed(names, 3)
    with pytest.raises(WrongType, match=r"names by names; got 'body': 3"):
        renamed(names, {"body": 3})
    with pytest.raises(WrongType, match=r"rename made 3 of 'body.weight'"):
        renamed(names, lambda name: 3)


def test_a_swap_is_a_swap():
    model = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    load(model, {"a.weight": torch.ones(1, 1), "b.weight": torch.zeros(1, 1)}, rename={"a": "b", "b": "a"})
    assert (model["a"].weight.item(), model["b"].weight.item()) == (0, 1)
