"""`backward` against torch's own `.backward()`, over the kinds of models and losses that people have."""

import copy
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

import stoker
from stoker import NotDifferentiable, backward


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def torch_gradients(model, loss):
    """What `.backward()` leaves in `.grad`, as the independent reference."""
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for p in model.parameters():
        p.grad = None
    return found


def assert_same(grads, expected):
    assert list(grads) == list(expected)
    for name in expected:
        assert torch.equal(grads[name], expected[name])
        assert grads[name].stride() == expected[name].stride()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(self.encoder(x).tanh())


class Transposed(nn.Module):
    """Its gradient arrives in another layout than its parameter's."""

    def __init__(self):
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(4, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x):
        return (self.weight.t() @ x.t()).t() + self.scale


MODELS = {
    "mlp": (mlp, lambda: torch.randn(5, 4)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2)),
        lambda: torch.randn(6, 1, 6, 6),
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 3, 6, 6),
    ),
    "recurrent": (lambda: nn.GRU(4, 5, batch_first=True), lambda: torch.randn(2, 7, 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: torch.randn(2, 5, 8)),
    "tied": (Tied, lambda: torch.randn(5, 4)),
    "transposed": (Transposed, lambda: torch.randn(5, 4)),
    "embedding": (lambda: nn.Embedding(10, 4), lambda: torch.randint(0, 10, (6,))),
    "sparse embedding": (lambda: nn.Embedding(10, 4, sparse=True), lambda: torch.randint(0, 10, (6,))),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_what_torch_leaves_in_grad(name):
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), inputs()

    def loss():
        torch.manual_seed(1)  # the same dropout both times
        out = model(x)
        return (out[0] if isinstance(out, tuple) else out).square().mean()

    expected = torch_gradients(model, loss())
    grads = backward(loss(), model)
    assert list(grads) == list(expected)
    for key in expected:
        assert torch.equal(grads[key].to_dense(), expected[key].to_dense())
    if name != "sparse embedding":
        assert_same(grads, expected)
    assert all(p.grad is None for p in model.parameters())


@settings(max_examples=30, deadline=None)
@given(
    widths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    batch=st.integers(1, 5),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]),
    frozen=st.sets(st.integers(0, 5)),
)
def test_gradients_of_any_network_dtype_and_frozen_part(widths, batch, dtype, frozen):
    layers = [nn.Linear(a, b, dtype=dtype) for a, b in pairwise(widths)]
    model = nn.Sequential(*layers)
    parameters = list(model.parameters())
    for number in frozen & set(range(len(parameters))):
        parameters[number].requires_grad_(False)
    x = torch.randn(batch, widths[0], dtype=dtype)
    loss = model(x).abs().square().sum().float()
    if not any(p.requires_grad for p in parameters):
        with pytest.raises(NotDifferentiable):
            backward(loss, model)
        return
    expected = torch_gradients(model, model(x).abs().square().sum().float())
    assert_same(backward(loss, model), expected)


def test_what_is_in_grad_before_is_neither_used_nor_lost():
    model, x = mlp(), torch.randn(2, 4)
    left = torch.full_like(model[0].weight, 7.0)
    model[0].weight.grad = left
    expected = backward(model(x).sum(), model).clone()
    assert model[0].weight.grad is left and torch.equal(left, torch.full_like(left, 7.0))
    model[0].weight.grad = None
    assert torch.equal(backward(model(x).sum(), model)["0.weight"], expected["0.weight"])


def test_a_parameter_that_the_loss_does_not_depend_on_is_absent():
    model = nn.ModuleDict({"used": nn.Linear(2, 1), "unused": nn.Linear(2, 1)})
    grads = backward(model["used"](torch.ones(1, 2)).sum(), model)
    assert set(grads) == {"used.weight", "used.bias"}
    with pytest.raises(stoker.NoSuchParameter, match="'unused.weight' has no gradient here: the loss does not depend"):
        grads["unused.weight"]


def test_retain_graph_allows_several_losses_of_one_forward():
    model, x = mlp(), torch.randn(3, 4)
    out = model(x)
    first = backward(out[:, 0].sum(), model, retain_graph=True)
    second = backward(out[:, 1:].sum(), model)
    whole = backward(model(x).sum(), model)
    for name, tensor in (first + second).items():
        torch.testing.assert_close(tensor, whole[name])


