"""One step from gradients and a learning rate: parts, rates by name, several algorithms, and state by name."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import backward, optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.base, self.classifier = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.classifier(self.base(self.embed(x).tanh()).tanh())


def net():
    torch.manual_seed(0)
    return Net()


def grads_of(model, seed=1):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
    return backward(model(x).square().mean(), model)


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_a_step_with_a_part_leaves_the_rest_and_its_state_alone():
    model = net()
    optimizer = optim.Adam().init(model)
    optimizer.step(grads_of(model), lr=0.1)
    before = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(optimizer.state_dict()["rules"][0]["state"])
    optimizer.step(grads_of(model).take("base"), lr=0.1)
    after, later = model.state_dict(), optimizer.state_dict()["rules"][0]["state"]
    for name in before:
        touched = name.startswith("base")
        assert torch.equal(before[name], after[name]) != touched
        assert (state[name]["step"] == later[name]["step"]) != touched
        assert torch.equal(state[name]["exp_avg"], later[name]["exp_avg"]) != touched


@settings(max_examples=25, deadline=None)
@given(order=st.permutations(["embed", "base", "classifier"]), momentum=st.sampled_from([0.0, 0.9]))
def test_steps_in_parts_are_one_step(order, momentum):
    """Also where a part's momentum starts at another update than the others'."""
    for make in (lambda: optim.SGD(momentum=momentum, dampening=0.1), optim.Adam):
        whole, parts = net(), net()
        one, many = make().init(whole), make().init(parts)
        for update in range(3):
            one.step(grads_of(whole, update), lr=0.1)
            grads = grads_of(parts, update)
            for part in order:
                many.step(grads.take(part), lr=0.1)
        assert equal(whole, parts)


def test_momentum_that_starts_late():
    """The first gradient of a parameter becomes its momentum, whenever it comes: torch's rule for each parameter."""
    model, theirs = net(), net()
    optimizer = optim.SGD(momentum=0.9, dampening=0.5).init(model)
    native = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, dampening=0.5)
    for update, names in enumerate(["base", "base", "*", "embed", "*"]):
        optimizer.step(grads_of(model, update).take(names), lr=0.1)
        grads = grads_of(theirs, update).take(names)
        native.zero_grad()
        for name, parameter in theirs.named_parameters():
            parameter.grad = grads.get(name)
        native.step()
        assert equal(model, theirs)


def test_learning_rates_by_name_are_parameter_groups():
    model, theirs = net(), net()
    optimizer = optim.AdamW().init(model)
    biases = [p for n, p in theirs.named_parameters() if n.endswith("bias")]
    head = [theirs.classifier.weight]
    rest = [theirs.embed.weight, theirs.base.weight]
    native = torch.optim.AdamW([{"params": biases}, {"params": head}, {"params": rest}])
    for update in range(5):
        rates = [1e-3, 1e-2, 0.1 / (update + 1)]
        optimizer.step(grads_of(model, update), lr=dict(zip(["*.bias", "classifier", "*"], rates, strict=True)))
        for group, lr in zip(native.param_groups, rates, strict=True):
            group["lr"] = lr
        native.zero_grad()
        theirs(torch.randn(6, 4, generator=torch.Generator().manual_seed(update))).square().mean().backward()
        native.step()
        assert equal(model, theirs)


def test_learning_rates_by_module_and_parameter():
    model, twin = net(), net()
    optim.SGD().init(model).step(grads_of(model), lr={model.classifier: 0.1, model.embed.bias: 0.0, "*": 0.2})
    optim.SGD().init(twin).step(grads_of(twin), lr={"classifier": 0.1, "embed.bias": 0.0, "*": 0.2})
    assert equal(model, twin) and torch.equal(model.embed.bias, net().embed.bias)


def test_a_mapping_of_selectors_to_configs_is_an_optimizer():
    model, theirs = net(), net()
    optimizer = optim.init({"classifier": optim.SGD(momentum=0.9), "*": optim.AdamW()}, model)
    sgd = torch.optim.SGD(theirs.classifier.parameters(), lr=0.1, momentum=0.9)
    adamw = torch.optim.AdamW([*theirs.embed.parameters(), *theirs.base.parameters()], lr=0.1)
    for update in range(4):
        optimizer.step(grads_of(model, update), lr=0.1)
        theirs(torch.randn(6, 4, generator=torch.Generator().manual_seed(update))).square().mean().backward()
        for each in (sgd, adamw):
            each.step()
            each.zero_grad()
        assert equal(model, theirs)


