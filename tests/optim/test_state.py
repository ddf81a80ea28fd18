"""The state of an optimizer: by parameter name, as tensors and plain values, saved and loaded exactly."""

import copy
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import backward, optim
from tests.optim.models import equal, grads_of, net


@pytest.mark.parametrize(
    "config",
    [
        optim.Adam(amsgrad=True),
        optim.SGD(momentum=0.9),
        optim.SGD(),
        optim.Adafactor(),
        optim.ASGD(t0=2),
        optim.wrap(torch.optim.AdamW, weight_decay=0.1),
        {"classifier": optim.SGD(momentum=0.9), "*": optim.wrap(torch.optim.RMSprop)},
    ],
    ids=str,
)
def test_training_continues_from_a_saved_state_to_the_same_bits(config):
    model = net()
    optimizer = optim.init(config, model)
    for update in range(3):
        optimizer.step(grads_of(model, update), lr=0.05)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    for update in range(3, 6):
        optimizer.step(grads_of(model, update), lr=0.05)

    resumed = net()
    resumed.load_state_dict(weights)
    again = optim.init(config, resumed)
    again.load_state_dict(saved)
    for update in range(3, 6):
        again.step(grads_of(resumed, update), lr=0.05)
    assert equal(model, resumed)


def leaves(value, found=None):
    found = [] if found is None else found
    if isinstance(value, dict):
        for key, each in value.items():
            leaves(key, found), leaves(each, found)
    elif isinstance(value, list):
        for each in value:
            leaves(each, found)
    else:
        found.append(value)
    return found


@pytest.mark.parametrize("config", [optim.Adam(), optim.wrap(torch.optim.AdamW), optim.SGD(momentum=0.9)], ids=str)
def test_a_state_has_only_tensors_and_plain_values(config):
    model = net()
    optimizer = optim.init(config, model)
    optimizer.step(grads_of(model), lr=0.1)
    values = leaves(optimizer.state_dict())
    assert {type(value) for value in values} <= {torch.Tensor, str, int, float, bool, type(None)}
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def test_loading_copies_the_state():
    model = net()
    optimizer = optim.Adam().init(model)
    optimizer.step(grads_of(model), lr=0.1)
    state = optimizer.state_dict()
    before = state["rules"][0]["state"]["base.weight"]["exp_avg"].clone()
    other = optim.Adam().init(model)
    other.load_state_dict(state)
    other.step(grads_of(model), lr=0.1)
    assert torch.equal(before, state["rules"][0]["state"]["base.weight"]["exp_avg"])


def test_the_error_for_a_state_of_another_model_lists_the_differences():
    model = net()
    optimizer = optim.Adam().init(model)
    optimizer.step(grads_of(model), lr=0.1)
    state = optimizer.state_dict()

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.base, self.clasifier = nn.Linear(4, 8), nn.Linear(8, 9), nn.Linear(9, 3)

    with pytest.raises(stoker.StateMismatch) as caught:
        optim.Adam().init(Other()).load_state_dict(state)
    text = str(caught.value)
    assert "classifier.weight: in the saved state, not in the model; did you mean 'clasifier.weight'?" in text
    assert "clasifier.bias: in the model, not in the saved state; did you mean 'classifier.bias'?" in text
    assert "base.weight: shape [8, 8] in the saved state, [9, 8] in the model" in text
    assert "embed" not in text
    with pytest.raises(stoker.StateMismatch, match="the saved state is of Adam, this optimizer is SGD"):
        optim.SGD().init(model).load_state_dict(state)
    with pytest.raises(stoker.StateMismatch, match="Adam with these settings has .*max_exp_avg_sq"):
        optim.Adam(amsgrad=True).init(model).load_state_dict(state)
    with pytest.raises(stoker.StateMismatch, match="it is not the state of an optimizer"):
        optimizer.load_state_dict({"state": {}})


def trained(config):
    model = net()
    optimizer = optim.init(config, model)
    optimizer.step(grads_of(model), lr=0.1)
    return model, optimizer


SEVERAL = {"embed": optim.Adam(), "base": optim.wrap(torch.optim.Adam), "*": optim.SGD(momentum=0.9)}


def damage(state, rule, change):
    state = copy.deepcopy(state)
    change(state["rules"][rule]["state"])
    return state


