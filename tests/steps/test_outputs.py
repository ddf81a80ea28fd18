from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType
from stoker.steps import ClassificationOutput, MultiLabelOutput, Output, RegressionOutput, SequenceOutput

LOSS = torch.tensor(0.5)


def outputs():
    """One of each, with a graph, a weight and (for sequences) a mask."""
    flat = torch.randn(4, 3, requires_grad=True)
    tokens = torch.randn(2, 5, 7, requires_grad=True)
    weight = torch.tensor([1.0, 0.5, 0.0, 2.0])
    mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    return [
        ClassificationOutput(flat.sum(), flat * 1, torch.tensor([0, 1, 2, 0]), weight),
        MultiLabelOutput(flat.sum(), flat * 1, torch.ones(4, 3), weight),
        RegressionOutput(flat.sum(), flat * 1, torch.ones(4, 3), weight),
        SequenceOutput(tokens.sum(), tokens * 1, torch.zeros(2, 5, dtype=torch.long), mask, torch.tensor([1.0, 2.0])),
    ]


def test_anything_with_a_loss_is_an_output():
    @dataclass
    class Mine:
        loss: Tensor
        tree: str

    assert all(isinstance(output, Output) for output in outputs())
    assert isinstance(Mine(LOSS, "oak"), Output)
    assert not isinstance(object(), Output)


def test_predictions():
    logits = torch.tensor([[0.1, 0.9], [2.0, -1.0]])
    assert ClassificationOutput(LOSS, logits, torch.tensor([1, 1])).predictions.tolist() == [1, 0]
    assert MultiLabelOutput(LOSS, logits, torch.zeros(2, 2)).predictions.tolist() == [[True, True], [True, False]]
    assert SequenceOutput(LOSS, logits[None], torch.zeros(1, 2)).predictions.tolist() == [[1, 0]]
    pixels = torch.randn(2, 5, 4, 3)  # classes in dimension 1, as in cross_entropy
    assert ClassificationOutput(LOSS, pixels, pixels.argmax(1)).predictions.equal(pixels.argmax(1))


def test_without_a_weight_everything_counts_one():
    assert ClassificationOutput(LOSS, torch.randn(4, 3), torch.zeros(4)).weights.tolist() == [1.0] * 4
    assert ClassificationOutput(LOSS, torch.randn(4, 3, 2, 2), torch.zeros(4, 2, 2)).count == 16  # pixels
    assert ClassificationOutput(LOSS, torch.randn(4, 3), torch.rand(4, 3)).count == 4  # probabilities
    assert MultiLabelOutput(LOSS, torch.randn(4, 3), torch.zeros(4, 3)).count == 4
    assert MultiLabelOutput(LOSS, torch.randn(4), torch.zeros(4)).count == 4
    assert RegressionOutput(LOSS, torch.randn(4, 3), torch.zeros(4, 3)).count == 4
    assert SequenceOutput(LOSS, torch.randn(2, 5, 7), torch.zeros(2, 5)).count == 10


def test_weights_and_count_with_weight_and_mask():
    classification, multi, regression, sequence = outputs()
    for output in (classification, multi, regression):
        assert output.weights.tolist() == [1.0, 0.5, 0.0, 2.0]
        assert output.count == 3.5
    assert sequence.weights.tolist() == [[1, 1, 1, 0, 0], [2, 2, 2, 2, 2]]
    assert sequence.count == 13
    by_token = SequenceOutput(LOSS, torch.randn(1, 3, 7), torch.zeros(1, 3), weight=torch.tensor([[0.0, 1.0, 2.0]]))
    assert by_token.weights.tolist() == [[0.0, 1.0, 2.0]]


def test_padding_is_ignored_even_if_its_weight_is_nan():
    nan = torch.tensor([[1.0, float("nan")]])
    output = SequenceOutput(LOSS, torch.randn(1, 2, 7), torch.zeros(1, 2), torch.tensor([[True, False]]), nan)
    assert output.count == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_counts_of_16_bit_weights_are_exact(dtype):
    weight = torch.ones(5001, dtype=dtype)
    output = RegressionOutput(LOSS, torch.zeros(5001, dtype=torch.float16), torch.zeros(5001), weight)
    assert output.count == 5001
    assert output.weights.dtype == torch.float32


def test_a_float64_weight_stays_float64():
    output = RegressionOutput(LOSS, torch.zeros(2), torch.zeros(2), torch.ones(2, dtype=torch.float64))
    assert output.count.dtype == torch.float64


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans(), st.integers(0, 99))
def test_any_split_of_a_batch_gives_the_same_mean(sizes, weighted, seed):
    torch.manual_seed(seed)
    logits, targets = torch.randn(sum(sizes), 4, dtype=torch.float64), torch.randint(4, (sum(sizes),))
    weight = torch.rand(sum(sizes), dtype=torch.float64) if weighted else None

    def output(part):
        losses = F.cross_entropy(logits[part], targets[part], reduction="none")
        if weight is None:
            return ClassificationOutput(losses.mean(), logits[part], targets[part])
        loss = (losses * weight[part]).sum() / weight[part].sum()
        return ClassificationOutput(loss, logits[part], targets[part], weight[part])

    parts = [output(part) for part in torch.arange(sum(sizes)).split(sizes)]
    mean = sum(part.loss * part.count for part in parts) / sum(part.count for part in parts)
    assert torch.allclose(mean, output(slice(None)).loss, rtol=1e-12)