def test_one_loss_of_several_models():
    encoder, decoder, x = mlp(), nn.Linear(3, 2), torch.randn(3, 4)
    grads = backward(decoder(encoder(x)).sum(), {"encoder": encoder, "decoder": decoder})
    assert list(grads) == [
        *(f"encoder.{name}" for name, _ in encoder.named_parameters()),
        "decoder.weight",
        "decoder.bias",
    ]
    listed = backward(decoder(encoder(x)).sum(), [encoder, decoder])
    assert torch.equal(listed["1.weight"], grads["decoder.weight"])
    alone = backward(decoder(encoder(x)).sum(), encoder)
    assert torch.equal(alone["0.weight"], grads[encoder[0].weight])
    optimizer = stoker.optim.SGD().init(encoder)  # knows the same parameters by its own names
    before = encoder[0].weight.clone()
    optimizer.step(grads.take(encoder), lr=0.1)
    assert set(grads) == {"decoder.weight", "decoder.bias"} and not torch.equal(encoder[0].weight, before)


def test_wrt_selects_parameters():
    model = mlp()
    assert set(backward(model(torch.ones(1, 4)).sum(), model, wrt="2")) == {"2.weight", "2.bias"}
    assert set(backward(model(torch.ones(1, 4)).sum(), model, wrt=[model[0].bias, "*.weight"])) == {
        "0.weight",
        "0.bias",
        "2.weight",
    }
    with pytest.raises(stoker.NoSuchParameter, match="'3' matches no parameter"):
        backward(model(torch.ones(1, 4)).sum(), model, wrt="3")
    with pytest.raises(NotDifferentiable, match="all parameters that '0' selects are frozen"):
        backward(model(torch.ones(1, 4)).sum(), stoker.freeze(model, "0"), wrt="0")


def test_create_graph_makes_gradients_differentiable():
    model, x = mlp().double(), torch.randn(3, 4, dtype=torch.float64)
    grads = backward(model(x).square().sum(), model, create_graph=True)
    penalty = sum(tensor.square().sum() for tensor in grads.values())
    second = backward(penalty, model)
    twin = copy.deepcopy(model)
    firsts = torch.autograd.grad(twin(x).square().sum(), list(twin.parameters()), create_graph=True)
    sum(each.square().sum() for each in firsts).backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(second[name], parameter.grad)
    assert not grads.detach()["0.weight"].requires_grad and grads["0.weight"].requires_grad


def test_clipping_differentiable_gradients_keeps_the_graph():
    model = mlp()
    grads = backward(model(torch.ones(1, 4)).square().sum(), model, create_graph=True).clip_norm(0.1).scale(2.0)
    assert all(tensor.requires_grad for tensor in grads.values())
    assert len(backward(grads["2.weight"].sum(), model)) > 0


def test_names_do_not_contain_those_of_wrappers():
    class Compiled(nn.Module):  # like torch.compile's, without the second that importing it takes
        def __init__(self, inner):
            super().__init__()
            self._orig_mod = inner

        def forward(self, x):
            return self._orig_mod(x)

    Compiled.__name__ = "OptimizedModule"
    model = nn.Sequential(Compiled(nn.Linear(4, 8)), nn.Linear(8, 1))
    grads = backward(Compiled(model)(torch.ones(1, 4)).sum(), Compiled(model))
    assert list(grads) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_compiled_model():
    model = nn.Linear(2, 1)
    compiled = torch.compile(model, backend="eager")
    grads = backward(compiled(torch.ones(3, 2)).sum(), compiled)
    assert list(grads) == ["weight", "bias"] and torch.equal(grads["bias"], torch.tensor([3.0]))


def test_a_loss_may_have_dimensions_of_size_one():
    model = nn.Linear(2, 1)
    assert len(backward(model(torch.ones(1, 2)), model)) == 2  # shape [1, 1]


def loss_of(kind, model):
    out = model(torch.ones(2, 4))
    return {
        "vector": lambda: out.sum(1),
        "empty": lambda: out[:0].sum(1),
        "integer": lambda: out.sum().long(),
        "boolean": lambda: out.sum() > 0,
        "complex": lambda: torch.complex(out.sum(), out.sum()),
        "detached": lambda: out.sum().detach(),
        "rebuilt": lambda: torch.tensor(out.sum().item()),
        "foreign": lambda: nn.Linear(1, 1)(torch.ones(1, 1)).sum(),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("vector", r"one number, got shape \[2\]; reduce it with .mean\(\) or .sum\(\)"),
        ("empty", r"shape \[0\]"),
        ("integer", r"the dtype int64, which has no gradient: compute it in floats"),
        ("boolean", r"the dtype bool"),
        ("complex", r"the dtype complex64, which has no gradient: take its real part"),
        ("detached", r"has no graph.*it was detached"),
        ("rebuilt", r"has no graph.*torch.tensor\(...\)"),
        ("foreign", r"depends on none of the 4 selected parameters: it was computed with another model"),
    ],
)
def test_errors_for_losses_that_have_no_gradient(kind, text):
    model = mlp()
    with pytest.raises(NotDifferentiable, match=text):
        backward(loss_of(kind, model), model)
    assert isinstance(NotDifferentiable("x"), RuntimeError)


