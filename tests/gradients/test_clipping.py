"""Norms and limits against torch's own, on dense, sparse, complex and 16-bit gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import Gradients, backward


def model_with(*shapes, dtype=torch.float32):
    return nn.ParameterDict({f"p{i}": nn.Parameter(torch.zeros(shape, dtype=dtype)) for i, shape in enumerate(shapes)})


def as_torch(model, tensors):
    """The same gradients where torch's functions look for them."""
    for name, tensor in tensors.items():
        model[name].grad = tensor.clone()
    return list(model.parameters())


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=4),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 1e3, 1e37, math.inf, math.nan]),
    limit=st.floats(1e-3, 1e3),
    kind=st.sampled_from([0.5, 1.0, 2.0, 3.0, math.inf, -math.inf]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]),
    seed=st.integers(0, 99),
)
def test_clip_norm_is_torchs_bit_for_bit(shapes, scale, limit, kind, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    model = model_with(*shapes, dtype=dtype)
    tensors = {name: (torch.randn(p.shape, generator=generator) * scale).to(dtype) for name, p in model.items()}
    grads = Gradients(tensors, model)
    before = grads.norm(kind)
    clipped = grads.clip_norm(limit, kind=kind)
    parameters = as_torch(model, tensors)
    total = torch.nn.utils.clip_grad_norm_(parameters, limit, norm_type=kind)
    torch.testing.assert_close(before, total, rtol=0, atol=0, equal_nan=True)
    for name, parameter in model.items():
        torch.testing.assert_close(clipped[name], parameter.grad, rtol=0, atol=0, equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(limit=st.floats(1e-3, 10), seed=st.integers(0, 99))
def test_clip_value_is_torchs(limit, seed):
    model = model_with((3, 2), (4,))
    tensors = {n: torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) for n, p in model.items()}
    clipped = Gradients(tensors, model).clip_value(limit)
    torch.nn.utils.clip_grad_value_(as_torch(model, tensors), limit)
    assert all(torch.equal(clipped[name], parameter.grad) for name, parameter in model.items())


@pytest.mark.parametrize("kind", [1.0, 2.0, math.inf])
def test_empty_gradients_do_not_count(kind):
    model = model_with((0, 2), (3,))
    grads = backward(sum(each.sum() * 2 for each in model.values()), model)
    assert grads.norm(kind) == torch.linalg.vector_norm(torch.full((3,), 2.0), kind)
    empty = nn.Embedding(4, 2, sparse=True)
    assert backward(empty(torch.zeros(0, dtype=torch.long)).sum(), empty).norm(kind) == 0


def test_sparse_gradients():
    table = nn.Embedding(6, 2, sparse=True)
    dense = nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
    rows = torch.tensor([1, 1, 4])

    def gradients(embedding):
        return backward((embedding(rows) * torch.tensor([[1.0, 2.0]])).sum() * 10, embedding)

    assert gradients(table)["weight"].is_sparse
    torch.testing.assert_close(gradients(table).norm(), gradients(dense).norm())
    for change in (
        lambda embedding: gradients(embedding).clip_norm(1.0),
        lambda embedding: gradients(embedding).clip_value(15.0),
        lambda embedding: gradients(embedding).scale(0.5),
        lambda embedding: gradients(embedding) + gradients(embedding),
    ):
        result = change(table)["weight"]
        assert result.is_sparse
        torch.testing.assert_close(result.to_dense(), change(dense)["weight"])
    assert bool(gradients(table).all_finite())


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_errors_for_invalid_limits_change_nothing(limit):
    model = model_with((2,))
    grads = Gradients({"p0": torch.ones(2)}, model)
    with pytest.raises(stoker.InvalidArgument, match="clip_norm needs a limit above 0, got"):
        grads.clip_norm(limit)
    with pytest.raises(stoker.InvalidArgument, match="clip_value needs a limit above 0, got"):
        grads.clip_value(limit)
    assert len(grads) == 1


def test_error_for_clipping_complex_gradients_by_value():
    model = nn.ParameterDict({"r": torch.ones(2), "c": torch.ones(2, dtype=torch.complex64)})
    grads = backward(model["r"].sum() + model["c"].abs().square().sum(), model)
    with pytest.raises(
        stoker.UnsupportedGradient, match="the complex gradient of 'c': complex numbers have no order; us"
    ):
        grads.clip_value(0.1)
    assert len(grads) == 2 and len(grads.clip_norm(1.0)) == 2


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda grads: grads.clip_norm("a"), "the limit of clip_norm is a number, got 'a'"),
        (lambda grads: grads.clip_norm(True), "the limit of clip_norm is a number, got True"),
        (lambda grads: grads.clip_norm(1.0, kind="inf"), "the kind of a norm is a number, got 'inf'"),
        (lambda grads: grads.clip_value(None), "the limit of clip_value is a number, got None"),
        (lambda grads: grads.scale("2"), "a factor is a number, got '2'"),
        (lambda grads: stoker.Accumulator().add(grads, weight="3"), "a weight is a number, got '3'"),
    ],
)
def test_what_is_not_a_number_raises_and_changes_nothing(use, text):
    grads = Gradients({"p0": torch.ones(2)}, model_with((2,)))
    with pytest.raises(stoker.WrongType, match=text):
        use(grads)
    assert len(grads) == 1
    assert grads.clone().clip_norm(torch.tensor(1.0)).norm().item() == pytest.approx(1.0, rel=1e-5)
