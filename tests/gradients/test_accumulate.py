"""Promise 2: any split of a batch gives the gradient of the batch."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import Accumulator, Gradients, GradientsConsumed, backward


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_any_split_of_a_batch_gives_the_gradient_of_the_batch(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    n = sum(sizes)
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (n,), generator=generator)
    model, accumulator = net(), Accumulator()
    for images, targets in zip(x.split(sizes), y.split(sizes), strict=True):
        accumulator.add(backward(F.cross_entropy(model(images), targets), model), weight=len(images))
    assert len(accumulator) == len(sizes)
    grads, whole = accumulator.take(), backward(F.cross_entropy(model(x), y), model)
    assert len(accumulator) == 0
    for name in whole:
        torch.testing.assert_close(grads[name], whole[name], rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=2, max_size=5))
def test_masked_tokens_weigh_as_tokens(lengths):
    """A micro-batch without a single token that counts has weight 0, and its NaN loss goes nowhere."""
    if sum(lengths) == 0:
        return
    torch.manual_seed(1)
    model, accumulator = net(), Accumulator()
    xs = [torch.randn(length, 4, dtype=torch.float64) for length in lengths]
    ys = [torch.randint(0, 3, (length,)) for length in lengths]
    for x, y in zip(xs, ys, strict=True):
        accumulator.add(backward(F.cross_entropy(model(x), y), model), weight=len(y))
    grads, whole = accumulator.take(), backward(F.cross_entropy(model(torch.cat(xs)), torch.cat(ys)), model)
    for name in whole:
        torch.testing.assert_close(grads[name], whole[name], rtol=1e-9, atol=1e-12)


def test_the_weight_may_be_a_tensor():
    model, first, second = net(), Accumulator(), Accumulator()
    for count in (3, 5):
        x = torch.randn(count, 4, dtype=torch.float64)
        grads = backward(model(x).mean(), model)
        first.add(grads.clone(), weight=torch.tensor(count))
        second.add(grads, weight=count)
    a, b = first.take(), second.take()
    for name in b:
        torch.testing.assert_close(a[name], b[name], rtol=1e-12, atol=0)


def test_a_sum():
    model, accumulator = nn.Linear(1, 1, bias=False), Accumulator(reduce="sum")
    for value in (1.0, 2.0):
        accumulator.add(Gradients({"weight": torch.tensor([[value]])}, model), weight=3)
    assert torch.equal(accumulator.take()["weight"], torch.tensor([[9.0]]))


def test_a_parameter_in_only_some_of_the_additions_counts_as_zero_in_the_others():
    model = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    accumulator = Accumulator()
    accumulator.add(Gradients({"b.weight": torch.tensor([[6.0]])}, model), weight=1)
    accumulator.add(Gradients({"a.weight": torch.tensor([[4.0]])}, model), weight=3)
    grads = accumulator.take()
    assert list(grads) == ["a.weight", "b.weight"]  # the model's order, not the order of arrival
    assert grads["a.weight"].item() == 3.0 and grads["b.weight"].item() == 1.5


def test_zero_weight_keeps_an_infinite_gradient_out():
    model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    accumulator.add(Gradients({"weight": torch.tensor([[float("inf")]])}, model), weight=0)
    accumulator.add(Gradients({"weight": torch.tensor([[2.0]])}, model), weight=1)
    assert accumulator.take()["weight"].item() == 2.0


def test_sixteen_bits_are_added_up_in_thirty_two():
    """In bf16 256 + 1 is 256: a window of many micro-batches would lose what it adds."""
    model, accumulator = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16), Accumulator(reduce="sum")
    for _ in range(512):
        accumulator.add(Gradients({"weight": torch.ones(1, 1, dtype=torch.bfloat16)}, model))
    grads = accumulator.take()
    assert grads["weight"].item() == 512 and grads["weight"].dtype == torch.bfloat16


def test_what_is_added_is_used_up_and_never_written_to():
    model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    mine = torch.tensor([[1.0]])
    grads = Gradients({"weight": mine}, model)
    accumulator.add(grads)
    accumulator.add(Gradients({"weight": torch.tensor([[5.0]])}, model))
    assert len(grads) == 0 and mine.item() == 1.0
    with pytest.raises(GradientsConsumed, match=r"by Accumulator.add"):
        grads.norm()
    assert accumulator.take()["weight"].item() == 3.0


def test_sparse_gradients_add_up():
    table, accumulator = nn.Embedding(5, 2, sparse=True), Accumulator()
    for row in (1, 3):
        accumulator.add(backward(table(torch.tensor([row])).sum(), table))
    grads = accumulator.take()
    expected = torch.zeros(5, 2)
    expected[[1, 3]] = 0.5
    assert torch.equal(grads["weight"].to_dense(), expected)


def test_an_update_after_an_accumulated_one_starts_anew():
    model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    for value in (1.0, 7.0):
        accumulator.add(Gradients({"weight": torch.tensor([[value]])}, model), weight=5)
        assert accumulator.take()["weight"].item() == value


def test_mistakes_are_errors_and_lose_nothing():
    model, accumulator = nn.Linear(1, 1, bias=False), Accumulator()
    with pytest.raises(GradientsConsumed, match="the accumulator is empty: add gradients before taking them"):
        accumulator.take()
    with pytest.raises(stoker.InvalidArgument, match='reduce is "mean" or "sum", got \'max\''):
        Accumulator(reduce="max")
    with pytest.raises(stoker.WrongType, match="add takes Gradients, got Tensor"):
        accumulator.add(torch.ones(1))
    grads = Gradients({"weight": torch.ones(1, 1)}, model)
    for weight in (-1, float("nan"), float("inf")):
        with pytest.raises(stoker.InvalidArgument, match="a weight is a number of at least 0, got"):
            accumulator.add(grads, weight=weight)
    assert len(grads) == 1 and len(accumulator) == 0
    accumulator.add(grads, weight=0)
    with pytest.raises(stoker.InvalidArgument, match="all 1 gradients in the accumulator had weight 0"):
        accumulator.take()
    other = nn.Linear(1, 1, bias=False)
    with pytest.raises(stoker.InvalidArgument, match="'weight' is another parameter than before"):
        accumulator.add(Gradients({"weight": torch.ones(1, 1)}, other))


def test_additions_that_know_more_of_the_model_than_the_first():
    encoder, decoder, x = nn.Linear(2, 2), nn.Linear(2, 2), torch.ones(1, 2)
    both = {"decoder": decoder, "encoder": encoder}
    for first, second in ((both, {"encoder": encoder}), ({"encoder": encoder}, both)):
        accumulator = Accumulator()
        for models in (first, second):
            accumulator.add(backward(decoder(encoder(x)).sum(), models))
        grads, whole = accumulator.take(), backward(decoder(encoder(x)).sum(), both)
        assert list(grads) == list(whole)  # the order of the larger one
        assert torch.equal(grads["encoder.weight"], whole["encoder.weight"])
        assert torch.equal(grads["decoder.weight"], whole["decoder.weight"] / 2)
        assert list(grads.take(decoder)) == ["decoder.weight", "decoder.bias"]


def test_one_parameter_under_two_names_is_refused():
    layer, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    accumulator = Accumulator()
    accumulator.add(backward(layer(x).sum(), layer))
    grads = backward(layer(x).sum(), {"layer": layer})
    with pytest.raises(
        stoker.InvalidArgument, match="'weight' and 'layer.weight' are two names of one parameter: give"
    ):
        accumulator.add(grads)
    assert len(accumulator) == len(grads) == 1
    with pytest.raises(stoker.InvalidArgument, match="'weight' and 'layer.weight' are two names of one parameter"):
        backward(layer(x).sum(), layer) + grads


@pytest.mark.parametrize("sparse", [False, True])
def test_a_zero_weight_in_a_tensor_counts_as_nothing(sparse):
    table = nn.Embedding(3, 2, sparse=sparse)
    rows = torch.tensor([1, 1])
    for order in ((0.0, 2.0), (2.0, 0.0)):
        accumulator = Accumulator()
        for weight in order:
            loss = table(rows).sum() * (1.0 if weight else float("nan"))
            accumulator.add(backward(loss, table), weight=torch.tensor(weight))
        grad = accumulator.take()["weight"]
        assert torch.equal(grad.to_dense() if sparse else grad, torch.tensor([[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]))


def test_a_weight_is_one_number():
    model, accumulator = nn.ParameterDict({"p": torch.ones(())}), Accumulator()
    grads = Gradients({"p": torch.tensor(3.0)}, model)
    with pytest.raises(stoker.InvalidArgument, match=r"a weight is one number, got a tensor of shape \[2\]"):
        accumulator.add(grads, weight=torch.ones(2))
    assert len(grads) == 1 and len(accumulator) == 0
    accumulator.add(grads, weight=torch.tensor([2]))
    assert torch.equal(accumulator.take()["p"], torch.tensor(3.0))  # no dimension gained
