"""Convolutions of few channels, as compiled steps on a GPU compute them, agree with torch's for every shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker import data, optim
from stoker.engine.executors import _compiled, _operations
from stoker.engine.executors._operations import adaptive_pool_backward, convolution, convolution_backward
from tests.executors.fits import Feature, assert_close, interpret_graphs, plan_of, results_of, run

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@st.composite
def convolutions(draw, strides):
    """Arguments of `aten.convolution`: 1 to 3 dimensions, any padding and dilation."""
    dims = draw(st.integers(1, 3))

    def sizes(least, most):
        return [draw(st.integers(least, most)) for _ in range(dims)]

    channels, filters, batch = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 3))
    numbers = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    kernel = sizes(1, 3)
    x = torch.randn(batch, channels, *sizes(5, 8), generator=numbers)
    weight = torch.randn(filters, channels, *kernel, generator=numbers)
    bias = torch.randn(filters, generator=numbers) if draw(st.booleans()) else None
    return x, weight, bias, sizes(1, strides), sizes(0, 2), sizes(1, 2), False, [0] * dims, 1


def assert_near(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@settings(deadline=None)
@given(convolutions(strides=3))
def test_the_decomposed_convolution_agrees_with_torch(how):
    weight = how[1]
    found = convolution(*how)
    if weight[0].numel() > _operations._MOST_TAPS:
        assert found is NotImplemented
    else:
        assert_near(found, aten.convolution(*how))
        assert found.is_contiguous()


@settings(deadline=None)
@given(convolutions(strides=1), st.booleans(), st.booleans())
def test_the_decomposed_gradients_agree_with_torch(how, of_x, of_weight):
    x, weight, bias, *way = how
    grad = torch.randn_like(aten.convolution(*how))
    wanted = [of_x, of_weight, bias is not None]
    given = (grad, x, weight, [len(weight)], *way, wanted)
    found = zip(wanted, convolution_backward(*given), aten.convolution_backward(*given), strict=True)
    for is_wanted, actual, expected in found:
        assert (actual is not None) == is_wanted
        if is_wanted:
            assert_near(actual, expected)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_the_decomposed_gradient_of_adaptive_pooling_agrees_with_torch(rows, columns, high, wide, batched):
    x, grad = torch.randn(2, 3, high, wide), torch.randn(2, 3, rows, columns)
    if not batched:
        x, grad = x[0], grad[0]
    found = adaptive_pool_backward(grad, x)
    if high % rows or wide % columns:
        assert found is NotImplemented
    else:
        assert_near(found, aten._adaptive_avg_pool2d_backward(grad, x))


def _decompose(x, weight, *, stride=1, transposed=False, groups=1):
    way = [stride] * 2, [0, 0], [1, 1], transposed, [0, 0], groups
    grad = aten.convolution(x, weight, None, *way)
    return convolution(x, weight, None, *way), convolution_backward(grad, x, weight, None, *way, [True, True, False])


X = torch.ones(2, 4, 6, 6)


@pytest.mark.parametrize(
    ("x", "weight", "how"),
    [
        (X, torch.ones(4, 2, 2, 2), {"groups": 2}),
        (X, torch.ones(4, 2, 2, 2), {"transposed": True}),
        (X.double(), torch.ones(4, 4, 2, 2).double(), {}),
        (X.bfloat16(), torch.ones(4, 4, 2, 2).bfloat16(), {}),
    ],
    ids=["groups", "transposed", "double", "bfloat16"],
)
def test_other_convolutions_are_left_to_torch(x, weight, how):
    assert _decompose(x, weight, **how) == (NotImplemented, NotImplemented)


def test_large_convolutions_are_left_to_torch(monkeypatch):
    many = torch.ones(4, 4, 3, 3)
    assert _decompose(X, many)[0] is NotImplemented and _decompose(X, many)[1] is not NotImplemented
    assert _decompose(X, many, stride=2)[1] is NotImplemented  # only gradients of stride 1 are decomposed
    assert _decompose(X, torch.ones(129, 4, 3, 3))[1] is NotImplemented
    few = torch.ones(4, 4, 2, 2)
    assert _decompose(X, few)[0] is not NotImplemented
    monkeypatch.setattr(_operations, "_MOST_TERMS", 2 * 5 * 5 * 16 * 4 - 1)
    assert _decompose(X, few)[0] is NotImplemented
    monkeypatch.setattr(_operations, "_LARGEST_MATRIX", 2 * 4 * 4 * 36 - 1)
    assert _decompose(X, many)[1] is NotImplemented
    assert _decompose(X, torch.ones(37, 4, 3, 3))[1] is NotImplemented  # its matrix of gradients is larger


@pytest.mark.parametrize("place", [torch.backends.cuda.matmul, torch.backends.cudnn.conv])
def test_without_tf32_gradients_are_left_to_torch(place):
    assert _decompose(X, torch.ones(4, 4, 2, 2))[1] is not NotImplemented
    before, place.fp32_precision = place.fp32_precision, "ieee"
    try:
        assert _decompose(X, torch.ones(4, 4, 2, 2))[1] is NotImplemented
    finally:
        place.fp32_precision = before


def _small():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1, dilation=2),
        nn.ReLU(),
        nn.Conv2d(12, 6, 2, stride=2, bias=False),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def _images():
    numbers = torch.Generator().manual_seed(1)
    x, y = torch.randn(52, 1, 14, 14, generator=numbers), torch.randint(3, (52,), generator=numbers)
    return data.Loader((x, y), batch_size=8)


@pytest.fixture
def patched(monkeypatch):
    """The convolutions that were computed from patches; without TF32 rounding, so that results are close."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(_operations, "_is_tf32", lambda: True)
    patches, found = _operations._patches, []
    monkeypatch.setattr(_operations, "_patches", lambda *args: found.append(args) or patches(*args))
    return found


def _assert_compiled_agrees_with_eager(device, patched):
    feature = Feature(_small, _images, lambda: {"optimizer": optim.SGD(momentum=0.9), "lr": 0.02})
    compiled, eager = run(feature, device=device, compile=True), run(feature, device=device, eager=True)
    assert plan_of(compiled).mode == "compiled", plan_of(compiled).reason
    assert len(patched) >= 6  # for full batches and for the short one: one forward and two backwards
    assert_close(results_of(compiled), results_of(eager), rtol=1e-3, atol=1e-4)


def test_a_traced_network_agrees_with_the_eager_one(patched, monkeypatch):
    ours = _compiled._REPLACEMENTS["cuda"]
    interpret_graphs(monkeypatch)
    monkeypatch.setattr(_compiled, "_REPLACEMENTS", {"cpu": ours})
    _assert_compiled_agrees_with_eager("cpu", patched)


@pytest.mark.cuda
def test_a_compiled_network_agrees_with_the_eager_one(patched):
    _assert_compiled_agrees_with_eager("cuda", patched)
