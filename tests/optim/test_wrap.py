"""`optim.wrap` drives torch's and third-party optimizers exactly as a plain training loop does."""

import copy

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import nn

import stoker
from stoker import backward, optim


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def loss_of(model, seed):
    return model(torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))).square().mean()


def equal(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


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
def test_parameters_equal_those_of_a_plain_loop(cls, settings):
    ours, theirs = net(), net()
    optimizer = optim.wrap(cls, **settings).init(ours)
    native = cls(theirs.parameters(), lr=0.01, **settings)
    if hasattr(native, "train"):
        native.train()
    for update in range(6):
        torch.manual_seed(update)  # some draw random numbers
        optimizer.step(backward(loss_of(ours, update), ours), lr=0.01)
        native.zero_grad()
        loss_of(theirs, update).backward()
        torch.manual_seed(update)
        native.step()
        assert equal(ours, theirs), update
    assert all(p.grad is None for p in ours.parameters())


@pytest.mark.parametrize(("cls", "settings"), OTHERS, ids=lambda value: getattr(value, "__name__", ""))
def test_training_continues_from_a_saved_state_to_the_same_bits(cls, settings):
    model = net()
    optimizer = optim.wrap(cls, **settings).init(model)
    for update in range(4):
        optimizer.step(backward(loss_of(model, update), model), lr=0.01)
    state, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    resumed = net()
    resumed.load_state_dict(weights)
    again = optim.wrap(cls, **settings).init(resumed)
    again.load_state_dict(state)
    for update in range(4, 7):
        for each, which in ((optimizer, model), (again, resumed)):
            torch.manual_seed(update)
            each.step(backward(loss_of(which, update), which), lr=0.01)
    assert equal(model, resumed)


def test_grad_is_restored_after_a_step():
    model = net()
    left = torch.full_like(model[0].weight, 3.0)
    model[0].weight.grad = left
    optimizer = optim.wrap(torch.optim.SGD).init(model)
    before = model[0].weight.clone()
    optimizer.step(backward(loss_of(model, 0), model).take("2"), lr=0.1)  # does not step 0.weight by the old .grad
    assert model[0].weight.grad is left and torch.equal(model[0].weight, before)

    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        optim.wrap(Failing).init(model).step(backward(loss_of(model, 0), model), lr=0.1)
    assert model[0].weight.grad is left and model[2].weight.grad is None


def test_learning_rates_by_name_become_groups_of_one_step():
    model, theirs = net(), net()
    optimizer = optim.wrap(torch.optim.AdamW).init(model)
    native = torch.optim.AdamW(
        [{"params": [p for n, p in theirs.named_parameters() if n.endswith(end)]} for end in ("bias", "weight")]
    )
    for update in range(4):
        rates = {"*.bias": 0.1, "*": 0.01 * update}
        optimizer.step(backward(loss_of(model, update), model), lr=rates)
        for group, lr in zip(native.param_groups, rates.values(), strict=True):
            group["lr"] = lr
        native.zero_grad()
        loss_of(theirs, update).backward()
        native.step()
        assert equal(model, theirs)
    schedule_free = optim.wrap(schedulefree.SGDScheduleFree).init(net_ := net())
    schedule_free.step(backward(loss_of(net_, 0), net_), lr={"*.bias": 0.1, "*": 0.2})
    groups = schedule_free.state_dict()["rules"][0]["state"]["groups"]
    assert [group["k"] for group in groups] == [1, 1] and [group["lr"] for group in groups] == [0.2, 0.1]


def test_lbfgs_minimizes_a_closure():
    x, y = torch.randn(20, 4), torch.randn(20, 3)
    ours, theirs = net(), net()
    optimizer = optim.wrap(torch.optim.LBFGS, max_iter=8).init(ours)
    native = torch.optim.LBFGS(theirs.parameters(), lr=0.5, max_iter=8)
    for _ in range(3):
        loss = optimizer.minimize(lambda: (ours(x) - y).square().mean(), lr=0.5)

        def closure():
            native.zero_grad()
            loss = (theirs(x) - y).square().mean()
            loss.backward()
            return loss

        expected = native.step(closure)
        assert torch.equal(loss, expected.detach()) and equal(ours, theirs)
    assert all(p.grad is None for p in ours.parameters())
    state = copy.deepcopy(optimizer.state_dict())
    again = optim.wrap(torch.optim.LBFGS, max_iter=8).init(theirs)
    again.load_state_dict(state)
    optimizer.minimize(lambda: (ours(x) - y).square().mean(), lr=0.5)
    again.minimize(lambda: (theirs(x) - y).square().mean(), lr=0.5)
    assert equal(ours, theirs)


def test_step_of_an_optimizer_with_a_closure_points_to_minimize():
    model = net()
    grads = backward(loss_of(model, 0), model)
    with pytest.raises(
        stoker.InvalidArgument, match=r"LBFGS evaluates the loss several times.*optimizer.minimize\(closure"
    ):
        optim.wrap(torch.optim.LBFGS).init(model).step(grads, lr=1.0)
    assert len(grads) == 4
    with pytest.raises(stoker.InvalidArgument, match="minimize needs one wrapped optimizer"):
        optim.Adam().init(model).minimize(lambda: loss_of(model, 0), lr=0.1)


def test_sparse_adam_equals_a_plain_loop():
    ours = nn.Embedding(6, 2, sparse=True)
    theirs = copy.deepcopy(ours)
    optimizer, native = (
        optim.wrap(torch.optim.SparseAdam).init(ours),
        torch.optim.SparseAdam(theirs.parameters(), lr=0.1),
    )
    for row in (1, 3, 1):
        optimizer.step(backward(ours(torch.tensor([row])).square().sum(), ours), lr=0.1)
        native.zero_grad()
        theirs(torch.tensor([row])).square().sum().backward()
        native.step()
        assert torch.equal(ours.weight, theirs.weight)


def test_wrap_raises_for_other_things():
    with pytest.raises(stoker.WrongType, match="wrap takes a subclass of torch.optim.Optimizer, got <function"):
        optim.wrap(lambda parameters: None)
    with pytest.raises(stoker.InvalidArgument, match="the learning rate is not a setting"):
        optim.wrap(torch.optim.Adam, lr=0.1)

    class Rateless(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    with pytest.raises(stoker.InvalidArgument, match="Rateless has no learning rate"):
        optim.wrap(Rateless).init(net())


def test_a_class_with_a_required_learning_rate_can_be_wrapped():
    class Old(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p -= group["lr"] * p.grad

    model, reference = net(), net()
    optim.wrap(Old).init(model).step(backward(loss_of(model, 0), model), lr=0.1)
    optim.SGD().init(reference).step(backward(loss_of(reference, 0), reference), lr=0.1)
    torch.testing.assert_close(model[0].weight, reference[0].weight)


def test_a_state_that_cannot_be_saved_raises():
    class Odd(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["thing"] = object()

    model = net()
    optimizer = optim.wrap(Odd).init(model)
    optimizer.step(backward(loss_of(model, 0), model), lr=0.1)
    with pytest.raises(
        stoker.StateMismatch, match="the optimizer has a object in its state for '0.weight', which cannot be saved"
    ):
        optimizer.state_dict()


class WritesGradients(torch.optim.Optimizer):
    """Adds weight decay into `.grad`, as many do."""

    def __init__(self, params, lr=1.0):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.add_(p, alpha=0.1)
                    p.add_(p.grad, alpha=-group["lr"])


@pytest.mark.parametrize("rates", [0.1, {"a": 0.1, "b": 0.2}], ids=str)
@pytest.mark.parametrize("flat", [False, True], ids=["one tensor", "a view of it"])
def test_a_gradient_shared_by_two_parameters_becomes_two(rates, flat):
    """Autograd gives both the same memory, as one tensor or as a view; `.backward()` would store two."""
    ours = nn.ParameterDict({"a": torch.ones(4), "b": torch.full((2, 2) if flat else (4,), 2.0)})
    theirs = copy.deepcopy(ours)
    optimizer = optim.wrap(WritesGradients).init(ours)
    lrs = rates if isinstance(rates, dict) else {"a": rates, "b": rates}
    native = WritesGradients([{"params": [theirs[name]], "lr": lr} for name, lr in lrs.items()])
    for _ in range(3):
        optimizer.step(backward(((ours["a"] + ours["b"].view(4)) ** 2).sum(), ours), lr=rates)
        native.zero_grad()
        ((theirs["a"] + theirs["b"].view(4)) ** 2).sum().backward()
        native.step()
        assert torch.equal(ours["a"], theirs["a"]) and torch.equal(ours["b"], theirs["b"])


def test_counters_of_groups_without_gradients_do_not_advance():
    model = net()
    optimizer = optim.wrap(schedulefree.SGDScheduleFree).init(model)
    rates = {"0": 0.1, "*": 0.2}
    optimizer.step(backward(loss_of(model, 0), model), lr=rates)
    for update in range(3):
        optimizer.step(backward(loss_of(model, update), model).take("2"), lr=rates)
    groups = optimizer.state_dict()["rules"][0]["state"]["groups"]
    assert [(group["names"][0], group["k"]) for group in groups] == [("0.weight", 1), ("2.weight", 4)]


def test_groups_are_restored_after_a_failing_step():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            if len(self.param_groups) == 1:
                raise RuntimeError("boom")

    model = net()
    optimizer = optim.wrap(Failing).init(model)
    optimizer.step(backward(loss_of(model, 0), model), lr={"0": 0.1, "*": 0.2})
    with pytest.raises(RuntimeError, match="boom"):
        optimizer.step(backward(loss_of(model, 0), model).take("2"), lr=0.1)
    groups = optimizer.state_dict()["rules"][0]["state"]["groups"]
    assert [group["names"][0] for group in groups] == ["0.weight", "2.weight"]


def test_evaluation_weights_are_those_of_a_schedule_free_optimizer_and_training_continues_exactly():
    model, theirs = net(), net()
    optimizer = optim.wrap(schedulefree.AdamWScheduleFree).init(model)
    native = schedulefree.AdamWScheduleFree(theirs.parameters(), lr=0.01)
    native.train()
    for update in range(4):
        optimizer.step(backward(loss_of(model, update), model), lr=0.01)
        native.zero_grad()
        loss_of(theirs, update).backward()
        native.step()
        with optimizer.evaluation_weights() as differ:
            assert differ and (update == 0 or not equal(model, theirs))
        assert equal(model, theirs)
    native.eval()
    with optimizer.evaluation_weights():
        assert equal(model, theirs)
    with optim.Adam().init(model).evaluation_weights() as differ:
        assert not differ