@pytest.mark.parametrize(
    ("rule", "change", "text"),
    [
        (
            0,
            lambda s: s["embed.weight"].update(exp_avg=torch.zeros(5)),
            r"embed.weight: exp_avg has shape \[5\] in the saved",
        ),
        (
            0,
            lambda s: s["embed.weight"].update(exp_avg=3),
            "embed.weight: exp_avg is int in the saved state, expected a tensor",
        ),
        (
            0,
            lambda s: s["embed.bias"].update(exp_avg=torch.zeros(8, dtype=torch.int64)),
            "exp_avg is int64 in the saved state, float32 here",
        ),
        (0, lambda s: s["embed.bias"].pop("step"), r"embed.bias: has \['exp_avg', 'exp_avg_sq'\]; Adam with these"),
        (0, lambda s: s.update({"embed.bias": 3}), "embed.bias: has a int; Adam with these settings has"),
        (
            0,
            lambda s: s.update({"base.bias": s["embed.bias"]}),
            "base.bias: Adam updates it in the saved state, not here",
        ),
        (0, lambda s: s.update({"other": s["embed.bias"]}), "other: Adam updates it in the saved state, not here"),
        (
            1,
            lambda s: s["groups"][0]["names"].pop(),
            r"base.bias: wrap\(Adam\) updates it here, not in the saved state",
        ),
        (
            1,
            lambda s: s["groups"][0]["names"].append("embed.bias"),
            "embed.bias: .* updates it in the saved state, not here",
        ),
        (1, lambda s: s["groups"].append(s["groups"][0]), "base.bias: in two groups"),
        (1, lambda s: s["groups"][0].pop("names"), "has a group without 'names'"),
        (1, lambda s: s.pop("groups"), r"the state of wrap\(Adam\) has no 'groups' or no 'state'"),
        (1, lambda s: s["state"].update({"embed.bias": {}}), "embed.bias: has a state but is in no group of wrap"),
        (1, lambda s: s["state"].update({"base.bias": 3}), r"wrap\(Adam\) cannot load this state: "),
        (
            2,
            lambda s: s["classifier.bias"].update(momentum_buffer=torch.zeros(4)),
            r"classifier.bias: momentum_buffer has shape \[4\] in the saved state, \[3\] here",
        ),
    ],
)
def test_loading_a_damaged_state_raises_and_changes_nothing(rule, change, text):
    _, optimizer = trained(SEVERAL)
    model, other = trained(SEVERAL)
    for update in range(2):
        other.step(grads_of(model, update), lr=0.1)
    saved = damage(other.state_dict(), rule, change)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(stoker.StateMismatch, match=f"(?s)this state does not fit the optimizer:\n  .*{text}"):
        optimizer.load_state_dict(saved)
    for a, b in zip(leaves(before), leaves(optimizer.state_dict()), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize(
    "state",
    [None, [], {"parameters": 1, "rules": []}, {"parameters": {}, "rules": [{}]}, {"parameters": {}, "rules": {}}],
    ids=str,
)
def test_loading_something_else_raises(state):
    with pytest.raises(stoker.StateMismatch, match="it is not the state of an optimizer"):
        optim.Adam().init(net()).load_state_dict(state)


def test_loading_a_state_with_other_selectors_raises():
    _, optimizer = trained({"embed": optim.Adam(), "*": optim.Adam()})
    _, other = trained({"base": optim.Adam(), "*": optim.Adam()})
    with pytest.raises(stoker.StateMismatch) as caught:
        other.load_state_dict(optimizer.state_dict())
    for name in ("embed.weight", "embed.bias", "base.weight", "base.bias"):
        assert f"{name}: Adam updates it in the saved state, not here" in str(caught.value)
    assert "classifier" not in str(caught.value)


def test_a_state_of_another_dtype_is_converted():
    model = net().double()
    optimizer = optim.init({"base": optim.SGD(momentum=0.9), "*": optim.Adam()}, model)
    grads = backward(model(torch.ones(2, 4, dtype=torch.float64)).square().mean(), model)
    optimizer.step(grads, lr=0.1)
    single = net()
    again = optim.init({"base": optim.SGD(momentum=0.9), "*": optim.Adam()}, single)
    again.load_state_dict(optimizer.state_dict())
    again.step(grads_of(single), lr=0.1)
    for rule in again.state_dict()["rules"]:
        assert all(value.dtype == torch.float32 for kept in rule["state"].values() for value in kept.values())


@pytest.mark.parametrize("config", [optim.Adam(), optim.SGD(momentum=0.9), SEVERAL], ids=["Adam", "SGD", "several"])
def test_a_deep_copy_of_model_and_optimizer_is_independent(config):
    model, optimizer = trained(config)
    other, copied = copy.deepcopy((model, optimizer))
    for update in range(3):
        optimizer.step(grads_of(model, update), lr={model.base: 0.1, "*": 0.2})
    assert equal(other, trained(config)[0])
    for update in range(3):
        copied.step(grads_of(other, update), lr={other.base: 0.1, "*": 0.2})
    assert equal(model, other)
    with pytest.raises(
        stoker.NoSuchParameter, match="was not made for the parameters of these gradients: embed.weight"
    ):
        copied.step(grads_of(model), lr=0.1)


VALUES = st.recursive(
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
        | st.just({"__kind__": "tuple", "items": [1]})
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_settings_of_many_types_are_saved_as_plain_values_and_restored(value):
    model = nn.Linear(1, 1)
    created = []

    class Probe(torch.optim.SGD):
        def __init__(self, params, setting=None):
            super().__init__(params)
            created.append(self)
            self.param_groups[0]["setting"] = setting

    state = optim.wrap(Probe, setting=value).init(model).state_dict()
    saved = state["rules"][0]["state"]["groups"][0]["setting"]
    assert {type(each) for each in leaves(saved)} <= {str, int, float, bool, type(None)}
    optim.wrap(Probe).init(model).load_state_dict(state)
    restored = created[-1].param_groups[0]["setting"]
    assert restored == value and type(restored) is type(value)


@pytest.mark.parametrize(
    "value", [{"__kind__": "module", "items": "os"}, {"__kind__": "dtype", "items": "nn"}], ids=str
)
def test_unknown_types_in_a_saved_state_raise(value):
    model = net()
    optimizer = optim.wrap(torch.optim.SGD).init(model)
    state = optimizer.state_dict()
    state["rules"][0]["state"]["state"]["base.bias"] = {"momentum_buffer": value}
    with pytest.raises(stoker.StateMismatch, match="a value of the unknown kind"):
        optimizer.load_state_dict(state)
