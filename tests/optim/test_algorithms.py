"""Every algorithm equals the class of the same name in `torch.optim`, bit for bit, however torch runs it."""

import copy
import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import Gradients, backward, optim
from tests.optim.models import equal

# The settings to try for each algorithm.
SETTINGS = {
    "SGD": [
        {},
        {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "maximize": True},
    ],
    "Adam": [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True, "decoupled_weight_decay": True}],
    "AdamW": [{}, {"amsgrad": True, "betas": (0.5, 0.9)}, {"maximize": True}],
    "Adamax": [{}, {"weight_decay": 0.1, "maximize": True}],
    "NAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.01}],
    "RAdam": [{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}],
    "RMSprop": [{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "alpha": 0.9}],
    "Adagrad": [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.1}],
    "Adadelta": [{}, {"rho": 0.8, "weight_decay": 0.1, "maximize": True}],
    "Adafactor": [{}, {"eps": (1e-8, 1e-2), "d": 2.0, "weight_decay": 0.1}],
    "Rprop": [{}, {"etas": (0.4, 1.3), "step_sizes": (1e-5, 1.0)}],
    "ASGD": [{}, {"t0": 5, "weight_decay": 0.1, "lambd": 1e-2}],
    "Muon": [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}],
}


def cases(names=tuple(SETTINGS)):
    """(name, settings) for every algorithm, its settings, and torch's variants: default, foreach, fused."""
    for name in names:
        known = inspect.signature(getattr(torch.optim, name)).parameters
        variants = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]
        possible = [variant for variant in variants if set(variant) <= set(known)]
        yield from ((name, {**each, **variant}) for each in SETTINGS[name] for variant in possible)


def label(case):
    return " ".join([case[0], *(f"{key}={value}" for key, value in case[1].items())])


def compare(case, model, loss_of, *, steps, lr_of=lambda step: 0.01):
    """Trains with both and asserts that parameters are equal after each step, and the state at the end."""
    name, settings = case
    theirs = copy.deepcopy(model)
    optimizer = getattr(optim, name)(**settings).init(model)
    trained = [each for each in theirs.parameters() if each.requires_grad]
    native = getattr(torch.optim, name)(trained, lr=float(lr_of(0)), **settings)
    for step in range(steps):
        optimizer.step(backward(loss_of(model, step), model), lr=lr_of(step))
        for group in native.param_groups:
            group["lr"] = lr_of(step)
        native.zero_grad()
        loss_of(theirs, step).backward()
        native.step()
        for (key, a), b in zip(model.named_parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b) and a.isfinite().all(), f"step {step}: {key}"
    state = optimizer.state_dict()["rules"][0]["state"]
    for key, parameter in theirs.named_parameters():
        expected = {each: value for each, value in native.state[parameter].items() if value is not None}
        assert set(state.get(key, {})) == set(expected)
        for each, value in expected.items():
            assert torch.equal(state[key][each], value), f"{key}: {each}"


def compare_network(case, *, device="cpu", dtype=torch.float32, steps=12, tensor_lr=False):
    torch.manual_seed(0)
    bias = case[0] != "Muon"  # it is for matrices only
    model = nn.Sequential(nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias)).to(device, dtype)
    inputs = torch.randn(steps, 6, 4, generator=torch.Generator().manual_seed(1)).to(device, dtype)

    def lr_of(step):
        lr = 0.1 if case[0] in ("Rprop", "ASGD") else 0.1 / (step + 1)  # these two start their state from it
        return torch.tensor(lr, device=device) if tensor_lr else lr

    compare(case, model, lambda net, step: net(inputs[step]).square().mean(), steps=steps, lr_of=lr_of)


@pytest.mark.parametrize("case", list(cases()), ids=label)
def test_parameters_and_state_equal_torch(case):
    compare_network(case)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "Muon"])
@settings(max_examples=12)
@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=3),
    missing=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2))),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e4, math.nan]),
    lr=st.sampled_from([0.0, 0.01, 1e3, torch.tensor(0.02)]),
    variant=st.sampled_from([{}, {"foreach": True}, {"maximize": True, "weight_decay": 0.1}]),
)
def test_any_parameters_and_gradients_equal_torch(name, shapes, missing, dtype, scale, lr, variant):
    """Scalars and empty tensors, extreme numbers, NaN, and gradients that come at some steps only."""
    if name == "Adafactor":
        shapes = [tuple(max(1, size) for size in shape) for shape in shapes]  # torch divides by the elements
    known = inspect.signature(getattr(torch.optim, name)).parameters
    options = {key: each for key, each in variant.items() if key in known}
    if isinstance(lr, torch.Tensor) and options.get("foreach"):
        lr = lr.item()
    generator = torch.Generator().manual_seed(0)
    ours = nn.ParameterList(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    theirs = copy.deepcopy(ours)
    optimizer = getattr(optim, name)(**options).init(ours)
    native = getattr(torch.optim, name)(theirs.parameters(), lr=lr, **options)
    for step in range(4):
        tensors = {
            str(number): (torch.randn(shape, generator=generator) * scale).to(dtype)
            for number, shape in enumerate(shapes)
            if (step, number) not in missing
        }
        for number, parameter in enumerate(theirs):
            parameter.grad = tensors[str(number)].clone() if str(number) in tensors else None
        native.step()
        if tensors:
            optimizer.step(Gradients(tensors, ours), lr=lr)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "case", [case for case in cases() if case[0] != "Adagrad" or "fused" not in case[1]], ids=label
)
def test_parameters_and_state_equal_torch_on_a_gpu(case):
    compare_network(case, device="cuda", steps=20)


