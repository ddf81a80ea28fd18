"""Convolutions of few channels, as a compiled program on a GPU computes them: what torch gives, for every shape."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker import data, optim
from stoker.engine.executors import _compiled, _small_convolutions
from stoker.engine.executors._small_convolutions import (
    adaptive_pool_backward,
    convolution,
    convolution_backward,
)
from tests.executors.fits import Feature, assert_close, interpreted, outcome, run

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def tf32():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@st.composite
def convolutions(draw, strides):
    """What torch's operation is called with: 1 to 3 dimensions, any padding and dilation."""
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


def close(mine, torchs):
    torch.testing.assert_close(mine, torchs, rtol=1e-4, atol=1e-4)


@settings(deadline=None)
@given(convolutions(strides=3))
def test_a_convolution_written_out_is_torchs(how):
    weight = how[1]
    found = convolution(*how)
    if weight[0].numel() > _small_convolutions._MOST_TAPS:
        assert found is NotImplemented
    else:
        close(found, aten.convolution(*how))
        assert found.is_contiguous()


@settings(deadline=None)
@given(convolutions(strides=1), st.booleans(), st.booleans())
def test_its_gradients_are_torchs(how, of_x, of_weight):
    x, weight, bias, *way = how
    grad = torch.randn_like(aten.convolution(*how))
    wanted = [of_x, of_weight, bias is not None]
    given = (grad, x, weight, [len(weight)], *way, wanted)
    found = zip(wanted, convolution_backward(*given), aten.convolution_backward(*given), strict=True)
    for is_wanted, mine, torchs in found:
        assert (mine is not None) == is_wanted
        if is_wanted:
            close(mine, torchs)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_the_gradient_of_a_pool_is_torchs(rows, columns, high, wide, batched):
    x, grad = torch.randn(2, 3, high, wide), torch.randn(2, 3, rows, columns)
    if not batched:
        x, grad = x[0], grad[0]
    found = adaptive_pool_backward(grad, x)
    if high % rows or wide % columns:
        assert found is NotImplemented
    else:
        close(found, aten._adaptive_avg_pool2d_backward(grad, x))


def _called(x, weight, *, stride=1, transposed=False, groups=1):
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
def test_others_are_left_to_torch(x, weight, how):
    assert _called(x, weight, **how) == (NotImplemented, NotImplemented)


def test_large_ones_are_left_to_torch(monkeypatch):
    many = torch.ones(4, 4, 3, 3)
    assert _called(X, many)[0] is NotImplemented and _called(X, many)[1] is not NotImplemented
    assert _called(X, many, stride=2)[1] is NotImplemented  # whose patches would have to be put apart again
    assert _called(X, torch.ones(129, 4, 3, 3))[1] is NotImplemented
    few = torch.ones(4, 4, 2, 2)
    assert _called(X, few)[0] is not NotImplemented
    monkeypatch.setattr(_small_convolutions, "_MOST_TERMS", 2 * 5 * 5 * 16 * 4 - 1)
    assert _called(X, few)[0] is NotImplemented
    monkeypatch.setattr(_small_convolutions, "_LARGEST_MATRIX", 2 * 4 * 4 * 36 - 1)
    assert _called(X, many)[1] is NotImplemented
    assert _called(X, torch.ones(37, 4, 3, 3))[1] is NotImplemented  # of which the gradients are a larger matrix


@pytest.mark.parametrize("place", [torch.backends.cuda.matmul, torch.backends.cudnn.conv])
def test_without_tf32_gradients_are_left_to_torch(place):
    assert _called(X, torch.ones(4, 4, 2, 2))[1] is not NotImplemented
    before, place.fp32_precision = place.fp32_precision, "ieee"
    try:
        assert _called(X, torch.ones(4, 4, 2, 2))[1] is NotImplemented
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
    """Those that were cut into patches; nothing is rounded, which leaves small differences only."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(_small_convolutions, "_is_tf32", lambda: True)
    patches, found = _small_convolutions._patches, []
    monkeypatch.setattr(_small_convolutions, "_patches", lambda *given: found.append(given) or patches(*given))
    return found


def _assert_learns_the_same(device, patched):
    feature = Feature(_small, _images, lambda: {"optimizer": optim.SGD(momentum=0.9), "lr": 0.02})
    compiled, eager = run(feature, device=device, compile=True), run(feature, device=device, eager=True)
    assert compiled._prepared.fit.plan.mode == "compiled", compiled._prepared.fit.plan.reason
    assert len(patched) >= 6  # whole batches and the short one: one forward, and backwards of two layers
    assert_close(outcome(compiled), outcome(eager), rtol=1e-3, atol=1e-4)


def test_a_network_of_them_learns_what_it_does_eagerly(patched, monkeypatch):
    ours = _compiled._REPLACEMENTS["cuda"]
    interpreted(monkeypatch)
    monkeypatch.setattr(_compiled, "_REPLACEMENTS", {"cpu": ours})
    _assert_learns_the_same("cpu", patched)


@pytest.mark.cuda
def test_a_compiled_network_of_them_learns_what_it_does_eagerly(patched):
    _assert_learns_the_same("cuda", patched)