def test_detach_gives_the_same_output_without_its_graph():
    for output in outputs():
        bare = output.detach()
        assert type(bare) is type(output)
        assert output.loss.requires_grad
        assert not bare.loss.requires_grad
        values = bare.predictions if isinstance(bare, RegressionOutput) else bare.logits
        assert not values.requires_grad
        assert bare.count == output.count
        assert bare.loss == output.loss
    assert SequenceOutput(LOSS, torch.randn(1, 2, 3), torch.zeros(1, 2)).detach().mask is None


def test_outputs_are_frozen_and_show_shapes_not_values():
    output = outputs()[3]
    with pytest.raises(FrozenInstanceError):
        output.loss = LOSS
    assert repr(output) == "SequenceOutput(loss=[], logits=[2, 5, 7], targets=[2, 5], mask=[2, 5], weight=[2])"
    assert repr(RegressionOutput(LOSS, LOSS, LOSS)) == "RegressionOutput(loss=[], predictions=[], targets=[])"


def ones(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


WRONG = [
    (
        ClassificationOutput,
        (ones(8, 10), ones(8, 1)),
        r"need targets of shape \[8\] .* or \[8, 10\].*; got \[8, 1\] of torch.fl",
    ),
    (ClassificationOutput, (ones(8, 10), ones(8, 10, dtype=torch.long)), r"got \[8, 10\] of torch.int64"),
    (ClassificationOutput, (ones(8), ones(8)), r"got \[8\] \(for one .* MultiLabelOutput"),
    (ClassificationOutput, (ones(8, 2), ones(8), ones(7)), r"weight must have the shape \[8\]; got \[7\]"),
    (
        ClassificationOutput,
        (ones(8, 2, 3), ones(8, 3), ones(3)),
        r"weight must have the shape \[8\] or \[8, 3\]; got \[3\]",
    ),
    (MultiLabelOutput, (ones(8, 4), ones(8)), r"must have the same shape; got logits \[8, 4\] and targets \[8\]"),
    (RegressionOutput, (ones(8, 1), ones(8)), r"same shape; got predictions \[8, 1\] and targets \[8\].*reshape"),
    (RegressionOutput, (ones(8), ones(8), ones(8, 1)), r"\[8\]; got \[8, 1\]"),
    (
        SequenceOutput,
        (ones(2, 9, 5), ones(2, 5)),
        r"\[..., tokens, vocabulary\].*; got logits \[2, 9, 5\] and targets \[2, 5\]",
    ),
    (
        SequenceOutput,
        (ones(2, 5, 9), ones(2, 5), ones(2, dtype=torch.bool)),
        r"shape of the targets, \[2, 5\].*; got \[2\] of",
    ),
    (
        SequenceOutput,
        (ones(2, 5, 9), ones(2, 5), ones(2, 5)),
        r"dtype torch.bool, True where .*; got \[2, 5\] of torch.float32",
    ),
    (SequenceOutput, (ones(2, 5, 9), ones(2, 5), None, ones(5)), r"the shape \[2\] or \[2, 5\]; got \[5\]"),
]


@pytest.mark.parametrize(("kind", "parts", "text"), WRONG)
def test_errors_for_shapes_that_do_not_match(kind, parts, text):
    with pytest.raises(InvalidArgument, match=text):
        kind(LOSS, *parts)


def test_errors_for_what_is_not_a_tensor():
    with pytest.raises(WrongType, match="loss of a RegressionOutput must be a torch.Tensor; got float"):
        RegressionOutput(0.5, torch.ones(2), torch.ones(2))
    with pytest.raises(WrongType, match="targets of a ClassificationOutput must be a torch.Tensor; got list"):
        ClassificationOutput(LOSS, torch.ones(2, 2), [0, 1])


def test_outputs_compile_without_graph_breaks():
    def step(x, targets, mask):
        one = ClassificationOutput(F.cross_entropy(x, targets), x, targets)
        many = MultiLabelOutput(x.mean(), x, torch.ones_like(x), one.weights)
        real = RegressionOutput(x.mean(), x, x * 2)
        tokens = SequenceOutput(x.mean(), x, targets, mask)
        return [(each.loss, each.count, each.predictions, each.detach().loss) for each in (one, many, real, tokens)]

    x, targets, mask = torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), torch.tensor([True, True, False, True])
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for got, expected in zip(compiled(x, targets, mask), step(x, targets, mask), strict=True):
        assert all(a.equal(b) for a, b in zip(got, expected, strict=True))


def test_no_value_is_read():
    """On the meta device there are no values: reading one is an error."""
    logits = torch.randn(2, 5, 7, device="meta")
    targets = torch.zeros(2, 5, device="meta")
    output = SequenceOutput(logits.mean(), logits, targets, targets > 0, torch.ones(2, device="meta"))
    assert output.count.device.type == "meta"
    assert output.detach().predictions.shape == (2, 5)
    assert "[2, 5, 7]" in repr(output)
    one = ClassificationOutput(logits.mean(), logits, targets.new_zeros(2, 7))
    assert one.count.device.type == "meta"