def test_selectors_that_choose_nothing_or_leave_something_out():
    model = net()
    optimizer = optim.SGD().init(model)
    grads = grads_of(model)
    with pytest.raises(stoker.NoSuchParameter, match="'clasifier' chooses no parameter; did you mean 'classifier'"):
        optimizer.step(grads, lr={"clasifier": 0.1, "*": 0.2})
    with pytest.raises(stoker.UnmatchedParameter, match=r"no pattern of {'classifier'} matches embed.weight.*add '\*'"):
        optimizer.step(grads, lr={"classifier": 0.1})
    with pytest.raises(stoker.UnmatchedParameter, match="base.weight"):
        optim.init({"embed": optim.SGD(), "classifier": optim.Adam()}, model)
    optim.init({"embed": optim.SGD(), "classifier": optim.Adam()}, stoker.freeze(net(), "base"))
    assert len(grads) == 6


@pytest.mark.parametrize(
    ("lr", "error", "text"),
    [
        (-1.0, stoker.InvalidArgument, "at least 0 and finite, got -1.0"),
        (float("nan"), stoker.InvalidArgument, "got nan"),
        (float("inf"), stoker.InvalidArgument, "got inf"),
        ("0.1", stoker.WrongType, "a number or a 0-d tensor, got str"),
        (True, stoker.WrongType, "got bool"),
        (None, stoker.WrongType, "got NoneType"),
        (torch.ones(2), stoker.InvalidArgument, r"one number, got a tensor of shape \[2\]"),
        (lambda update: 0.1, stoker.WrongType, r"a schedule is asked first: lr=schedule\(update\)"),
        ({"*": -1.0}, stoker.InvalidArgument, "got -1.0"),
    ],
)
def test_learning_rates_that_make_no_sense_lose_nothing(lr, error, text):
    model = net()
    grads = grads_of(model)
    with pytest.raises(error, match=text):
        optim.SGD().init(model).step(grads, lr=lr)
    assert len(grads) == 6 and equal(model, net())


def test_gradients_of_another_model():
    model, other = net(), net()
    grads = grads_of(other)
    with pytest.raises(stoker.NoSuchParameter, match="parameters that this optimizer was not made for: embed.weight"):
        optim.SGD().init(model).step(grads, lr=0.1)
    with pytest.raises(stoker.WrongType, match="step takes Gradients, got dict"):
        optim.SGD().init(model).step({}, lr=0.1)
    assert len(grads) == 6


def test_not_a_config():
    with pytest.raises(
        stoker.WrongType, match=r"the optimizer for '\*' is Adam; expected a config such as optim.Adam\(\)"
    ):
        optim.init(torch.optim.Adam(net().parameters()), net())


