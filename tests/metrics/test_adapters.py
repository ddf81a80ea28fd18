"""`as_metric` accepts metrics, meters and torchmetrics, which keep their values through the adapter."""

import math
from types import SimpleNamespace

import pytest
import torch
import torchmetrics
from torch import nn
from torchmetrics import classification, image, regression, wrappers

from stoker import InvalidArgument, Learner, WrongType, metrics
from stoker.metrics import AUROC, Accuracy, as_metric, as_metrics, flatten_value
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import CPU, value
from tests.metrics.detection import Detection

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


def test_outputs_that_cannot_be_used_are_named():
    with pytest.raises(WrongType, match="binary_auroc needs scores .* which SupervisedOutput does not have"):
        value(as_metric(classification.BinaryAUROC()), SupervisedOutput(LOSS, {}, None))


def test_a_collection_is_several_metrics_with_its_names():
    one, two = classification.MulticlassAccuracy(4), classification.MulticlassAUROC(4)
    collection = torchmetrics.MetricCollection({"acc": one, "area": two}, prefix="tm_")
    expected = collection.clone()
    expected.update(LOGITS, TARGETS)
    expected = {name: number.item() for name, number in expected.compute().items()}
    for given in (collection, [collection], [*as_metrics(collection)]):
        found = {metric.name: value(metric, *PARTS) for metric in as_metrics(given)}
        assert found == pytest.approx(expected) and list(found) == ["tm_acc", "tm_area"]
    with pytest.raises(WrongType, match="a MetricCollection is several metrics: write metrics=collection"):
        as_metric(collection)
    learner = Learner(nn.Linear(3, 4), loss=nn.CrossEntropyLoss(), metrics=collection)
    fitted = learner.fit((torch.randn(12, 3, generator=DRAW), TARGETS), epochs=1)
    assert {"train/tm_acc", "train/tm_area"} <= set(fitted.history.columns)


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
    own.on = "validation"
    with pytest.raises(InvalidArgument, match='own.on is \'validation\'; expected "train", "valid" or "both"'):
        as_metric(own)
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


# --- lists of dicts, strings, and values that are dicts

DETECTED, BOXES = (
    [
        {
            "boxes": torch.rand(count, 4, generator=DRAW),
            "scores": torch.rand(count, generator=DRAW),
            "labels": torch.randint(3, (count,), generator=DRAW) * 3,
        }
        for count in counts
    ]
    for counts in ((2, 0, 3, 1, 2), (1, 2, 0, 3, 1))
)


def test_lists_of_dicts_reach_the_metric_as_they_are():
    metric = as_metric(Detection())
    outputs = [SimpleNamespace(predictions=DETECTED[rows], targets=BOXES[rows]) for rows in (slice(0, 2), slice(2, 5))]
    found = torch.cat([each["labels"] for each in DETECTED])
    whole = value(metric, *outputs)
    assert flatten_value("it", whole) == {
        "it/map": pytest.approx(torch.cat([each["boxes"] for each in DETECTED]).mean().item()),
        **{f"it/map_per_class/{each}": (found == each).sum().item() for each in (0, 3, 6)},  # named by the class
    }
    states = [metric.update(metric.init(CPU), output) for output in outputs]
    assert metric.compute(metric.merge(*states)) == whole


HEARD, SPOKEN = ["the cat sat", "a dog", "on the mat"], ["the cat sat down", "the dog", "on a mat"]


@pytest.mark.parametrize(
    ("given", "targets"),
    [
        (torchmetrics.text.CharErrorRate(), SPOKEN),
        (torchmetrics.text.WordErrorRate(), SPOKEN),
        (torchmetrics.text.BLEUScore(n_gram=1), [[text] for text in SPOKEN]),
        (torchmetrics.text.ROUGEScore(rouge_keys=("rouge1", "rougeL")), SPOKEN),
        (torchmetrics.text.CHRFScore(return_sentence_level_score=True), [[text] for text in SPOKEN]),
    ],
)
def test_strings_reach_the_metric_as_they_are(given, targets):
    alone = given.clone()
    alone.update(HEARD, targets)
    outputs = [SimpleNamespace(predictions=HEARD[rows], targets=targets[rows]) for rows in (slice(0, 2), slice(2, 3))]
    alone = alone.compute()
    expected = {name: each.item() for name, each in alone.items()} if isinstance(alone, dict) else alone
    if isinstance(alone, tuple):
        expected = [alone[0].item(), alone[1].tolist()]
    metric = as_metric(given)
    for found in (
        value(metric, *outputs),
        metric.compute(metric.merge(*(metric.update(metric.init(CPU), output) for output in outputs))),
    ):
        assert flatten_value("it", found) == pytest.approx(flatten_value("it", expected))


def test_mappings_reach_a_metric_of_several_tasks():
    output = SimpleNamespace(predictions={"a": LOGITS, "b": LOGITS[:, 0]}, targets={"a": TARGETS, "b": LOGITS[:, 1]})
    tasks = {"a": classification.MulticlassAccuracy(4, average="micro"), "b": regression.MeanSquaredError()}
    alone = wrappers.MultitaskWrapper(tasks).clone()
    alone.update(output.predictions, output.targets)
    expected = {name: each.item() for name, each in alone.compute().items()}
    assert value(as_metric(wrappers.MultitaskWrapper(tasks)), output) == pytest.approx(expected)
    with pytest.raises(Exception, match=r".") as caught:
        value(as_metric(classification.MulticlassAccuracy(4)), output)
    assert "the predictions have the parts 'a', 'b': choose one with metrics.as_metric(..., of=...)" in str(
        caught.value.__notes__
    )