@pytest.mark.cuda
@pytest.mark.parametrize("foreach", [True, None])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam"])
def test_capturable_equals_torch_on_a_gpu(name, foreach):
    compare_network((name, {"capturable": True, "foreach": foreach}), device="cuda", tensor_lr=name != "NAdam")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_sgd_of_16_bit_parameters_on_a_cpu_raises(dtype):
    text = r"'weight' has shape \[9, 9\]: torch's fused SGD does not update 16-bit parameters on a CPU; omit fused"
    with pytest.raises(stoker.InvalidArgument, match=text):
        optim.SGD(fused=True).init(nn.Linear(9, 9, dtype=dtype))


@pytest.mark.cuda
def test_fused_adagrad_on_a_gpu_raises():
    with pytest.raises(stoker.InvalidArgument, match="torch has no fused Adagrad on a GPU"):
        optim.Adagrad(fused=True).init(nn.Linear(2, 1, device="cuda"))


class Mixed(nn.Module):
    """Complex parameters and, if `real`, a real one between them."""

    def __init__(self, real):
        super().__init__()
        self.first = nn.Linear(3, 2, dtype=torch.complex64)
        self.scale = nn.Parameter(torch.ones(2), requires_grad=real)
        self.last = nn.Linear(2, 2, dtype=torch.complex64)

    def forward(self, x):
        return self.last(self.first(x) * self.scale)


@pytest.mark.parametrize(
    "case",
    [case for case in cases([n for n in SETTINGS if n not in ("Adafactor", "Muon")]) if "fused" not in case[1]],
    ids=label,
)
def test_complex_parameters_equal_torch(case):
    for real in (False, True):
        torch.manual_seed(0)
        inputs = torch.randn(4, 5, 3, dtype=torch.complex64)
        compare(case, Mixed(real), lambda net, step, x=inputs: net(x[step]).abs().square().mean(), steps=4)


@pytest.mark.parametrize("settings", [{}, {"nesterov": True}, {"dampening": 0.5, "weight_decay": 0.1}], ids=str)
def test_fused_momentum_can_start_at_different_updates(settings):
    """The reference is one torch optimizer per layer: a single one cannot do it."""
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    theirs = copy.deepcopy(ours)
    optimizer = optim.SGD(momentum=0.9, fused=True, **settings).init(ours)
    native = {
        part: torch.optim.SGD(theirs[int(part)].parameters(), lr=0.1, momentum=0.9, fused=True, **settings)
        for part in "02"
    }
    x = torch.randn(6, 4)
    for parts in ("0", "0", "02", "2", "02"):
        optimizer.step(backward(ours(x).square().mean(), ours).take(list(parts)), lr=0.1)
        theirs.zero_grad()
        theirs(x).square().mean().backward()
        for part in parts:
            native[part].step()
        assert equal(ours, theirs)


def test_a_gradient_shared_by_two_parameters_is_copied_before_torch_writes_into_it():
    model = nn.ParameterDict({"a": torch.ones(3), "b": torch.full((3,), 2.0)})
    case = "SGD", {"momentum": 0.9, "nesterov": True, "foreach": True}
    compare(case, model, lambda each, step: ((each["a"] + each["b"]) ** 2).sum(), steps=3)


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW])
def test_a_tensor_lr_that_torch_does_not_support_raises_before_anything_changes(make):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    before = copy.deepcopy(model)
    optimizer = optim.init({"0": optim.SGD(), "*": make(foreach=True)}, model)
    grads = backward(model(torch.ones(1, 4)).sum(), model)
    text = rf"{make.__name__}\(foreach=True\) is a tensor: with foreach=True torch needs a number"
    with pytest.raises(stoker.InvalidArgument, match=text):
        optimizer.step(grads, lr=torch.tensor(0.1))
    assert len(grads) == 4 and equal(model, before)
    optimizer.step(grads, lr={"0": torch.tensor(0.1), "*": 0.1})  # a number for the one that needs it


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # from torch's Adagrad
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "Muon"])
def test_sparse_gradients_equal_torch_or_raise_without_being_consumed(name):
    table = nn.Embedding(6, 2, sparse=True)
    grads = backward(table(torch.tensor([1])).sum(), table)
    unsupported = [getattr(optim, name)()]
    if name in ("SGD", "Adagrad"):
        rows = torch.tensor([[1, 1, 2], [3, 3, 2], [1, 1, 2]])
        model = copy.deepcopy(table)
        compare((name, {}), model, lambda each, step: each(rows[step]).square().sum(), steps=3)
        unsupported = [getattr(optim, name)(fused=True)]
    for config in unsupported:
        text = rf"{name} does not support the sparse gradient of 'weight': use SGD or Adagrad \(not fused\)"
        with pytest.raises(stoker.UnsupportedGradient, match=text):
            config.init(table).step(grads, lr=0.1)
        assert len(grads) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_configs_are_frozen_serialisable_values_with_the_settings_of_torch(name):
    make = getattr(optim, name)
    assert make() == make() and hash(make()) == hash(make())
    assert make.from_dict(make().to_dict()) == make()
    with pytest.raises(AttributeError):
        make().maximize = True
    with pytest.raises((TypeError, stoker.ConfigError)):
        make(lr=0.1)  # the learning rate is an argument of the step
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    ours = inspect.signature(make).parameters
    # no `differentiable`: a step writes into leaf tensors
    assert set(ours) == set(theirs) - {"params", "lr", "differentiable"}
    for key, parameter in ours.items():
        assert parameter.default == theirs[key].default, key


