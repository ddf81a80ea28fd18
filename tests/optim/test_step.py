"""One step from gradients and learning rates: of parts of a model, by selectors, with several algorithms."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import stoker
from stoker import backward, optim
from tests.optim.models import equal, grads_of, net


def test_a_step_with_some_gradients_leaves_other_parameters_and_their_state_unchanged():
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


@pytest.mark.parametrize("config", [optim.SGD(momentum=0.9, dampening=0.1), optim.Adam()], ids=str)
def test_stepping_parts_one_after_another_equals_one_step(config):
    whole, parts = net(), net()
    one, many = config.init(whole), config.init(parts)
    for update in range(3):
        one.step(grads_of(whole, update), lr=0.1)
        grads = grads_of(parts, update)
        for part in ("base", "classifier", "embed"):
            many.step(grads.take(part), lr=0.1)
    assert equal(whole, parts)


def test_momentum_starts_from_the_first_gradient_of_each_parameter():
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


def test_learning_rates_by_module_and_parameter():
    model, reference = net(), net()
    optim.SGD().init(model).step(grads_of(model), lr={model.classifier: 0.1, model.embed.bias: 0.0, "*": 0.2})
    optim.SGD().init(reference).step(grads_of(reference), lr={"classifier": 0.1, "embed.bias": 0.0, "*": 0.2})
    assert equal(model, reference) and torch.equal(model.embed.bias, net().embed.bias)


def test_a_mapping_of_selectors_to_configs_equals_several_torch_optimizers():
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


def test_selectors_that_match_nothing_or_leave_parameters_out_raise():
    model = net()
    optimizer = optim.SGD().init(model)
    grads = grads_of(model)
    with pytest.raises(stoker.NoSuchParameter, match="'clasifier' matches no parameter; did you mean 'classifier'"):
        optimizer.step(grads, lr={"clasifier": 0.1, "*": 0.2})
    with pytest.raises(stoker.UnmatchedParameter, match=r"{'classifier'} matches embed.weight.*add '\*'"):
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
        ("0.1", stoker.WrongType, "a number or a 0-d tensor, got str"),
        (True, stoker.WrongType, "got bool"),
        (torch.ones(2), stoker.InvalidArgument, r"one number, got a tensor of shape \[2\]"),
        (lambda update: 0.1, stoker.WrongType, r"call a schedule first: lr=schedule\(update\)"),
        ({"*": -1.0}, stoker.InvalidArgument, "got -1.0"),
    ],
)
def test_an_invalid_learning_rate_raises_and_consumes_nothing(lr, error, text):
    model = net()
    grads = grads_of(model)
    with pytest.raises(error, match=text):
        optim.SGD().init(model).step(grads, lr=lr)
    assert len(grads) == 6 and equal(model, net())


def test_gradients_of_another_model_raise():
    model, other = net(), net()
    grads = grads_of(other)
    with pytest.raises(
        stoker.NoSuchParameter, match="was not made for the parameters of these gradients: embed.weight"
    ):
        optim.SGD().init(model).step(grads, lr=0.1)
    with pytest.raises(stoker.WrongType, match="step takes Gradients, got dict"):
        optim.SGD().init(model).step({}, lr=0.1)
    assert len(grads) == 6


@pytest.mark.parametrize("config", [optim.SGD(), optim.Adam(fused=True), optim.wrap(torch.optim.SGD)], ids=str)
def test_the_learning_rate_can_be_a_numpy_number(config):
    model, reference = net(), net()
    optim.init(config, model).step(grads_of(model), lr=np.float32(0.125))
    optim.init(config, reference).step(grads_of(reference), lr=0.125)
    assert equal(model, reference)


def test_parameters_unfrozen_later_start_with_new_state():
    model = stoker.freeze(net(), "embed")
    optimizer = optim.Adam().init(model)
    optimizer.step(grads_of(model), lr=0.1)
    stoker.unfreeze(model, "embed")
    optimizer.step(grads_of(model), lr=0.1)
    state = optimizer.state_dict()["rules"][0]["state"]
    assert state["embed.weight"]["step"] == 1 and state["base.weight"]["step"] == 2


def test_a_step_does_not_touch_grad():
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


def test_the_repr_shows_the_configs():
    assert repr(optim.SGD(momentum=0.9).init(net())) == "SGD(momentum=0.9)"
    assert (
        repr(optim.init({"classifier": optim.SGD(), "*": optim.AdamW()}, net()))
        == "{'classifier': SGD(), '*': AdamW()}"
    )


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
@pytest.mark.parametrize(
    "config",
    [optim.AdamW(), optim.SGD(momentum=0.9), optim.SGD(momentum=0.9, nesterov=True, fused=True), optim.Adafactor()],
    ids=str,
)
def test_a_step_happens_only_if_when_is_true(config, lr):
    model, reference = net(), net()
    optimizer, plain = config.init(model), config.init(reference)
    for update, when in enumerate([False, True, False, False, True]):
        optimizer.step(grads_of(model, update), lr=lr, when=torch.tensor(when))
        if when:
            plain.step(grads_of(reference, update), lr=lr)
        assert equal(model, reference)
    with pytest.raises(stoker.InvalidArgument, match=r"wrap\(SGD\) cannot skip a step on the device: omit when="):
        optim.wrap(torch.optim.SGD).init(model).step(grads_of(model), lr=0.1, when=torch.tensor(True))


def test_set_state_tensors_restores_tensors_and_drops_state_created_since():
    model = net()
    optimizer = optim.Adam().init(model)
    optimizer.step(grads_of(model).take("base"), lr=0.1)
    before = [{name: dict(state) for name, state in rule.items()} for rule in optimizer.state_tensors()]
    optimizer.step(grads_of(model), lr=0.1)
    assert set(optimizer.state_tensors()[0]) == {name for name, _ in model.named_parameters()}
    optimizer.set_state_tensors(before)
    assert set(optimizer.state_tensors()[0]) == {"base.weight", "base.bias"}
    for name, state in optimizer.state_tensors()[0].items():
        assert all(state[key] is before[0][name][key] for key in state), "written in place"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda model: optim.Adam, r"is the class Adam: write optim.Adam\(\)$"),
        (lambda model: "adamw", r"is the name 'adamw', not a config: write optim.AdamW\(\)$"),
        (lambda model: "adm", "is the name 'adm', not a config; did you mean 'adam'"),
        (lambda model: torch.optim.Adam, r"is the class Adam: write optim.Adam\(\)$"),
        (lambda model: torch.optim.SparseAdam, r"is the class SparseAdam: write optim.wrap\(SparseAdam\)$"),
        (
            lambda model: torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.8, 0.9)),
            r"is an optimizer with its own .*: write optim.AdamW\(betas=\(0.8, 0.9\)\) and lr=0.0003",
        ),
        (
            lambda model: torch.optim.LBFGS(model.parameters(), max_iter=3),
            r"is an optimizer with its own .*: write optim.wrap\(LBFGS, max_iter=3, max_eval=3\) and lr=1",
        ),
        (lambda model: 5, r"is int; expected a config such as optim.Adam\(\)"),
    ],
)
def test_the_error_for_anything_but_a_config_says_what_to_write(given, text):
    model = net()
    with pytest.raises(stoker.WrongType, match=f"the optimizer {text}"):
        optim.init(given(model), model)
    with pytest.raises(stoker.WrongType, match=f"the optimizer for 'embed' {text}"):
        stoker.Learner(model, loss=nn.MSELoss(), optimizer={"embed": given(model), "*": optim.SGD()}).fit(
            (torch.ones(4, 4), torch.ones(4, 3)), epochs=1
        )