def test_errors_for_losses_without_a_graph():
    model, x = mlp(), torch.ones(2, 4)
    with torch.no_grad(), pytest.raises(NotDifferentiable, match="under torch.no_grad"):
        backward(model(x).sum(), model)
    with torch.inference_mode():
        loss = model(x).sum()
    with pytest.raises(NotDifferentiable, match="inference_mode"):
        backward(loss, model)
    loss = F.mse_loss(stoker.valid(model)(x), torch.ones(2, 3))
    with pytest.raises(NotDifferentiable, match=r"through stoker.valid\(model\)"):
        backward(loss, model)
    with pytest.raises(NotDifferentiable, match=r"was computed through stoker.valid.*it was detached"):
        backward(model(x).sum().detach(), model)


def test_error_for_a_graph_that_was_freed():
    model = mlp()
    loss = model(torch.ones(1, 4)).square().sum()
    backward(loss, model)
    with pytest.raises(NotDifferentiable, match="retain_graph=True"):
        backward(loss, model)


@pytest.mark.parametrize("loss", [1.0, None, "loss"])
def test_error_if_the_loss_is_not_a_tensor(loss):
    with pytest.raises(stoker.WrongType, match="the loss must be a tensor, got"):
        backward(loss, mlp())


def test_error_if_the_model_is_not_a_module():
    with pytest.raises(stoker.WrongType, match=r"expected a torch.nn.Module.*got int"):
        backward(mlp()(torch.ones(1, 4)).sum(), 3)


def test_an_error_of_torch_inside_the_graph_keeps_its_type():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("boom in the user's function")

    model = nn.Linear(2, 1)
    with pytest.raises(RuntimeError, match="boom in the user's function"):
        backward(Bad.apply(model(torch.ones(1, 2))).sum(), model)


# --- hooks of users on parameters


def test_hooks_after_accumulation_see_the_gradient_and_may_change_it():
    model, x, seen = mlp(), torch.randn(3, 4), {}

    def halve(parameter):
        seen[parameter] = parameter.grad.clone()
        parameter.grad.mul_(0.5)

    expected = backward(model(x).square().mean(), model)
    handles = [parameter.register_post_accumulate_grad_hook(halve) for parameter in model[2].parameters()]
    grads = backward(model(x).square().mean(), model)
    assert set(seen) == set(model[2].parameters()) and list(grads) == list(expected)
    for name, parameter in model.named_parameters():
        assert torch.equal(grads[name], expected[name] * (0.5 if parameter in seen else 1.0))
        assert parameter.grad is None
    for handle in handles:
        handle.remove()
    assert torch.equal(backward(model(x).square().mean(), model)["2.bias"], expected["2.bias"])


def test_a_hook_for_several_gradients_runs_once_with_all_of_them():
    model, x, calls = mlp(), torch.randn(3, 4), []
    expected = backward(model(x).square().mean(), model)
    register_multi_grad_hook(tuple(model.parameters()), lambda grads: calls.append([each.clone() for each in grads]))
    grads = backward(model(x).square().mean(), model)
    assert_same(grads, dict(expected))
    assert len(calls) == 1 and all(map(torch.equal, calls[0], expected.values()))


def test_hooks_on_gradients_run_inside_fit_as_in_a_plain_loop():
    x, y = torch.randn(12, 4), torch.randn(12, 3)
    models = []

    def clamp(parameter):
        parameter.grad.clamp_(-1e-3, 1e-3)

    for trains in (True, False):
        torch.manual_seed(0)
        model = mlp()
        models.append(model)
        model[0].weight.register_post_accumulate_grad_hook(clamp)
        model[2].bias.register_hook(lambda grad: grad * 3)
        if trains:
            learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=stoker.optim.SGD(fused=False), lr=0.1, seed=0)
            learner.fit(stoker.data.Loader((x, y), batch_size=4), epochs=2)
            continue
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for rows in (x.split(4), x.split(4)):
            for inputs, targets in zip(rows, y.split(4), strict=True):
                optimizer.zero_grad()
                F.mse_loss(model(inputs), targets).backward()
                optimizer.step()
    assert all(map(torch.equal, models[0].parameters(), models[1].parameters()))
