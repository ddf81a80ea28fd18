"""Every algorithm equals the class of the same name in `torch.optim`, bit for bit, however torch runs it."""

import copy
import inspect

import pytest
import torch
from torch import nn

import stoker
from stoker import backward, optim

# name: (settings to try, whether torch has a fused form, whether it has a foreach form)
SETTINGS = {
    "SGD": (
        [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}]
        + [{"momentum": 0.9, "nesterov": True, "maximize": True}],
        True,
        True,
    ),
    "Adam": (
        [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True, "decoupled_weight_decay": True}],
        True,
        True,
    ),
    "AdamW": ([{}, {"amsgrad": True, "betas": (0.5, 0.9)}, {"maximize": True}], True, True),
    "Adamax": ([{}, {"weight_decay": 0.1, "maximize": True}], False, True),
    "NAdam": ([{}, {"weight_decay": 0.1, "decoupled_weight_decay": True, "momentum_decay": 0.01}], False, True),
    "RAdam": ([{}, {"weight_decay": 0.1, "decoupled_weight_decay": True}], False, True),
    "RMSprop": ([{}, {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "alpha": 0.9}], False, True),
    "Adagrad": ([{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.2, "weight_decay": 0.1}], True, True),
    "Adadelta": ([{}, {"rho": 0.8, "weight_decay": 0.1, "maximize": True}], False, True),
    "Adafactor": ([{}, {"eps": (1e-8, 1e-2), "d": 2.0, "weight_decay": 0.1}], False, True),
    "Rprop": ([{}, {"etas": (0.4, 1.3), "step_sizes": (1e-5, 1.0)}], False, True),
    "ASGD": ([{}, {"t0": 5, "weight_decay": 0.1, "lambd": 1e-2}], False, True),
    "Muon": ([{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}], False, False),
}


def cases(names=tuple(SETTINGS)):
    """(name, settings, variant) for every algorithm, its settings, and torch's variants: default, foreach, fused."""
    for name in names:
        settings, fused, foreach = SETTINGS[name]
        for each in settings:
            yield name, each, {}
            if foreach:
                yield name, each, {"foreach": True}
                yield name, each, {"foreach": False}
            if fused:
                yield name, each, {"fused": True}


def label(case):
    name, settings, variant = case
    return " ".join([name, *(f"{key}={value}" for key, value in {**settings, **variant}.items())])


def config(case):
    name, settings, variant = case
    return getattr(optim, name)(**settings, **variant)


def torch_optimizer(case, parameters, lr):
    name, settings, variant = case
    return getattr(torch.optim, name)(parameters, lr=lr, **settings, **variant)


def network(name, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    bias = name != "Muon"  # which is for matrices only
    layers = [nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias)]
    return nn.Sequential(*layers).to(device, dtype)


def compare(case, *, device="cpu", dtype=torch.float32, steps=20, tensor_lr=False):
    """Trains with both and a learning rate that changes at every step; asserts equality after each step."""
    ours = network(case[0], dtype, device)
    theirs = copy.deepcopy(ours)
    optimizer, native = config(case).init(ours), torch_optimizer(case, theirs.parameters(), 0.1)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x = torch.randn(6, 4, generator=generator).to(device, dtype)
        lr = 0.1 / (step + 1) if case[0] not in ("Rprop", "ASGD") else 0.1  # these start their state from it
        rate = torch.tensor(lr, device=device) if tensor_lr else lr
        optimizer.step(backward(ours(x).square().mean(), ours), lr=rate)
        for group in native.param_groups:
            group["lr"] = torch.tensor(lr, device=device) if tensor_lr else lr
        native.zero_grad()
        theirs(x).square().mean().backward()
        native.step()
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b), f"step {step}: {name}"
    state = optimizer.state_dict()["rules"][0]["state"]
    for name, b in theirs.named_parameters():
        kept = {key: value for key, value in native.state[b].items() if value is not None}
        assert set(state.get(name, {})) == set(kept)
        for key, value in kept.items():
            assert torch.equal(state[name][key], value), f"{name}: {key}"


@pytest.mark.parametrize("case", list(cases()), ids=label)
def test_parameters_and_state_equal_torch(case):
    compare(case)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_learning_rate_can_be_a_tensor(name):
    compare((name, {}, {}), tensor_lr=True, steps=5)


@pytest.mark.parametrize("name", SETTINGS)
def test_other_dtypes(name):
    compare((name, {}, {}), dtype=torch.float64, steps=5)
    compare((name, {}, {}), dtype=torch.bfloat16, steps=5)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "case", [case for case in cases() if case[0] != "Adagrad" or "fused" not in case[2]], ids=label
)
def test_parameters_and_state_equal_torch_on_a_gpu(case):
    compare(case, device="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize(
    "case",
    [
        (name, {"capturable": True}, {"foreach": foreach})
        for name in ("Adam", "AdamW", "NAdam", "RAdam")
        for foreach in (True, None)
    ],
    ids=label,
)
def test_capturable_equals_torch_on_a_gpu(case):
    compare(case, device="cuda", tensor_lr=case[0] != "NAdam")


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


