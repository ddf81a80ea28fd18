"""`optim.wrap` drives torch's and third-party optimizers exactly as a plain training loop does."""

import copy

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import nn

import stoker
from stoker import backward, optim
from tests.optim.models import equal


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model, seed):
    return model(torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))).square().mean()


def plain_step(native, model, update):
    native.zero_grad()
    loss_of(model, update).backward()
    native.step()


OTHERS = [
    (torch.optim.RMSprop, {"alpha": 0.9}),
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.SGD, {"momentum": 0.9}),
    (schedulefree.AdamWScheduleFree, {"warmup_steps": 2}),
    (schedulefree.SGDScheduleFree, {}),
    *(
        (getattr(pytorch_optimizer, name), {})
        for name in ("Lion", "Prodigy", "AdaBelief", "AdamP", "Adan", "Lamb", "QHAdam", "StableAdamW", "Tiger")
    ),
    (pytorch_optimizer.AdaShift, {"keep_num": 3}),
]


@pytest.mark.parametrize(("cls", "settings"), OTHERS, ids=lambda value: getattr(value, "__name__", ""))
def test_training_and_resuming_equal_a_plain_loop(cls, settings):
    ours, theirs = net(), net()
    optimizer = optim.wrap(cls, **settings).init(ours)
    native = cls(theirs.parameters(), lr=0.01, **settings)
    if hasattr(native, "train"):
        native.train()
    for update in range(7):
        if update == 4:  # continue with a copy of the model and a new optimizer
            state = copy.deepcopy(optimizer.state_dict())
            ours = copy.deepcopy(ours)
            optimizer = optim.wrap(cls, **settings).init(ours)
            optimizer.load_state_dict(state)
        torch.manual_seed(update)  # some draw random numbers
        optimizer.step(backward(loss_of(ours, update), ours), lr=0.01)
        torch.manual_seed(update)
        plain_step(native, theirs, update)
        assert equal(ours, theirs), update
    assert all(p.grad is None for p in ours.parameters())


def test_grad_and_groups_are_restored_after_a_step_also_if_it_fails():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if len(self.param_groups) == 1:
                raise RuntimeError("boom")
            super().step(closure)

    model = net()
    left = model[0].weight.grad = torch.full_like(model[0].weight, 3.0)
    optimizer = optim.wrap(Failing).init(model)
    optimizer.step(backward(loss_of(model, 0), model), lr={"0": 0.1, "*": 0.2})
    before = model[0].weight.clone()
    with pytest.raises(RuntimeError, match="boom"):
        optimizer.step(backward(loss_of(model, 0), model).take("2"), lr=0.1)
    groups = optimizer.state_dict()["rules"][0]["state"]["groups"]
    assert [group["names"][0] for group in groups] == ["0.weight", "2.weight"]
    optim.wrap(torch.optim.SGD).init(model).step(backward(loss_of(model, 0), model).take("2"), lr=0.1)
    assert torch.equal(model[0].weight, before), "it has no gradient, only the user's .grad"
    assert model[0].weight.grad is left and model[2].weight.grad is None


@pytest.mark.parametrize("config", [optim.AdamW(), optim.wrap(torch.optim.AdamW)], ids=str)
def test_learning_rates_by_name_equal_torch_parameter_groups(config):
    model, theirs = net(), net()
    optimizer = config.init(model)
    native = torch.optim.AdamW(
        [{"params": [p for n, p in theirs.named_parameters() if n.endswith(end)]} for end in ("bias", "weight")]
    )
    for update in range(4):
        rates = {"*.bias": 0.1, "*": 0.01 * update}
        optimizer.step(backward(loss_of(model, update), model), lr=rates)
        for group, lr in zip(native.param_groups, rates.values(), strict=True):
            group["lr"] = lr
        plain_step(native, theirs, update)
        assert equal(model, theirs)


def test_counters_of_groups_without_gradients_do_not_advance():
    model = net()
    optimizer = optim.wrap(schedulefree.SGDScheduleFree).init(model)
    rates = {"0": 0.1, "*": 0.2}
    optimizer.step(backward(loss_of(model, 0), model), lr=rates)
    for update in range(3):
        optimizer.step(backward(loss_of(model, update), model).take("2"), lr=rates)
    groups = optimizer.state_dict()["rules"][0]["state"]["groups"]
    assert [(group["names"][0], group["k"], group["lr"]) for group in groups] == [
        ("0.weight", 1, 0.1),
        ("2.weight", 4, 0.2),
    ]


