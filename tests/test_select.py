"""Selectors: what they match, what matches nothing, and names without wrappers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker


def model():
    net = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "head": nn.Linear(2, 2)})
    net["tied"] = nn.Linear(2, 2)
    net["tied"].weight = net["head"].weight
    return net


NAMES = [
    *("body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"),
    *("head.weight", "head.bias", "tied.bias"),
]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("*", NAMES),
        ("body", NAMES[:4]),
        ("body.1", NAMES[2:4]),
        ("*.bias", ["body.0.bias", "body.1.bias", "head.bias", "tied.bias"]),
        ("b*", NAMES[:4]),
        ("body.?.weight", ["body.0.weight", "body.1.weight"]),
        ("tied.weight", ["head.weight"]),  # a tied parameter is also found by its other names
        ("tied", ["head.weight", "tied.bias"]),
        (["head", "body.0"], ["body.0.weight", "body.0.bias", "head.weight", "head.bias"]),
    ],
)
def test_names_and_globs_select_in_the_order_of_the_model(selector, expected):
    assert list(stoker.select(model(), selector)) == expected


def test_modules_and_parameters_are_selectors():
    net = model()
    assert list(stoker.select(net, net["body"][1])) == NAMES[2:4]
    assert list(stoker.select(net, [net["tied"], net["body"][0].bias])) == ["body.0.bias", "head.weight", "tied.bias"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["body", "body.0", "*.bias", "head", "tied.weight"]), min_size=1, max_size=3))
def test_a_list_selects_the_union_and_unfreeze_reverts_freeze(selectors):
    net = model()
    expected = set().union(*(stoker.select(net, each) for each in selectors))
    assert set(stoker.select(net, selectors)) == expected
    assert stoker.freeze(net, *selectors) is net
    frozen = {name for name, each in stoker.select(net, "*").items() if not each.requires_grad}
    assert frozen == expected
    stoker.unfreeze(net, *selectors)
    assert all(each.requires_grad for each in net.parameters())


@pytest.mark.parametrize("nothing", [[], (), ["0", []]], ids=str)
def test_an_empty_list_is_an_error(nothing):
    net = nn.Sequential(nn.Linear(2, 1))
    for function in (stoker.select, stoker.freeze):
        with pytest.raises(stoker.NoSuchParameter, match=r"an empty list selects no parameter; use '\*' for all"):
            function(net, nothing)
    assert all(each.requires_grad for each in net.parameters())
    grads = stoker.backward(net(torch.ones(1, 2)).sum(), net)
    with pytest.raises(stoker.NoSuchParameter, match="an empty list selects no parameter"):
        grads.take(nothing)
    assert len(grads) == 2


def test_what_matches_nothing_is_an_error_with_a_hint():
    net = model()
    with pytest.raises(stoker.NoSuchParameter, match="'bdoy' matches no parameter; did you mean 'body'"):
        stoker.select(net, "bdoy")
    with pytest.raises(stoker.NoSuchParameter, match=r"'zzz' matches no parameter; the parameters are: body\.0\.weigh"):
        stoker.select(net, "zzz")
    with pytest.raises(stoker.NoSuchParameter, match="the module ReLU matches no parameter: it is not part"):
        stoker.select(net, nn.ReLU())
    with pytest.raises(stoker.WrongType, match="a selector is a name, a glob, a module, a parameter, .*; got int"):
        stoker.select(net, 3)
    with pytest.raises(stoker.WrongType, match=r"expected a torch\.nn\.Module, .*; got int"):
        stoker.select([net, 3], "*")


def test_wrappers_do_not_change_names():
    net = nn.ModuleDict({"body": nn.DataParallel(nn.Linear(2, 1)), "module": nn.Linear(1, 1)})
    expected = ["body.weight", "body.bias", "module.weight", "module.bias"]
    assert list(stoker.select(net, "*")) == expected
    assert list(stoker.select({"a": net, "b": nn.Linear(1, 1)}, "*")) == [
        *(f"a.{name}" for name in expected),
        "b.weight",
        "b.bias",
    ]
    assert list(stoker.select([nn.Linear(1, 1), nn.Linear(1, 1)], "1")) == ["1.weight", "1.bias"]