@pytest.mark.parametrize(
    "recipe",
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
def test_state_by_name_goes_on_to_the_same_bits(recipe):
    model = net()
    optimizer = optim.init(recipe, model)
    for update in range(3):
        optimizer.step(grads_of(model, update), lr=0.05)
    saved, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    for update in range(3, 6):
        optimizer.step(grads_of(model, update), lr=0.05)

    resumed = Net()
    resumed.load_state_dict(weights)
    again = optim.init(recipe, resumed)
    again.load_state_dict(saved)
    for update in range(3, 6):
        again.step(grads_of(resumed, update), lr=0.05)
    assert equal(model, resumed)


def flat(value, found=None):
    found = [] if found is None else found
    if isinstance(value, dict):
        for key, each in value.items():
            flat(key, found), flat(each, found)
    elif isinstance(value, list):
        for each in value:
            flat(each, found)
    else:
        found.append(value)
    return found


@pytest.mark.parametrize("recipe", [optim.Adam(), optim.wrap(torch.optim.AdamW), optim.SGD(momentum=0.9)], ids=str)
def test_state_is_tensors_and_plain_values(recipe):
    model = net()
    optimizer = optim.init(recipe, model)
    optimizer.step(grads_of(model), lr=0.1)
    values = flat(optimizer.state_dict())
    assert {type(value) for value in values} <= {torch.Tensor, str, int, float, bool, type(None)}
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


def test_a_loaded_state_is_a_copy():
    model = net()
    optimizer = optim.Adam().init(model)
    optimizer.step(grads_of(model), lr=0.1)
    state = optimizer.state_dict()
    before = state["rules"][0]["state"]["base.weight"]["exp_avg"].clone()
    other = optim.Adam().init(model)
    other.load_state_dict(state)
    other.step(grads_of(model), lr=0.1)
    assert torch.equal(before, state["rules"][0]["state"]["base.weight"]["exp_avg"])


def test_a_state_that_does_not_fit_says_exactly_what_differs():
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
    assert "classifier.weight: in the state, not in the model; did you mean 'clasifier.weight'?" in text
    assert "clasifier.bias: in the model, not in the state; did you mean 'classifier.bias'?" in text
    assert "base.weight: shape [8, 8] in the state, [9, 8] in the model" in text
    assert "embed" not in text
    with pytest.raises(stoker.StateMismatch, match="the state is of Adam, this optimizer is SGD"):
        optim.SGD().init(model).load_state_dict(state)
    with pytest.raises(stoker.StateMismatch, match="Adam with these settings keeps .*max_exp_avg_sq"):
        optim.Adam(amsgrad=True).init(model).load_state_dict(state)
    with pytest.raises(stoker.StateMismatch, match="it is no state of an optimizer"):
        optimizer.load_state_dict({"state": {}})


def stepped(recipe):
    model = net()
    optimizer = optim.init(recipe, model)
    optimizer.step(grads_of(model), lr=0.1)
    return model, optimizer


SEVERAL = {"embed": optim.Adam(), "base": optim.wrap(torch.optim.Adam), "*": optim.SGD(momentum=0.9)}


def spoil(state, rule, change):
    state = copy.deepcopy(state)
    change(state["rules"][rule]["state"])
    return state


@pytest.mark.parametrize(
    ("rule", "change", "text"),
    [
        (
            0,
            lambda s: s["embed.weight"].update(exp_avg=torch.zeros(5)),
            r"embed.weight: exp_avg has shape \[5\] in the",
        ),
        (0, lambda s: s["embed.weight"].update(exp_avg=3), "embed.weight: exp_avg is int in the state, not a tensor"),
        (
            0,
            lambda s: s["embed.bias"].update(exp_avg=torch.zeros(8, dtype=torch.int64)),
            "exp_avg is int64 in the state, float32 here",
        ),
        (0, lambda s: s["embed.bias"].pop("step"), r"embed.bias: holds \['exp_avg', 'exp_avg_sq'\]; Adam with these"),
        (0, lambda s: s.update({"embed.bias": 3}), "embed.bias: holds int; Adam with these settings keeps"),
        (0, lambda s: s.update({"base.bias": s["embed.bias"]}), "base.bias: Adam steps it in the state, not here"),
        (0, lambda s: s.update({"other": s["embed.bias"]}), "other: Adam steps it in the state, not here"),
        (1, lambda s: s["groups"][0]["names"].pop(), r"base.bias: wrap\(Adam\) steps it here, not in the state"),
        (1, lambda s: s["groups"][0]["names"].append("embed.bias"), "embed.bias: .* steps it in the state, not here"),
        (1, lambda s: s["groups"].append(s["groups"][0]), "base.bias: in two groups"),
        (1, lambda s: s["groups"][0].pop("names"), "has a group without 'names'"),
        (1, lambda s: s.pop("groups"), r"the state of wrap\(Adam\) has no 'groups' or no 'state'"),
        (1, lambda s: s["state"].update({"embed.bias": {}}), "embed.bias: has a state and is in no group of wrap"),
        (1, lambda s: s["state"].update({"base.bias": 3}), r"wrap\(Adam\) does not take this state: "),
        (
            2,
            lambda s: s["classifier.bias"].update(momentum_buffer=torch.zeros(4)),
            r"classifier.bias: momentum_buffer has shape \[4\] in the state, \[3\] here",
        ),
    ],
)
def test_a_state_that_is_damaged_changes_nothing(rule, change, text):
    _, optimizer = stepped(SEVERAL)
    twin, other = stepped(SEVERAL)
    for update in range(2):
        other.step(grads_of(twin, update), lr=0.1)
    saved = spoil(other.state_dict(), rule, change)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(stoker.StateMismatch, match=f"(?s)this state does not fit the optimizer:\n  .*{text}"):
        optimizer.load_state_dict(saved)
    for a, b in zip(flat(before), flat(optimizer.state_dict()), strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize(
    "state",
    [None, [], {"parameters": 1, "rules": []}, {"parameters": {}, "rules": [{}]}, {"parameters": {}, "rules": {}}],
    ids=str,
)
def test_what_is_no_state_at_all(state):
    with pytest.raises(stoker.StateMismatch, match="it is no state of an optimizer"):
        optim.Adam().init(net()).load_state_dict(state)


def test_rules_that_hold_other_names_are_told_apart():
    """Two algorithms of one kind, with the selectors turned round."""
    _, optimizer = stepped({"embed": optim.Adam(), "*": optim.Adam()})
    _, turned = stepped({"base": optim.Adam(), "*": optim.Adam()})
    with pytest.raises(stoker.StateMismatch) as caught:
        turned.load_state_dict(optimizer.state_dict())
    for name in ("embed.weight", "embed.bias", "base.weight", "base.bias"):
        assert f"{name}: Adam steps it in the state, not here" in str(caught.value)
    assert "classifier" not in str(caught.value)


def test_a_state_of_another_precision_is_brought_into_this_one():
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


@pytest.mark.parametrize("recipe", [optim.Adam(), optim.SGD(momentum=0.9), SEVERAL], ids=["Adam", "SGD", "several"])
def test_a_deep_copy_of_model_and_optimizer_goes_its_own_way(recipe):
    model, optimizer = stepped(recipe)
    other, copied = copy.deepcopy((model, optimizer))
    for update in range(3):
        optimizer.step(grads_of(model, update), lr={model.base: 0.1, "*": 0.2})
    assert equal(other, stepped(recipe)[0])
    for update in range(3):
        copied.step(grads_of(other, update), lr={other.base: 0.1, "*": 0.2})
    assert equal(model, other)
    with pytest.raises(stoker.NoSuchParameter, match="was not made for: embed.weight"):
        copied.step(grads_of(model), lr=0.1)


@pytest.mark.parametrize("lr", [np.float32(0.125), np.float64(0.125), np.float16(0.125)], ids=repr)
@pytest.mark.parametrize("recipe", [optim.SGD(), optim.Adam(fused=True), optim.wrap(torch.optim.SGD)], ids=str)
def test_a_learning_rate_of_numpys(recipe, lr):
    model, twin = net(), net()
    optim.init(recipe, model).step(grads_of(model), lr=lr)
    optim.init(recipe, twin).step(grads_of(twin), lr=0.125)
    assert equal(model, twin)
    with pytest.raises(stoker.InvalidArgument, match="at least 0 and finite"):
        optim.init(recipe, model).step(grads_of(model), lr=-lr)


def test_parameters_unfrozen_later_start_fresh():
    model = stoker.freeze(net(), "embed")
    optimizer = optim.Adam().init(model)
    optimizer.step(grads_of(model), lr=0.1)
    stoker.unfreeze(model, "embed")
    optimizer.step(grads_of(model), lr=0.1)
    state = optimizer.state_dict()["rules"][0]["state"]
    assert state["embed.weight"]["step"] == 1 and state["base.weight"]["step"] == 2


def test_a_step_leaves_grad_alone():
    model = net()
    left = torch.ones_like(model.base.weight)
    model.base.weight.grad = left
    optim.Adam().init(model).step(grads_of(model), lr=0.1)
    assert model.base.weight.grad is left and torch.equal(left, torch.ones_like(left))


def test_a_tied_weight_is_stepped_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    grads = backward(model(torch.ones(1, 4)).sum(), model)
    expected = torch.add(model[0].weight, grads["0.weight"], alpha=-0.1)
    optim.SGD().init(model).step(grads, lr=0.1)
    assert torch.equal(model[0].weight, expected) and model[1].weight is model[0].weight


def test_the_repr_is_the_config():
    assert repr(optim.SGD(momentum=0.9).init(net())).startswith("SGD(momentum=0.9")
    assert "classifier" in repr(optim.init({"classifier": optim.SGD(), "*": optim.Adam()}, net()))