def test_lbfgs_minimizes_a_closure_and_resumes():
    x, y = torch.randn(20, 4), torch.randn(20, 3)
    ours, theirs = net(), net()
    optimizer = optim.wrap(torch.optim.LBFGS, max_iter=8).init(ours)
    native = torch.optim.LBFGS(theirs.parameters(), lr=0.5, max_iter=8)

    def closure():
        native.zero_grad()
        loss = (theirs(x) - y).square().mean()
        loss.backward()
        return loss

    for update in range(4):
        if update == 3:
            state = copy.deepcopy(optimizer.state_dict())
            optimizer = optim.wrap(torch.optim.LBFGS, max_iter=8).init(ours)
            optimizer.load_state_dict(state)
        loss = optimizer.minimize(lambda: (ours(x) - y).square().mean(), lr=0.5)
        assert torch.equal(loss, native.step(closure).detach()) and equal(ours, theirs)
    assert all(p.grad is None for p in ours.parameters())


def test_step_of_an_optimizer_with_a_closure_points_to_minimize():
    model = net()
    grads = backward(loss_of(model, 0), model)
    text = r"LBFGS evaluates the loss several times.*optimizer.minimize\(closure"
    with pytest.raises(stoker.InvalidArgument, match=text):
        optim.wrap(torch.optim.LBFGS).init(model).step(grads, lr=1.0)
    assert len(grads) == 4
    with pytest.raises(stoker.InvalidArgument, match="minimize needs one wrapped optimizer"):
        optim.Adam().init(model).minimize(lambda: loss_of(model, 0), lr=0.1)


def test_sparse_adam_equals_a_plain_loop():
    ours = nn.Embedding(6, 2, sparse=True)
    theirs = copy.deepcopy(ours)
    optimizer = optim.wrap(torch.optim.SparseAdam).init(ours)
    native = torch.optim.SparseAdam(theirs.parameters(), lr=0.1)
    for row in (1, 3, 1):
        optimizer.step(backward(ours(torch.tensor([row])).square().sum(), ours), lr=0.1)
        native.zero_grad()
        theirs(torch.tensor([row])).square().sum().backward()
        native.step()
        assert torch.equal(ours.weight, theirs.weight)


class Minimal(torch.optim.Optimizer):
    """Requires a learning rate, adds weight decay into `.grad` as many do, and has any value in its state."""

    def __init__(self, params, lr, kept=None):
        super().__init__(params, {"lr": lr})
        self.kept = kept

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.add_(p, alpha=0.1)
                    p.add_(p.grad, alpha=-group["lr"])
                    self.state[p]["kept"] = self.kept


@pytest.mark.parametrize("shape", [(4,), (2, 2)], ids=["one tensor", "a view of it"])
def test_a_gradient_shared_by_two_parameters_becomes_two(shape):
    """Autograd gives both the same memory, as one tensor or as a view; `.backward()` would store two."""
    ours = nn.ParameterDict({"a": torch.ones(4), "b": torch.full(shape, 2.0)})
    theirs = copy.deepcopy(ours)
    optimizer, native = optim.wrap(Minimal).init(ours), Minimal(theirs.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.step(backward(((ours["a"] + ours["b"].view(4)) ** 2).sum(), ours), lr=0.1)
        native.zero_grad()
        ((theirs["a"] + theirs["b"].view(4)) ** 2).sum().backward()
        native.step()
        assert equal(ours, theirs)


def test_classes_and_states_that_cannot_be_used_raise():
    with pytest.raises(stoker.WrongType, match="wrap takes a subclass of torch.optim.Optimizer, got <function"):
        optim.wrap(lambda parameters: None)
    with pytest.raises(stoker.InvalidArgument, match="the learning rate is not a setting"):
        optim.wrap(torch.optim.Adam, lr=0.1)

    class Rateless(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    with pytest.raises(stoker.InvalidArgument, match="Rateless has no learning rate"):
        optim.wrap(Rateless).init(net())
    model = net()
    optimizer = optim.wrap(Minimal, kept=object()).init(model)
    optimizer.step(backward(loss_of(model, 0), model), lr=0.1)
    with pytest.raises(stoker.StateMismatch, match="a object in its state for '0.weight', which cannot be saved"):
        optimizer.state_dict()


def test_evaluation_weights_are_those_of_a_schedule_free_optimizer_and_training_continues_exactly():
    model, theirs = net(), net()
    optimizer = optim.wrap(schedulefree.AdamWScheduleFree).init(model)
    native = schedulefree.AdamWScheduleFree(theirs.parameters(), lr=0.01)
    native.train()
    for update in range(4):
        optimizer.step(backward(loss_of(model, update), model), lr=0.01)
        plain_step(native, theirs, update)
        evaluated = optimizer.evaluation_weights()
        assert update == 0 or not torch.equal(evaluated["0.weight"], theirs[0].weight)
        assert equal(model, theirs)
    native.eval()
    evaluated = optimizer.evaluation_weights()
    assert evaluated.keys() == dict(theirs.named_parameters()).keys()
    assert all(torch.equal(evaluated[name], each) for name, each in theirs.named_parameters())
    assert optim.Adam().init(model).evaluation_weights() is None
