"""The loss, regression errors and functions are means over samples, whatever the batches."""

import math
from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import torchmetrics.functional.regression as regression
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error

from stoker import InvalidArgument, WrongType
from stoker.metrics import MAE, MSE, R2, RMSE, Accuracy, Loss, of, weight_of
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)
MASK = torch.tensor([[True, False, True], [True, True, True]])
WEIGHT = torch.tensor([0.5, 2.0])
CLASSES = torch.zeros(2, dtype=torch.long)
TYPED = [
    ClassificationOutput(LOSS, torch.zeros(2, 5), CLASSES),
    ClassificationOutput(LOSS, torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.long)),
    ClassificationOutput(LOSS, torch.zeros(2, 5, 3), torch.zeros(2, 3, dtype=torch.long), WEIGHT),
    MultiLabelOutput(LOSS, torch.zeros(2, 5), torch.zeros(2, 5)),
    RegressionOutput(LOSS, torch.zeros(2, 5), torch.zeros(2, 5)),
    RegressionOutput(LOSS, torch.zeros(2, 5), torch.zeros(2, 5), WEIGHT),
    SequenceOutput(LOSS, torch.zeros(2, 3, 9), torch.zeros(2, 3, dtype=torch.long)),
    SequenceOutput(LOSS, torch.zeros(2, 3, 9), torch.zeros(2, 3, dtype=torch.long), MASK),
    SequenceOutput(LOSS, torch.zeros(2, 3, 9), torch.zeros(2, 3, dtype=torch.long), MASK, WEIGHT),
]


@pytest.mark.parametrize("output", TYPED)
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


def test_the_mean_loss_weighs_samples_not_batches():
    predictions, targets = torch.randn(10, 2), torch.randn(10, 2)
    parts = [slice(0, 7), slice(7, 10)]
    outputs = [
        SupervisedOutput(F.mse_loss(predictions[each], targets[each]), predictions[each], targets[each])
        for each in parts
    ]
    assert value(Loss(), *outputs) == pytest.approx(F.mse_loss(predictions, targets).item(), rel=1e-6)


def test_a_batch_of_weight_zero_changes_nothing():
    good = SupervisedOutput(torch.tensor(2.0), torch.zeros(3), torch.zeros(3))
    empty = SupervisedOutput(torch.tensor(math.nan), torch.zeros(0), torch.zeros(0))
    tokens = torch.zeros(2, 3, dtype=torch.long)
    masked = SequenceOutput(torch.tensor(math.nan), torch.zeros(2, 3, 4), tokens, tokens > 0)
    assert value(Loss(), masked, good, empty) == 2.0
    assert math.isnan(value(Loss(), masked))


def test_a_nan_loss_is_not_hidden():
    nan = SupervisedOutput(torch.tensor(math.nan), torch.zeros(3), torch.zeros(3))
    assert math.isnan(value(Loss(), nan, SupervisedOutput(torch.tensor(2.0), torch.zeros(3), torch.zeros(3))))


def test_small_losses_are_not_lost_after_millions_of_batches():
    state, metric = Loss().init(torch.device("cpu")), Loss()
    state = {"sum": state["sum"] + 1e9, "count": state["count"] + 1e10}
    after = metric.update(state, SimpleNamespace(loss=torch.tensor(1e-3)))
    assert (after["sum"] - state["sum"]).item() == pytest.approx(1e-3, rel=1e-3)


def test_an_output_without_a_loss_raises():
    with pytest.raises(WrongType, match="loss needs an output with a loss that is a tensor; got SimpleNamespace"):
        value(Loss(), SimpleNamespace(loss=0.5))


@pytest.mark.parametrize(
    ("metric", "score"),
    [(MAE(), mean_absolute_error), (MSE(), mean_squared_error), (R2(), r2_score), (RMSE(), root_mean_squared_error)],
)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 12), offset=st.sampled_from([0.0, 1e6]))
def test_errors_equal_scikit_learn(metric, score, seed, n, offset):
    draw = torch.Generator().manual_seed(seed)
    predictions = torch.randn(n, generator=draw).double() + offset
    targets = torch.randn(n, generator=draw).double() + offset
    weight = torch.rand(n, generator=draw).double()
    for Output in (RegressionOutput, SupervisedOutput):
        got = value(metric, Output(LOSS, predictions, targets, weight))
        assert got == pytest.approx(score(targets, predictions, sample_weight=weight), rel=1e-6, abs=1e-9)
    if metric.name != "rmse":  # scikit-learn averages the roots of the columns
        wide = RegressionOutput(LOSS, torch.randn(n, 3, generator=draw), torch.randn(n, 3, generator=draw))
        expected = score(wide.targets.double(), wide.predictions.double())
        assert value(metric, wide) == pytest.approx(expected, rel=1e-9)


