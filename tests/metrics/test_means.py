"""The loss, regression errors and functions are means over samples, whatever the batches."""

import math
from collections import namedtuple
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error

from stoker import InvalidArgument, WrongType
from stoker.metrics import MAE, MSE, R2, RMSE, Accuracy, Loss, of, weight_of
from stoker.steps import ClassificationOutput, RegressionOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
WEIGHT = torch.tensor([0.5, 2.0])
TOKENS = torch.zeros(2, 3, dtype=torch.long)
MASK = torch.tensor([[True, False, True], [True, True, True]])


@pytest.mark.parametrize(
    "output",
    [
        ClassificationOutput(LOSS, torch.zeros(2, 5, 3), TOKENS),
        RegressionOutput(LOSS, torch.zeros(2, 5), torch.zeros(2, 5), WEIGHT),
        SequenceOutput(LOSS, torch.zeros(2, 3, 9), TOKENS),
        SequenceOutput(LOSS, torch.zeros(2, 3, 9), TOKENS, MASK),
        SequenceOutput(LOSS, torch.zeros(2, 3, 9), TOKENS, MASK, WEIGHT),
    ],
)
def test_the_weight_of_a_typed_output_is_its_count(output):
    assert float(weight_of(output)) == output.count.item()


def test_the_weight_of_other_outputs_is_their_samples_or_one():
    assert weight_of(SupervisedOutput(LOSS, torch.zeros(8, 1), torch.zeros(7))) == 7
    assert weight_of(SupervisedOutput(LOSS, {"a": (torch.zeros(8),)}, None)) == 8
    assert weight_of(SupervisedOutput(LOSS, torch.zeros(2), [{"x": torch.zeros(3, 2)}, torch.zeros(9)])) == 3
    assert weight_of(SupervisedOutput(LOSS, torch.zeros(2), torch.zeros(2), WEIGHT)) == 2.5
    assert weight_of(SimpleNamespace(loss=LOSS)) == 1
    assert weight_of(SimpleNamespace(loss=LOSS, count=12)) == 12
    assert weight_of(namedtuple("Own", "loss")(LOSS)) == 1  # `count` is a method of tuples
    assert weight_of(SimpleNamespace(loss=LOSS, targets=torch.tensor(3))) == 1


def test_the_mean_loss_weighs_samples_and_hides_nan_only_of_weight_zero():
    nan, zeros = torch.tensor(math.nan), torch.zeros(3)
    good = SupervisedOutput(torch.tensor(2.0), zeros, zeros)
    more = SupervisedOutput(torch.tensor(6.0), zeros[0:1], None)
    assert value(Loss(), good, more) == 3.0
    empty = SupervisedOutput(nan, zeros[:0], zeros[:0])
    masked = SequenceOutput(nan, torch.zeros(2, 3, 4), TOKENS, TOKENS > 0)
    assert value(Loss(), masked, good, empty) == 2.0 and math.isnan(value(Loss(), masked))
    assert math.isnan(value(Loss(), good, SupervisedOutput(nan, zeros, zeros)))
    with pytest.raises(WrongType, match="loss needs an output with a loss that is a tensor; got SimpleNamespace"):
        value(Loss(), SimpleNamespace(loss=0.5))


def test_small_losses_are_not_lost_after_millions_of_batches():
    metric = Loss()
    state = {name: each + 1e9 for name, each in metric.init(torch.device("cpu")).items()}
    after = metric.update(state, SimpleNamespace(loss=torch.tensor(1e-3)))
    assert (after["sum"] - state["sum"]).item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("metric", "score"),
    [(MAE(), mean_absolute_error), (MSE(), mean_squared_error), (R2(), r2_score), (RMSE(), root_mean_squared_error)],
)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 12), offset=st.sampled_from([0.0, 1e6]))
def test_errors_equal_scikit_learn(metric, score, seed, n, offset):
    draw = torch.Generator().manual_seed(seed)
    predictions, targets = torch.randn(2, n, generator=draw).double() + offset
    weight = torch.rand(n, generator=draw).double()
    for Output in (RegressionOutput, SupervisedOutput):
        got = value(metric, Output(LOSS, predictions, targets, weight))
        assert got == pytest.approx(score(targets, predictions, sample_weight=weight), rel=1e-6, abs=1e-9)
    if metric.name != "rmse":  # scikit-learn averages the roots of the columns
        predictions, targets = torch.randn(2, n, 3, generator=draw)
        expected = score(targets.double(), predictions.double())
        assert value(metric, RegressionOutput(LOSS, predictions, targets)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_r2_of_constant_targets_is_one_or_zero_and_of_one_sample_nan(constant):
    targets = torch.full((7,), constant)
    for predictions, expected in ((targets, 1), (torch.arange(7.0), 0)):
        parts = [RegressionOutput(LOSS, predictions[rows], targets[rows]) for rows in (slice(0, 3), slice(3, 7))]
        assert value(R2(), *parts) == expected
    assert r2_score([0.5] * 7, [0.5] * 7) == 1 and r2_score([0.5] * 7, range(7)) == 0  # as in scikit-learn
    assert math.isnan(value(R2(), RegressionOutput(LOSS, targets[:1], targets[:1])))


@pytest.mark.parametrize("metric", [MAE(), MSE(), RMSE(), R2()])
def test_values_of_weight_zero_may_be_nan(metric):
    predictions, targets = torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([1.0, 3.0, float("nan")])
    weighted = value(metric, SupervisedOutput(LOSS, predictions, targets, torch.tensor([1.0, 1.0, 0.0])))
    assert weighted == value(metric, SupervisedOutput(LOSS, predictions[:2], targets[:2]))
    assert math.isnan(value(metric, SupervisedOutput(LOSS, predictions, targets, torch.zeros(3))))


def test_shapes_that_would_broadcast_raise():
    with pytest.raises(InvalidArgument, match=r"mae compares .* predictions \[8, 1\] and targets \[8\]"):
        value(MAE(), SupervisedOutput(LOSS, torch.zeros(8, 1), torch.zeros(8)))
    with pytest.raises(WrongType, match="r2 needs predictions that are numbers, .* ClassificationOutput has .logits"):
        value(R2(), ClassificationOutput(LOSS, torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)))


