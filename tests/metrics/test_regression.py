import math

import pytest
import torch
import torchmetrics.functional.regression as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score, root_mean_squared_error

from stoker import InvalidArgument, WrongType
from stoker.metrics import MAE, MSE, R2, RMSE
from stoker.steps import ClassificationOutput, RegressionOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)


@pytest.mark.parametrize(
    ("metric", "score"),
    [(MAE(), mean_absolute_error), (MSE(), mean_squared_error), (R2(), r2_score), (RMSE(), root_mean_squared_error)],
)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 12), offset=st.sampled_from([0.0, 1e6]))
def test_errors_are_those_of_scikit_learn(metric, score, seed, n, offset):
    draw = torch.Generator().manual_seed(seed)
    predictions = torch.randn(n, generator=draw).double() + offset
    targets = torch.randn(n, generator=draw).double() + offset
    weight = torch.rand(n, generator=draw).double()
    for Output in (RegressionOutput, SupervisedOutput):
        got = value(metric, Output(LOSS, predictions, targets, weight))
        assert got == pytest.approx(score(targets, predictions, sample_weight=weight), rel=1e-6, abs=1e-9)
    if metric.name != "rmse":  # there scikit-learn takes the root first and the mean over columns then
        wide = RegressionOutput(LOSS, torch.randn(n, 3, generator=draw), torch.randn(n, 3, generator=draw))
        expected = score(wide.targets.double(), wide.predictions.double())
        assert value(metric, wide) == pytest.approx(expected, rel=1e-9)


def test_errors_are_those_of_torchmetrics():
    draw = torch.Generator().manual_seed(0)
    predictions, targets = torch.randn(20, 3, generator=draw), torch.randn(20, 3, generator=draw)
    output = RegressionOutput(LOSS, predictions, targets)
    assert value(MAE(), output) == pytest.approx(reference.mean_absolute_error(predictions, targets).item())
    assert value(MSE(), output) == pytest.approx(reference.mean_squared_error(predictions, targets).item())
    assert value(RMSE(), output) == pytest.approx(
        reference.mean_squared_error(predictions, targets, squared=False).item()
    )
    assert value(R2(), output) == pytest.approx(reference.r2_score(predictions, targets).item(), abs=1e-5)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e6])
def test_targets_that_are_all_the_same_give_one_or_zero(constant):
    targets = torch.full((7,), constant)
    batches = [slice(0, 3), slice(3, 7)]
    for predictions, expected in ((targets, 1), (torch.arange(7.0), 0)):
        outputs = [RegressionOutput(LOSS, predictions[rows], targets[rows]) for rows in batches]
        assert value(R2(), *outputs) == expected
    assert r2_score([0.5] * 7, [0.5] * 7) == 1 and r2_score([0.5] * 7, range(7)) == 0  # the rule is scikit-learn's


def test_fewer_than_two_samples_have_no_r2():
    one = torch.ones(1)
    assert math.isnan(value(R2(), RegressionOutput(LOSS, one, one)))
    masked = SupervisedOutput(LOSS, torch.ones(3), torch.ones(3), torch.tensor([1.0, 0.0, 0.0]))
    assert math.isnan(value(R2(), masked))


@pytest.mark.parametrize("metric", [MAE(), MSE(), RMSE(), R2()])
def test_what_weighs_nothing_may_be_nan(metric):
    predictions, targets = torch.tensor([1.0, 2.0, float("nan")]), torch.tensor([1.0, 3.0, float("nan")])
    weighted = value(metric, SupervisedOutput(LOSS, predictions, targets, torch.tensor([1.0, 1.0, 0.0])))
    assert weighted == value(metric, SupervisedOutput(LOSS, predictions[:2], targets[:2]))
    assert math.isnan(value(metric, SupervisedOutput(LOSS, predictions, targets, torch.zeros(3))))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(InvalidArgument, match=r"mae compares .* predictions \[8, 1\] and targets \[8\]"):
        value(MAE(), SupervisedOutput(LOSS, torch.zeros(8, 1), torch.zeros(8)))
    with pytest.raises(WrongType, match="r2 needs predictions that are numbers, .* ClassificationOutput has .logits"):
        value(R2(), ClassificationOutput(LOSS, torch.zeros(8, 2), torch.zeros(8, dtype=torch.long)))