# torch refuses these at once, and so does a config: before there is a model.
REFUSED = {
    "SGD": [{"momentum": -1.0}, {"nesterov": True}, {"momentum": 0.9, "nesterov": True, "dampening": 0.1}],
    "Adam": [{"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"eps": -1.0}, {"fused": True, "foreach": True}],
    "AdamW": [{"weight_decay": -1.0}],
    "Adamax": [{"eps": -1.0}],
    "NAdam": [{"momentum_decay": -1.0}],
    "RAdam": [{"betas": (2.0, 0.9)}],
    "RMSprop": [{"alpha": -1.0}, {"momentum": -1.0}],
    "Adagrad": [{"lr_decay": -1.0}, {"initial_accumulator_value": -1.0}],
    "Adadelta": [{"rho": 1.5}],
    "Adafactor": [{"d": 0.5}, {"beta2_decay": 0.5}, {"eps": (-1.0, 1e-3)}, {"eps": (None, -1.0)}],
    "Rprop": [{"etas": (0.5, 0.9)}, {"etas": (0.0, 1.2)}],
    "ASGD": [{"weight_decay": -1.0}],
    "Muon": [{"ns_steps": 100}, {"momentum": -1.0}, {"adjust_lr_fn": "other"}],
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_torch_refuses_are_refused_when_the_config_is_made(name):
    for options in REFUSED[name]:
        with pytest.raises((ValueError, RuntimeError)):
            parameter = nn.Parameter(torch.zeros(2, 2))
            parameter.grad = torch.ones(2, 2)
            getattr(torch.optim, name)([parameter], **options).step()
        setting = list(options)[-1]
        with pytest.raises(stoker.InvalidArgument, match=f"{name}: .*{'exclude' if setting == 'foreach' else ''}"):
            getattr(optim, name)(**options)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optim.Adam(betas=(0.9, 1.0)), r"Adam: betas must be at least 0 and below 1, got \(0.9, 1.0\)"),
        (lambda: optim.AdamW(weight_decay=-1.0), r"AdamW: weight_decay must be at least 0, got -1.0"),
        (lambda: optim.SGD(nesterov=True), "SGD: nesterov needs a momentum above 0 and no dampening"),
        (lambda: optim.Adam(fused=True, foreach=True), "Adam: fused and foreach exclude each other"),
        (lambda: optim.Adadelta(rho=2.0), "Adadelta: rho must be between 0 and 1, got 2.0"),
        (lambda: optim.Rprop(etas=(1.5, 1.2)), "Rprop: etas must be below and above 1"),
        (lambda: optim.Muon(adjust_lr_fn="other"), 'Muon: adjust_lr_fn is "original", "match_rms_adamw" or None'),
        (lambda: optim.RMSprop(eps=float("nan")), "RMSprop: eps must be at least 0, got nan"),
        (lambda: optim.Muon().init(nn.Linear(2, 3)), r"'bias' has shape \[3\]: Muon is for real matrices; use another"),
    ],
)
def test_invalid_settings_and_parameters_raise_before_the_first_step(make, text):
    with pytest.raises(stoker.InvalidArgument, match=text):
        make()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"lr": 1e-3}, r"lr: unknown field; the learning rate is an argument of Learner\(lr=...\), or of every step"),
        ({"params": []}, r"params: unknown field; the parameters are those of the model: Learner\(model, optimizer="),
    ],
)
def test_arguments_that_torch_takes_and_stoker_takes_elsewhere_say_where(arguments, text):
    with pytest.raises(stoker.ConfigError, match=text):
        optim.Adam(**arguments)
