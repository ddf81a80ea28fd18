"""`as_metric` accepts metrics, meters and torchmetrics, which keep their values through the adapter."""

import math
from types import SimpleNamespace

import pytest
import torch
import torchmetrics
from torchmetrics import classification, image, regression, wrappers

from stoker import InvalidArgument, WrongType, metrics
from stoker.metrics import AUROC, Accuracy, as_metric, flatten_value
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import CPU, value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)
LOGITS, TARGETS = torch.randn(12, 4, generator=DRAW), torch.randint(4, (12,), generator=DRAW)
PARTS = [ClassificationOutput(LOSS, LOGITS[rows], TARGETS[rows]) for rows in (slice(0, 5), slice(5, 12))]


@pytest.mark.parametrize(
    "given",
    [
        classification.MulticlassAccuracy(4, average=None),
        classification.MulticlassAUROC(4),  # keeps lists
        classification.MulticlassConfusionMatrix(4),
        wrappers.ClasswiseWrapper(classification.MulticlassRecall(4, average=None)),
        wrappers.MinMaxMetric(classification.MulticlassAccuracy(4)),
    ],
)
def test_a_torchmetric_gives_the_same_value_as_alone(given):
    alone = given.clone()
    alone.update(LOGITS, TARGETS)
    alone = alone.compute()
    metric = as_metric(given)
    expected = {name: each.item() for name, each in alone.items()} if isinstance(alone, dict) else alone.tolist()
    assert flatten_value("it", value(metric, *PARTS)) == pytest.approx(flatten_value("it", expected))
    inner = [part for part in given.modules() if isinstance(part, torchmetrics.Metric)]
    untouched = [each == [] or not each.any() for part in inner for each in part.metric_state.values()]
    assert all(untouched), "the user's own metric stays unchanged"


def test_states_of_a_torchmetric_are_independent():
    for given in (classification.MulticlassAccuracy(4, average="micro"), classification.MulticlassAUROC(4)):
        metric = as_metric(given)
        first = metric.update(metric.init(CPU), PARTS[0])
        other = metric.update(metric.init(CPU), PARTS[1])  # for example validation in the middle of training
        both = metric.compute(metric.update(first, PARTS[1]))
        assert both == pytest.approx(value(metric, *PARTS)) == metric.compute(metric.merge(first, other))
        assert metric.compute(first) == value(metric, PARTS[0])
        assert metric.compute(metric.merge(metric.init(CPU), first)) == metric.compute(first)
        assert math.isnan(metric.compute(metric.init(CPU)))
        assert all(isinstance(each, torch.Tensor) for each in first.values())


def test_a_torchmetric_gets_the_layout_that_it_expects():
    logits, targets = torch.randn(9, 1, generator=DRAW), torch.randint(2, (9,), generator=DRAW).float()
    for output in (SupervisedOutput(LOSS, logits, targets), MultiLabelOutput(LOSS, logits[:, 0], targets)):
        assert value(as_metric(classification.BinaryAccuracy()), output) == pytest.approx(value(Accuracy(), output))
        assert value(as_metric(classification.BinaryAUROC()), output) == pytest.approx(value(AUROC(), output))
    logits, targets = torch.randn(3, 5, 4, generator=DRAW), torch.randint(4, (3, 5), generator=DRAW)
    mask = torch.rand(3, 5, generator=DRAW) < 0.5
    accuracy = as_metric(classification.MulticlassAccuracy(4, average="micro"))
    for output in (SequenceOutput(LOSS, logits, targets), SequenceOutput(LOSS, logits, targets, mask)):
        assert value(accuracy, output) == pytest.approx(value(Accuracy(), output))
    dense = ClassificationOutput(LOSS, logits.mT, targets)
    assert value(accuracy, dense) == pytest.approx(value(Accuracy(), dense))
    square = SequenceOutput(LOSS, logits[:, :4], targets[:, :4])  # as many positions as classes
    assert value(accuracy, square) == pytest.approx(value(Accuracy(), square))


def test_name_and_direction_come_from_the_torchmetric():
    metric = as_metric(regression.MeanAbsoluteError())
    assert (metric.name, metric.direction, metric.static, metric.unit) == ("mean_absolute_error", "min", False, "")
    assert as_metric(classification.BinaryAUROC()).direction == "max"


def test_outputs_and_collections_that_cannot_be_used_are_named():
    with pytest.raises(WrongType, match="binary_auroc needs scores .* which SupervisedOutput does not have"):
        value(as_metric(classification.BinaryAUROC()), SupervisedOutput(LOSS, {}, None))
    with pytest.raises(WrongType, match=r"write metrics=\[\*collection.values\(\)\]"):
        as_metric(torchmetrics.MetricCollection([classification.BinaryAUROC()]))


CORRELATED = torch.randn(3, 5, generator=DRAW)
NUMBERS = [RegressionOutput(LOSS, each, each * 2 + torch.randn(5, generator=DRAW)) for each in CORRELATED]
IMAGES = [RegressionOutput(LOSS, *torch.rand(2, 2, 3, 8, 8, generator=DRAW)) for _ in range(3)]


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        pytest.param(regression.PearsonCorrCoef(), NUMBERS, id="no reduction"),
        pytest.param(regression.KendallRankCorrCoef(), NUMBERS, id="lists"),
        pytest.param(regression.R2Score(), NUMBERS, id="sums"),
        pytest.param(image.PeakSignalNoiseRatio(data_range=2.0), IMAGES, id="mean"),
    ],
)
def test_states_of_three_processes_and_an_empty_one_are_merged(given, parts):
    metric = as_metric(given)
    states = [metric.update(metric.init(CPU), part) for part in parts]
    empty = metric.init(CPU)
    merged = metric.merge(metric.merge(metric.merge(states[0], empty), states[1]), states[2])
    assert metric.compute(merged) == pytest.approx(value(metric, *parts), rel=1e-5)
    backwards = metric.merge(empty, metric.merge(states[0], metric.merge(states[1], states[2])))
    assert metric.compute(backwards) == pytest.approx(value(metric, *parts), rel=1e-5)


def test_a_state_merged_side_by_side_cannot_be_updated():
    metric = as_metric(regression.PearsonCorrCoef())
    merged = metric.merge(*[metric.update(metric.init(CPU), part) for part in NUMBERS[:2]])
    with pytest.raises(InvalidArgument, match="pearson_corr_coef stores the parts of several processes side by side"):
        metric.update(merged, NUMBERS[2])


def test_metrics_meters_and_objects_with_their_attributes_are_returned_unchanged():
    own = SimpleNamespace(name="own", direction=None, unit="", on="both", init=1, update=1, merge=1, compute=1)
    for given in (metrics.Accuracy(), metrics.Throughput(), own):
        assert as_metric(given) is given
    del own.merge
    with pytest.raises(WrongType, match=r"SimpleNamespace is not a metric: it has no merge \(see stoker.metrics"):
        as_metric(own)


def right(scores, targets):
    return scores == targets


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (metrics.Accuracy, r"Accuracy is a class: write Accuracy\(\)"),
        ("accuracy", r"not the name 'accuracy': write metrics.Accuracy\(\)"),
        ("acuracy", "not the name 'acuracy'; did you mean 'accuracy'"),
        (right, r"a function is not a metric: write metrics.of\(right\)"),
    ],
)
def test_the_error_for_other_objects_says_what_to_write(given, text):
    with pytest.raises(WrongType, match=text):
        as_metric(given)