@pytest.mark.parametrize("real", [False, True], ids=["complex", "mixed"])
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in cases([name for name in SETTINGS if name not in ("Adafactor", "Muon")])
        if "fused" not in case[2]
    ],
    ids=label,
)
def test_complex_parameters_equal_torch(case, real):
    torch.manual_seed(0)
    ours = Mixed(real)
    theirs = copy.deepcopy(ours)
    optimizer, native = (
        config(case).init(ours),
        torch_optimizer(case, [p for p in theirs.parameters() if p.requires_grad], 0.01),
    )
    for _ in range(4):
        x = torch.randn(5, 3, dtype=torch.complex64)
        optimizer.step(backward(ours(x).abs().square().mean(), ours), lr=0.01)
        native.zero_grad()
        theirs(x).abs().square().mean().backward()
        native.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b) and a.isfinite().all()
    for name, kept in optimizer.state_dict()["rules"][0]["state"].items():
        for key, value in kept.items():
            assert torch.equal(value, native.state[theirs.get_parameter(name)][key])


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW])
def test_a_tensor_lr_that_torch_does_not_support_raises_before_anything_changes(make):
    model = network("Adam")
    before = copy.deepcopy(model.state_dict())
    optimizer = optim.init({"0": optim.SGD(), "*": make(foreach=True)}, model)
    grads = backward(model(torch.ones(1, 4)).sum(), model)
    with pytest.raises(
        stoker.InvalidArgument,
        match=rf"{make.__name__}\(foreach=True\) is a tensor: with foreach=True torch needs a number",
    ):
        optimizer.step(grads, lr=torch.tensor(0.1))
    assert len(grads) == 4 and all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    optimizer.step(grads, lr={"0": torch.tensor(0.1), "*": 0.1})  # a number for the one that needs it


@pytest.mark.parametrize("settings", [{}, {"nesterov": True}, {"dampening": 0.5, "weight_decay": 0.1}], ids=str)
def test_fused_momentum_can_start_at_different_updates(settings):
    """The reference is one torch optimizer per layer: a single one cannot do it."""
    ours = network("SGD")
    theirs = copy.deepcopy(ours)
    optimizer = optim.SGD(momentum=0.9, fused=True, **settings).init(ours)
    native = {
        part: torch.optim.SGD(theirs[int(part)].parameters(), lr=0.1, momentum=0.9, fused=True, **settings)
        for part in "02"
    }
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for parts in ("0", "0", "02", "2", "02"):
        optimizer.step(backward(ours(x).square().mean(), ours).take(list(parts)), lr=0.1)
        theirs.zero_grad()
        theirs(x).square().mean().backward()
        for part in parts:
            native[part].step()
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_gradient_shared_by_two_parameters_is_copied_before_torch_writes_into_it():
    ours = nn.ParameterDict({"a": torch.ones(3), "b": torch.full((3,), 2.0)})
    theirs = copy.deepcopy(ours)
    settings = {"momentum": 0.9, "nesterov": True, "foreach": True}
    optimizer, native = optim.SGD(**settings).init(ours), torch.optim.SGD(theirs.parameters(), lr=0.1, **settings)
    for _ in range(3):
        optimizer.step(backward(((ours["a"] + ours["b"]) ** 2).sum(), ours), lr=0.1)
        native.zero_grad()
        ((theirs["a"] + theirs["b"]) ** 2).sum().backward()
        native.step()
        assert torch.equal(ours["a"], theirs["a"]) and torch.equal(ours["b"], theirs["b"])


@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_fused_forms_raise_for_sparse_gradients(name):
    table = nn.Embedding(6, 2, sparse=True)
    grads = backward(table(torch.tensor([1])).sum(), table)
    with pytest.raises(
        stoker.UnsupportedGradient, match=r"sparse gradient of 'weight': use SGD or Adagrad \(not fused\)"
    ):
        getattr(optim, name)(fused=True).init(table).step(grads, lr=0.1)
    assert len(grads) == 1


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # from torch's Adagrad
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_sparse_gradients_equal_torch(name):
    ours = nn.Embedding(6, 2, sparse=True)
    theirs = copy.deepcopy(ours)
    optimizer, native = getattr(optim, name)().init(ours), getattr(torch.optim, name)(theirs.parameters(), lr=0.1)
    for row in (1, 3, 1):
        rows = torch.tensor([row, row, 2])
        optimizer.step(backward(ours(rows).square().sum(), ours), lr=0.1)
        native.zero_grad()
        theirs(rows).square().sum().backward()
        native.step()
        assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("SGD", "Adagrad", "Muon")])
def test_unsupported_sparse_gradients_raise_and_are_not_consumed(name):
    table = nn.Embedding(6, 2, sparse=True)
    grads = backward(table(torch.tensor([1])).sum(), table)
    optimizer = getattr(optim, name)().init(table)
    with pytest.raises(
        stoker.UnsupportedGradient, match=f"{name} does not support the sparse gradient of 'weight': use SGD"
    ):
        optimizer.step(grads, lr=0.1)
    assert len(grads) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_configs_are_frozen_comparable_and_serialisable(name):
    make = getattr(optim, name)
    assert make() == make() and hash(make()) == hash(make())
    assert make.from_dict(make().to_dict()) == make()
    with pytest.raises(AttributeError):
        make().maximize = True
    with pytest.raises((TypeError, stoker.ConfigError)):
        make(lr=0.1)  # the learning rate is an argument of the step


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_and_defaults_are_those_of_torch_without_the_learning_rate(name):
    theirs = inspect.signature(getattr(torch.optim, name)).parameters
    ours = inspect.signature(getattr(optim, name)).parameters
    # no `differentiable`: a step writes into leaf tensors
    assert set(ours) == set(theirs) - {"params", "lr", "differentiable"}
    for key, parameter in ours.items():
        assert parameter.default == theirs[key].default, key


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
    ],
)
def test_settings_out_of_range_raise_when_the_config_is_made(make, text):
    with pytest.raises(stoker.InvalidArgument, match=text):
        make()


def test_muon_raises_for_parameters_that_are_not_matrices():
    with pytest.raises(
        stoker.InvalidArgument, match=r"'bias' has shape \[3\]: Muon is for real matrices; use another algorithm"
    ):
        optim.Muon().init(nn.Linear(2, 3))
    optim.init({"bias": optim.AdamW(), "*": optim.Muon()}, nn.Linear(2, 3))
