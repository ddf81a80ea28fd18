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

SEVERAL = {"embed": optim.Adam(), "base": optim.wrap(torch.optim.Adam), "*": optim.SGD(momentum=0.9)}
PLAIN = {str, int, float, bool, type(None), torch.dtype}


def trained(config, updates=1):
    model = net()
    optimizer = optim.init(config, model)
    for update in range(updates):
        optimizer.step(grads_of(model, update), lr=0.05)
    return model, optimizer


def leaves(value):
    if isinstance(value, dict):
        return [each for item in value.items() for part in item for each in leaves(part)]
    if isinstance(value, list | tuple | deque):
        return [each for part in value for each in leaves(part)]
    return [value]


@pytest.mark.parametrize(
    "config",
    [
        optim.Adam(amsgrad=True),
        optim.SGD(momentum=0.9),
        optim.SGD(),
        optim.Adafactor(),
        optim.ASGD(t0=2),
        optim.wrap(torch.optim.AdamW, weight_decay=0.1),
        SEVERAL,
    ],
    ids=str,
)
def test_training_continues_from_a_saved_state_to_the_same_bits(config):
    model, optimizer = trained(config, updates=3)
    state, resumed = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model)
    values = leaves(state)
    assert {type(value) for value in values} <= {torch.Tensor, *PLAIN}
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
    again = optim.init(config, resumed)
    again.load_state_dict(state)
    loaded = copy.deepcopy(leaves(state))
    for update in range(3, 6):
        optimizer.step(grads_of(model, update), lr=0.05)
        again.step(grads_of(resumed, update), lr=0.05)
    assert equal(model, resumed)
    for a, b in zip(leaves(state), loaded, strict=True):  # loading copies
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_the_error_for_a_state_of_another_model_lists_the_differences():
    model, optimizer = trained(optim.Adam())
    state = optimizer.state_dict()
    other = nn.ModuleDict({"embed": nn.Linear(4, 8), "base": nn.Linear(8, 9), "clasifier": nn.Linear(9, 3)})
    with pytest.raises(stoker.StateMismatch) as caught:
        optim.Adam().init(other).load_state_dict(state)
    text = str(caught.value)
    assert "classifier.weight: in the saved state, not in the model; did you mean 'clasifier.weight'?" in text
    assert "clasifier.bias: in the model, not in the saved state; did you mean 'classifier.bias'?" in text
    assert "base.weight: shape [8, 8] in the saved state, [9, 8] in the model" in text
    assert "embed" not in text
    with pytest.raises(stoker.StateMismatch, match="the saved state is of Adam, this optimizer is SGD"):
        optim.SGD().init(model).load_state_dict(state)
    with pytest.raises(stoker.StateMismatch, match="Adam with these settings has .*max_exp_avg_sq"):
        optim.Adam(amsgrad=True).init(model).load_state_dict(state)


@pytest.mark.parametrize(
    ("rule", "change", "text"),
    [
        (0, lambda s: s["embed.weight"].update(exp_avg=torch.zeros(5)), r"exp_avg is torch.float32 \[5\] in the saved"),
        (
            0,
            lambda s: s["embed.weight"].update(exp_avg=3),
            "exp_avg is int in the saved state, torch.float32",
        ),
        (
            0,
            lambda s: s["embed.bias"].update(exp_avg=torch.zeros(8, dtype=torch.int64)),
            r"embed.bias: exp_avg is torch.int64 \[8\] in the saved state, torch.float32 \[8\] here",
        ),
        (0, lambda s: s["embed.bias"].update(step=torch.tensor(3)), "step is torch.int64"),
        (0, lambda s: s["embed.bias"].update(step=torch.tensor(True)), "step is torch.bool"),
        (0, lambda s: s["embed.bias"].pop("step"), r"embed.bias: has \['exp_avg', 'exp_avg_sq'\]; Adam with these"),
        (0, lambda s: s.update({"base.bias": s["embed.bias"]}), "base.bias: Adam updates it in the saved state, not"),
        (1, lambda s: s["groups"][0]["names"].append("base.bias"), "base.bias: listed twice in the saved state"),
        (1, lambda s: s["groups"].append(dict(s["groups"][0])), "base.weight: listed twice in the saved state"),
        (1, lambda s: s["groups"][0]["names"].pop(), r"base.bias: wrap\(Adam\) updates it here, not in the saved"),
        (1, lambda s: s["groups"][0]["names"].append("embed.bias"), "embed.bias: .* updates it in the saved state"),
        (1, lambda s: s.pop("groups"), r"wrap\(Adam\) cannot load this state: KeyError: 'groups'"),
        (1, lambda s: s["state"].update({"embed.bias": {}}), r"wrap\(Adam\) cannot load this state: KeyError: 'embed"),
        (1, lambda s: s["state"].update({"base.bias": 3}), r"wrap\(Adam\) cannot load this state: "),
        (2, lambda s: s["classifier.bias"].update(momentum_buffer=torch.zeros(4)), r"\[4\] in the saved .*\[3\] here"),
    ],
)
def test_loading_a_damaged_state_raises_and_changes_nothing(rule, change, text):
    _, optimizer = trained(SEVERAL)
    before = copy.deepcopy(optimizer.state_dict())
    state = copy.deepcopy(trained(SEVERAL, updates=3)[1].state_dict())
    change(state["rules"][rule]["state"])
    with pytest.raises(stoker.StateMismatch, match=f"(?s)this state does not fit the optimizer:\n  .*{text}"):
        optimizer.load_state_dict(state)
    for a, b in zip(leaves(before), leaves(optimizer.state_dict()), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("state", [None, {"state": {}}, {"parameters": 1, "rules": []}], ids=str)
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
    config = {"base": optim.SGD(momentum=0.9), "*": optim.Adam()}
    model, single = net().double(), net()
    optimizer, again = optim.init(config, model), optim.init(config, single)
    optimizer.step(backward(model(torch.ones(2, 4, dtype=torch.float64)).square().mean(), model), lr=0.1)
    again.load_state_dict(optimizer.state_dict())
    again.step(grads_of(single), lr=0.1)
    tensors = [each for each in leaves(again.state_dict()["rules"]) if isinstance(each, torch.Tensor)]
    assert len(tensors) > 6 and all(each.dtype == torch.float32 for each in tensors)


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
    with pytest.raises(stoker.NoSuchParameter, match="was not made for the parameters of these gradients: embed.weig"):
        copied.step(grads_of(model), lr=0.1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.just(torch.float16),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.lists(inner).map(lambda items: deque(items, maxlen=9))
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(VALUES)
def test_settings_of_many_types_are_saved_and_restored(value):
    model = nn.Linear(1, 1)
    created = []

    class Probe(torch.optim.SGD):
        def __init__(self, params, setting=None):
            super().__init__(params)
            created.append(self)
            self.param_groups[0]["setting"] = setting

    state = optim.wrap(Probe, setting=value).init(model).state_dict()
    assert {type(each) for each in leaves(state["rules"])} <= PLAIN
    optim.wrap(Probe).init(model).load_state_dict(state)
    restored = created[-1].param_groups[0]["setting"]
    assert restored == value and type(restored) is type(value)