def is_right(scores, targets):
    return (scores.argmax(-1) == targets).float()


def absolute(predictions, targets):
    return (predictions - targets).abs().mean()


def test_values_of_a_function_count_by_weight_and_mask():
    logits, targets = torch.randn(9, 3, 4), torch.randint(4, (9, 3))
    weighted = ClassificationOutput(LOSS, logits[:, 0], targets[:, 0], torch.rand(9))
    for output in (weighted, SequenceOutput(LOSS, logits, targets, torch.rand(9, 3) < 0.5)):
        assert value(of(is_right), output) == pytest.approx(value(Accuracy(), output), abs=1e-12)


def test_a_function_that_returns_the_mean_of_a_batch_counts_by_samples():
    predictions, targets = torch.randn(2, 9, 2).double()
    expected = value(MAE(), SupervisedOutput(LOSS, predictions, targets))
    parts = [SupervisedOutput(LOSS, predictions[each], targets[each]) for each in (slice(0, 7), slice(7, 9))]
    assert value(of(absolute), *parts) == pytest.approx(expected, abs=1e-12)
    assert value(of(lambda a, b: absolute(a, b).item(), "number"), *parts) == pytest.approx(expected, abs=1e-6)
    assert math.isnan(value(of(absolute), SupervisedOutput(LOSS, torch.zeros(0), torch.zeros(0))))


def test_a_function_gets_any_structure_and_has_a_name():
    own = SimpleNamespace(predictions={"a": torch.ones(3)}, targets=(torch.zeros(3),))
    assert value(of(lambda predictions, targets: predictions["a"] - targets[0], name="gap"), own) == 1
    metric = of(is_right, direction="max", unit="%")
    assert (metric.name, metric.direction, metric.unit, metric.on) == ("is_right", "max", "%", "both")
    with pytest.raises(InvalidArgument, match=r"a lambda has no name .* write metrics.of\(fn, name='...'\)"):
        of(lambda predictions, targets: predictions)
    with pytest.raises(WrongType, match="metrics.of takes a function .* got 3"):
        of(3)  # pyright: ignore


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6, 1e9, -1e12])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_r2_far_from_zero_equals_the_exact_value(offset, scale):
    draw = torch.Generator().manual_seed(0)
    targets = offset + scale * torch.randn(100, 2, generator=draw, dtype=torch.float64)
    predictions = targets + 0.3 * scale * torch.randn(100, 2, generator=draw, dtype=torch.float64)
    exact = []
    for column in range(2):
        true, found = ([Fraction(x) for x in each[:, column].tolist()] for each in (targets, predictions))
        mean = sum(true) / len(true)
        residual = sum((a - b) ** 2 for a, b in zip(true, found, strict=True))
        exact.append(float(1 - residual / sum((a - mean) ** 2 for a in true)))
    parts = [RegressionOutput(LOSS, predictions[a:b], targets[a:b]) for a, b in ((0, 1), (1, 40), (40, 100))]
    metric = R2()
    merged = metric.merge(*[metric.update(metric.init(torch.device("cpu")), part) for part in parts[1:]])
    for got in (value(metric, *parts), metric.compute(metric.update(merged, parts[0]))):
        assert got == pytest.approx(sum(exact) / 2, rel=1e-9)