def test_errors_equal_torchmetrics():
    draw = torch.Generator().manual_seed(0)
    predictions, targets = torch.randn(20, 3, generator=draw), torch.randn(20, 3, generator=draw)
    output = RegressionOutput(LOSS, predictions, targets)
    assert value(MAE(), output) == pytest.approx(regression.mean_absolute_error(predictions, targets).item())
    assert value(MSE(), output) == pytest.approx(regression.mean_squared_error(predictions, targets).item())
    assert value(RMSE(), output) == pytest.approx(
        regression.mean_squared_error(predictions, targets, squared=False).item()
    )
    assert value(R2(), output) == pytest.approx(regression.r2_score(predictions, targets).item(), abs=1e-5)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_r2_of_constant_targets_is_one_or_zero(constant):
    targets = torch.full((7,), constant)
    batches = [slice(0, 3), slice(3, 7)]
    for predictions, expected in ((targets, 1), (torch.arange(7.0), 0)):
        outputs = [RegressionOutput(LOSS, predictions[rows], targets[rows]) for rows in batches]
        assert value(R2(), *outputs) == expected
    assert r2_score([0.5] * 7, [0.5] * 7) == 1 and r2_score([0.5] * 7, range(7)) == 0  # as in scikit-learn


def test_r2_of_fewer_than_two_samples_is_nan():
    one = torch.ones(1)
    assert math.isnan(value(R2(), RegressionOutput(LOSS, one, one)))
    masked = SupervisedOutput(LOSS, torch.ones(3), torch.ones(3), torch.tensor([1.0, 0.0, 0.0]))
    assert math.isnan(value(R2(), masked))


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
    logits, targets = torch.randn(9, 4, generator=DRAW), torch.randint(4, (9,), generator=DRAW)
    output = ClassificationOutput(LOSS, logits, targets, torch.rand(9, generator=DRAW))
    assert value(of(is_right), output) == pytest.approx(value(Accuracy(), output), abs=1e-12)
    logits, targets = torch.randn(9, 3, 4, generator=DRAW), torch.randint(4, (9, 3), generator=DRAW)
    output = SequenceOutput(LOSS, logits, targets, torch.rand(9, 3, generator=DRAW) < 0.5)
    assert value(of(is_right), output) == pytest.approx(value(Accuracy(), output), abs=1e-12)


def test_a_function_that_returns_the_mean_of_a_batch_counts_by_samples():
    predictions, targets = torch.randn(9, 2, generator=DRAW).double(), torch.randn(9, 2, generator=DRAW).double()
    whole = SupervisedOutput(LOSS, predictions, targets)
    parts = [SupervisedOutput(LOSS, predictions[each], targets[each]) for each in (slice(0, 7), slice(7, 9))]
    assert value(of(absolute), *parts) == pytest.approx(value(MAE(), whole), abs=1e-12)
    plain = of(lambda predictions, targets: absolute(predictions, targets).item(), "plain")
    assert value(plain, *parts) == pytest.approx(value(MAE(), whole), abs=1e-6)
    assert math.isnan(value(of(absolute), SupervisedOutput(LOSS, torch.zeros(0), torch.zeros(0))))


def test_a_function_gets_any_structure():
    own = SimpleNamespace(predictions={"a": torch.ones(3)}, targets=(torch.zeros(3),))
    assert value(of(lambda predictions, targets: predictions["a"] - targets[0], name="gap"), own) == 1


def test_name_direction_and_unit_of_a_function():
    metric = of(is_right, direction="max", unit="%")
    assert (metric.name, metric.direction, metric.unit, metric.on) == ("is_right", "max", "%", "both")
    with pytest.raises(
        InvalidArgument, match=r"a lambda has no name for the metric: write metrics.of\(fn, name='...'\)"
    ):
        of(lambda predictions, targets: predictions)
    with pytest.raises(WrongType, match="metrics.of takes a function .* got 3"):
        of(3)  # pyright: ignore
