"""Gradients as values: lookup, arithmetic, and what consumes them."""

from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import Gradients, GradientsConsumed, backward


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return mlp()


@pytest.fixture
def grads(model):
    return backward(model(torch.randn(5, 4)).square().mean(), model)


def test_gradients_are_a_mapping_in_the_models_order(model, grads):
    assert list(grads) == [name for name, _ in model.named_parameters()]
    assert len(grads) == 4 and "0.weight" in grads and "nothing" not in grads
    assert model[0].weight in grads and nn.Parameter(torch.ones(1)) not in grads
    assert grads["2.bias"] is grads[model[2].bias] is dict(grads)["2.bias"]
    assert grads.get("nothing") is None
    assert grads.parameter("2.bias") is model[2].bias


def test_errors_of_lookups_say_why(model, grads):
    with pytest.raises(stoker.NoSuchParameter, match="this model has no parameter '0.weigth'; did you mean '0.weight'"):
        grads["0.weigth"]
    with pytest.raises(stoker.NoSuchParameter, match=r"parameter of shape \[1\] is not a parameter of this model"):
        grads[nn.Parameter(torch.ones(1))]
    with pytest.raises(stoker.WrongType, match="by name or by parameter, not by int"):
        grads[0]
    grads.take("0")
    with pytest.raises(stoker.NoSuchParameter, match=r"'0.weight' has no gradient here.*taken by take\('0'\)"):
        grads["0.weight"]


def test_take_moves_gradients_out(model, grads):
    copies = {name: tensor.clone() for name, tensor in grads.items()}
    layer = grads.take(model[0])
    bias = grads.take("*.bias")
    assert set(layer) == {"0.weight", "0.bias"} and set(bias) == {"2.bias"} and set(grads) == {"2.weight"}
    for part in (layer, bias, grads):
        assert all(torch.equal(tensor, copies[name]) for name, tensor in part.items())


def test_errors_of_take_change_nothing(model, grads):
    with pytest.raises(stoker.NoSuchParameter, match="'head' matches no parameter; the parameters are: 0.weight"):
        grads.take("head")
    grads.take("0")
    with pytest.raises(stoker.NoSuchParameter, match=r"'0' selects no gradient here.*taken by take\('0'\)"):
        grads.take("0")
    assert set(grads) == {"2.weight", "2.bias"}  # an error changes nothing


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(st.sampled_from(["0", "2", "*.weight", "*.bias", "0.weight", "2.bias", "*"]), max_size=5))
def test_any_takes_partition_the_gradients(parts):
    model = mlp()
    grads = backward(model(torch.ones(1, 4)).square().sum(), model)
    total, everything = float(grads.norm()), dict(grads)
    taken = []
    for part in parts:
        with suppress(stoker.NoSuchParameter, GradientsConsumed):
            taken.append(grads.take(part))
    pieces = [piece for piece in [*taken, grads] if len(piece)]
    names = [name for piece in pieces for name in piece]
    assert sorted(names) == sorted(everything)
    assert torch.stack([piece.norm() for piece in pieces]).norm().item() == pytest.approx(total, rel=1e-6)


def test_a_step_consumes_gradients(model, grads):
    stoker.optim.SGD(momentum=0.9).init(model).step(grads, lr=0.1)
    assert len(grads) == 0 and list(grads) == [] and repr(grads).startswith("Gradients(used up by the step of SGD(")
    for use in (
        lambda: grads["0.weight"],
        lambda: grads.norm(),
        lambda: grads.take("0"),
        lambda: grads.clip_norm(1.0),
        lambda: grads.scale(2.0),
        lambda: grads.all_finite(),
        lambda: grads.clone(),
        lambda: grads + grads,
        lambda: stoker.optim.SGD().init(model).step(grads, lr=0.1),
        lambda: stoker.Accumulator().add(grads),
    ):
        with pytest.raises((GradientsConsumed, stoker.InvalidArgument)):
            use()
    with pytest.raises(GradientsConsumed, match=r"used up \(by the step of SGD\(momentum=0.9.*make new ones"):
        grads.norm()


def test_ignoring_what_clip_returned_is_an_error(model, grads):
    grads.clip_norm(1.0)
    with pytest.raises(GradientsConsumed, match=r"by clip_norm\(1.0\); use what it returned"):
        stoker.optim.SGD().init(model).step(grads, lr=0.1)


def test_scale_and_map(grads):
    copies = dict(grads.clone())
    scaled = grads.scale(0.5)
    assert all(torch.equal(scaled[name], copies[name] * 0.5) for name in copies)
    doubled = scaled.scale(torch.tensor(4.0))
    assert all(torch.equal(doubled[name], copies[name] * 2) for name in copies)
    signs = doubled.map(lambda name, tensor: tensor.sign() if name.endswith("weight") else tensor)
    assert torch.equal(signs["0.weight"], copies["0.weight"].sign())


