"""Every algorithm is torch's, bit for bit, whichever way torch runs it."""

import copy

import pytest
import torch
from torch import nn

import stoker
from stoker import backward, optim

from .algorithms import SETTINGS, cases, config, label, twin


def network(name, dtype=torch.float32, device="cpu"):
    torch.manual_seed(0)
    bias = name != "Muon"  # which is for matrices only
    layers = [nn.Linear(4, 8, bias=bias), nn.Tanh(), nn.Linear(8, 3, bias=bias)]
    return nn.Sequential(*layers).to(device, dtype)


def run(case, *, device="cpu", dtype=torch.float32, steps=20, tensor_lr=False):
    """Both side by side, with a learning rate that changes at every step; asserts equality after each."""
    ours = network(case[0], dtype, device)
    theirs = copy.deepcopy(ours)
    optimizer, native = config(case).init(ours), twin(case, theirs.parameters(), 0.1)
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
def test_bit_for_bit_torch(case):
    run(case)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_learning_rate_as_a_tensor(name):
    run((name, {}, {}), tensor_lr=True, steps=5)


@pytest.mark.parametrize("name", SETTINGS)
def test_double_and_half(name):
    run((name, {}, {}), dtype=torch.float64, steps=5)
    run((name, {}, {}), dtype=torch.bfloat16, steps=5)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "case", [case for case in cases() if case[0] != "Adagrad" or "fused" not in case[2]], ids=label
)
def test_bit_for_bit_torch_on_the_gpu(case):
    run(case, device="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize(
    "case",
    [
        (name, {"capturable": True}, {"foreach": way})
        for name in ("Adam", "AdamW", "NAdam", "RAdam")
        for way in (True, None)
    ],
    ids=label,
)
def test_capturable_on_the_gpu(case):
    run(case, device="cuda", tensor_lr=case[0] != "NAdam")


@pytest.mark.cuda
def test_a_fused_adagrad_on_the_gpu_is_refused():
    with pytest.raises(stoker.InvalidArgument, match="torch has no fused Adagrad on a GPU"):
        optim.Adagrad(fused=True).init(nn.Linear(2, 1, device="cuda"))


class Mixed(nn.Module):
    """Complex parameters and, if asked for, a real one between them."""

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
def test_complex_parameters(case, real):
    torch.manual_seed(0)
    ours = Mixed(real)
    theirs = copy.deepcopy(ours)
    optimizer, native = config(case).init(ours), twin(case, [p for p in theirs.parameters() if p.requires_grad], 0.01)
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
def test_a_learning_rate_that_torch_refuses_as_a_tensor_is_refused_before_anything_changes(make):
    model = network("Adam")
    before = copy.deepcopy(model.state_dict())
    optimizer = optim.init({"0": optim.SGD(), "*": make(foreach=True)}, model)
    grads = backward(model(torch.ones(1, 4)).sum(), model)
    with pytest.raises(
        stoker.InvalidArgument,
        match=rf"{make.__name__}\(foreach=True\) is a tensor: with foreach=True torch needs a num",
    ):
        optimizer.step(grads, lr=torch.tensor(0.1))
    assert len(grads) == 4 and all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    optimizer.step(grads, lr={"0": torch.tensor(0.1), "*": 0.1})  # plain numbers where they are needed


@pytest.mark.parametrize("settings", [{}, {"nesterov": True}, {"dampening": 0.5, "weight_decay": 0.1}], ids=str)
def test_fused_momentum_that_starts_in_parts(settings):
    """The reference is torch's own, one optimizer for each layer: together torch can't do it."""
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


def test_one_gradient_of_two_parameters_under_an_algorithm_that_writes_into_it():
    """Torch's foreach form of Nesterov's momentum does."""
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
def test_fused_forms_take_no_sparse_gradients(name):
    table = nn.Embedding(6, 2, sparse=True)
    grads = backward(table(torch.tensor([1])).sum(), table)
    with pytest.raises(
        stoker.UnsupportedGradient, match=r"sparse gradient of 'weight': use SGD or Adagrad \(not fused\)"
    ):
        getattr(optim, name)(fused=True).init(table).step(grads, lr=0.1)
    assert len(grads) == 1


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's Adagrad makes sparse tensors without saying so
@pytest.mark.parametrize("name", ["SGD", "Adagrad"])
def test_sparse_gradients_where_torch_takes_them(name):
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
def test_sparse_gradients_elsewhere_are_refused_and_kept(name):
    table = nn.Embedding(6, 2, sparse=True)
    grads = backward(table(torch.tensor([1])).sum(), table)
    optimizer = getattr(optim, name)().init(table)
    with pytest.raises(stoker.UnsupportedGradient, match=f"{name} can't take the sparse gradient of 'weight': use SGD"):
        optimizer.step(grads, lr=0.1)
    assert len(grads) == 1


@pytest.mark.parametrize("name", SETTINGS)
def test_configs_are_values(name):
    make = getattr(optim, name)
    assert make() == make() and hash(make()) == hash(make())
    assert make.from_dict(make().to_dict()) == make()
    with pytest.raises(AttributeError):
        make().maximize = True
    with pytest.raises((TypeError, stoker.ConfigError)):
        make(lr=0.1)  # the learning rate is an argument of the step


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_torchs_less_the_learning_rate(name):
    import inspect

    torchs = inspect.signature(getattr(torch.optim, name)).parameters
    ours = inspect.signature(getattr(optim, name)).parameters
    # differentiable: gradients are values here, and a step that is differentiated through has no leaf to write to
    assert set(ours) == set(torchs) - {"params", "lr", "differentiable"}
    for key, parameter in ours.items():
        assert parameter.default == torchs[key].default, key


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: optim.Adam(betas=(0.9, 1.0)), r"Adam: betas must be at least 0 and below 1, got \(0.9, 1.0\)"),
        (lambda: optim.AdamW(weight_decay=-1.0), r"AdamW: weight_decay must be at least 0, got -1.0"),
        (lambda: optim.SGD(nesterov=True), "SGD: nesterov needs a momentum above 0 and no dampening"),
        (lambda: optim.Adam(fused=True, foreach=True), "Adam: fused and foreach are two ways"),
        (lambda: optim.Adadelta(rho=2.0), "Adadelta: rho must be between 0 and 1, got 2.0"),
        (lambda: optim.Rprop(etas=(1.5, 1.2)), "Rprop: etas must be below and above 1"),
        (lambda: optim.Muon(adjust_lr_fn="other"), 'Muon: adjust_lr_fn is "original", "match_rms_adamw" or None'),
        (lambda: optim.RMSprop(eps=float("nan")), "RMSprop: eps must be at least 0, got nan"),
    ],
)
def test_settings_out_of_range_are_refused_where_they_are_written(make, text):
    with pytest.raises(stoker.InvalidArgument, match=text):
        make()


def test_muon_is_for_matrices():
    with pytest.raises(
        stoker.InvalidArgument, match=r"'bias' has shape \[3\]: Muon is for real matrices; give the rest"
    ):
        optim.Muon().init(nn.Linear(2, 3))
    optim.init({"bias": optim.AdamW(), "*": optim.Muon()}, nn.Linear(2, 3))