def test_scaling_never_writes_into_a_tensor_that_others_hold():
    """Autograd gives one tensor to two parameters here; scaling in place would scale it twice."""
    model = nn.ParameterDict({"a": torch.ones(3), "b": torch.ones(3)})
    weights = torch.tensor([1.0, 2.0, 3.0])
    grads = backward(((model["a"] + model["b"]) * weights).sum(), model)
    halved = grads.scale(0.5)
    for name in ("a", "b"):
        assert torch.equal(halved[name], weights / 2)
    assert torch.equal(weights, torch.tensor([1.0, 2.0, 3.0]))


def test_addition(model):
    x = torch.randn(6, 4)
    whole = backward(model(x).sum(), model)
    first, second = backward(model(x[:2]).sum(), model), backward(model(x[2:]).sum(), model)
    second_bias = second.take("2.bias")
    total = first + second
    assert len(first) == len(second) == 0
    total = total + second_bias
    assert list(total) == list(whole)
    for name in whole:
        torch.testing.assert_close(total[name], whole[name])
    with pytest.raises(GradientsConsumed, match="by \\+; use the sum"):
        first.norm()


def test_sum_of_many(model):
    parts = [backward(model(torch.ones(1, 4)).sum(), model) for _ in range(3)]
    total = sum(parts)
    one = backward(model(torch.ones(1, 4)).sum(), model)
    torch.testing.assert_close(total["0.weight"], one["0.weight"] * 3)


def test_errors_of_addition_change_nothing(model, grads):
    other = mlp()
    theirs = backward(other(torch.ones(1, 4)).sum(), other)
    with pytest.raises(stoker.InvalidArgument, match="'0.weight' is a different parameter on the two sides"):
        grads + theirs
    with pytest.raises(stoker.InvalidArgument, match=r"can't be added to themselves: use scale\(2\)"):
        grads + grads
    with pytest.raises(TypeError):
        grads + 1
    assert len(grads) == len(theirs) == 4


def test_copies_share_no_memory(grads):
    for copy in (grads.clone(), grads.detach(), grads.to(torch.float64), grads.to("cpu")):
        assert all(copy[name].data_ptr() != tensor.data_ptr() for name, tensor in grads.items())
    assert grads.to(torch.float64)["0.weight"].dtype == torch.float64 and len(grads) == 4


def test_all_finite(model, grads):
    assert grads.all_finite().dtype == torch.bool and bool(grads.all_finite())
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken = grads.clone().map(
            lambda name, t, bad=bad: t.index_fill(0, torch.tensor([0]), bad) if name == "2.bias" else t
        )
        assert not broken.all_finite()


def test_gradients_from_tensors(model):
    own = Gradients({"2.bias": torch.ones(3), "0.bias": torch.zeros(8)}, model)
    assert list(own) == ["0.bias", "2.bias"]  # the model's order
    with pytest.raises(stoker.NoSuchParameter, match="this model has no parameter '2.bais'; did you mean '2.bias'"):
        Gradients({"2.bais": torch.ones(3)}, model)
    with pytest.raises(
        stoker.InvalidArgument, match=r"the gradient of '2.bias' has shape \[2\], and the parameter has \[3\]"
    ):
        Gradients({"2.bias": torch.ones(2)}, model)
    with pytest.raises(GradientsConsumed, match="there were none from the start"):
        Gradients({}, model).norm()


def test_use_moves_the_tensors_out_for_a_custom_optimizer(grads):
    tensors = grads.use("my step")
    assert list(tensors) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(GradientsConsumed, match="by my step"):
        grads.use("again")


def test_repr_shows_norms_and_shapes(model, grads):
    text = repr(grads)
    assert text.startswith("Gradients of 4 parameters, 67 elements, norm ")
    assert "  0.weight  norm " in text and "float32 [8, 4]" in text
    table = nn.Embedding(5, 2, sparse=True)
    assert "sparse float32 [5, 2]" in repr(backward(table(torch.tensor([1])).sum(), table))
    many = nn.ParameterList(torch.ones(1) for _ in range(50))
    assert "… and 18 more" in repr(backward(sum(many), many))


def test_equality_is_identity(grads):
    assert grads == grads and grads != grads.clone() and len({grads, grads}) == 1


def test_a_factor_is_one_number(grads):
    with pytest.raises(stoker.InvalidArgument, match=r"a factor is one number, got a tensor of shape \[3\]"):
        grads.scale(torch.ones(3))
    assert len(grads) == 4
    assert grads.scale(torch.tensor([2.0]))["2.bias"].shape == (3,)


def test_a_tied_weight_is_found_by_its_other_name():
    model = nn.ModuleDict({"e": nn.Linear(2, 2, bias=False), "o": nn.Linear(2, 2, bias=False)})
    model["o"].weight = model["e"].weight
    grads = backward(model["o"](model["e"](torch.ones(1, 2))).sum(), model)
    assert grads["o.weight"] is grads["e.weight"] is grads.get("o.weight") and "o.weight" in grads
    assert "o.bias" not in grads and len(grads) == 1
    grads.take("o")
    with pytest.raises(GradientsConsumed, match=r"take\('o'\)"):
        grads["o.weight"]
