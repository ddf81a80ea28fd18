"""Metrics of classes and labels against scikit-learn and torchmetrics, in every layout of outputs."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
import torchmetrics.functional.classification as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    fbeta_score,
    hamming_loss,
    jaccard_score,
    multilabel_confusion_matrix,
    precision_score,
    recall_score,
    top_k_accuracy_score,
)

from stoker import InvalidArgument, WrongType
from stoker.metrics import (
    Accuracy,
    ConfusionMatrix,
    Dice,
    FBeta,
    Hamming,
    IoU,
    Precision,
    Recall,
    TopKAccuracy,
)
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("Output", [ClassificationOutput, SupervisedOutput])
def test_accuracy_of_class_numbers(Output):
    logits, targets = torch.randn(50, 5, generator=DRAW), torch.randint(5, (50,), generator=DRAW)
    got = value(Accuracy(), Output(LOSS, logits, targets))
    assert got == accuracy_score(targets, logits.argmax(1))
    assert got == pytest.approx(reference.multiclass_accuracy(logits, targets, 5, average="micro").item())


def test_weights_count_as_in_scikit_learn():
    logits, targets = torch.randn(50, 5, generator=DRAW), torch.randint(5, (50,), generator=DRAW)
    weight = torch.rand(50, generator=DRAW).double()
    got = value(Accuracy(), ClassificationOutput(LOSS, logits, targets, weight))
    assert got == pytest.approx(accuracy_score(targets, logits.argmax(1), sample_weight=weight), abs=1e-12)


@pytest.mark.parametrize("Output", [ClassificationOutput, SupervisedOutput])
def test_every_position_counts_except_ignored_ones(Output):
    logits, targets = torch.randn(4, 3, 5, 6, generator=DRAW), torch.randint(3, (4, 5, 6), generator=DRAW)
    targets[:, 2] = -100
    weight = torch.rand(4, generator=DRAW).double()
    kept = targets != -100
    rights = (logits.argmax(1) == targets)[kept].double()
    spread = weight[:, None, None].expand_as(targets)[kept]
    assert value(Accuracy(), Output(LOSS, logits, targets)) == pytest.approx(rights.mean().item(), abs=1e-12)
    expected = (rights * spread).sum() / spread.sum()
    assert value(Accuracy(), Output(LOSS, logits, targets, weight)) == pytest.approx(expected.item(), abs=1e-12)
    targets[~kept] = 1
    assert value(Accuracy(ignore=1), Output(LOSS, logits, targets)) == pytest.approx(
        (logits.argmax(1) == targets)[targets != 1].double().mean().item()
    )


def test_sequences_have_classes_last_and_a_mask():
    logits, targets = torch.randn(3, 7, 5, generator=DRAW), torch.randint(5, (3, 7), generator=DRAW)
    mask = torch.rand(3, 7, generator=DRAW) < 0.5
    logits[~mask] = float("nan")
    expected = (logits.argmax(-1) == targets)[mask].double().mean().item()
    assert value(Accuracy(), SequenceOutput(LOSS, logits, targets, mask)) == expected
    own = SimpleNamespace(loss=LOSS, logits=logits, targets=targets, mask=mask)  # an output class of the user
    assert value(Accuracy(), own) == expected
    assert math.isnan(value(Accuracy(), SequenceOutput(LOSS, logits, targets, torch.zeros_like(mask))))


@pytest.mark.parametrize("shape", [(20,), (20, 1)])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("Output", [MultiLabelOutput, SupervisedOutput])
def test_one_score_per_sample_means_yes_or_no(shape, flat, dtype, Output):
    logits, targets = torch.randn(shape, generator=DRAW), torch.randint(2, shape, generator=DRAW).to(dtype)
    if flat and Output is SupervisedOutput:
        targets = targets.flatten()
    expected = accuracy_score(targets.flatten() > 0, logits.flatten() > 0)
    assert value(Accuracy(), Output(LOSS, logits, targets)) == expected
    assert value(Accuracy(threshold=0.5), Output(LOSS, logits.sigmoid(), targets)) == expected


def test_targets_can_be_probabilities():
    logits, targets = torch.randn(20, 4, generator=DRAW), torch.rand(20, 4, generator=DRAW).softmax(1)
    expected = accuracy_score(targets.argmax(1), logits.argmax(1))
    assert value(Accuracy(), ClassificationOutput(LOSS, logits, targets)) == expected
    assert value(Accuracy(task="multiclass"), SupervisedOutput(LOSS, logits, targets)) == expected
    with pytest.raises(InvalidArgument, match=r'accuracy: .*\[20, 4\].*choose with task="multilabel" or task="mult'):
        value(Accuracy(), SupervisedOutput(LOSS, logits, targets))
    dense = ClassificationOutput(LOSS, logits.view(5, 4, 4), targets.view(5, 4, 4))
    assert value(Accuracy(), dense) == accuracy_score(dense.targets.argmax(1).flatten(), dense.predictions.flatten())


def test_accuracy_and_hamming_of_labels():
    logits, targets = torch.randn(20, 4, generator=DRAW), torch.randint(2, (20, 4), generator=DRAW)
    weight = torch.rand(20, generator=DRAW).double()
    wrong = hamming_loss(targets, logits > 0)
    for output in (MultiLabelOutput(LOSS, logits, targets.float()), SupervisedOutput(LOSS, logits, targets)):
        assert value(Hamming(), output) == pytest.approx(wrong, abs=1e-12)
        assert value(Accuracy(), output) == pytest.approx(1 - wrong, abs=1e-12)
    assert value(Hamming(), output) == pytest.approx(
        reference.multilabel_hamming_distance(logits, targets, 4, average="micro").item()
    )
    weighted = hamming_loss(targets, logits > 0, sample_weight=weight)
    assert value(Hamming(), MultiLabelOutput(LOSS, logits, targets, weight)) == pytest.approx(weighted, abs=1e-12)


def test_top_k_accuracy():
    logits, targets = torch.randn(50, 6, generator=DRAW), torch.randint(6, (50,), generator=DRAW)
    weight = torch.rand(50, generator=DRAW).double()
    output = ClassificationOutput(LOSS, logits, targets, weight)
    for k in (1, 3, 5):
        expected = top_k_accuracy_score(targets, logits, k=k, labels=range(6), sample_weight=weight)
        assert value(TopKAccuracy(k), output) == pytest.approx(expected, abs=1e-12)
    assert value(TopKAccuracy(6), output) == 1
    with pytest.raises(InvalidArgument, match="top7_accuracy: k is 7, but there are only 6 classes"):
        value(TopKAccuracy(7), output)
    with pytest.raises(InvalidArgument, match="k must be at least 1, got 0"):
        TopKAccuracy(0)


def test_outputs_that_cannot_be_read_are_named():
    numbers = torch.zeros(3)
    with pytest.raises(
        WrongType, match="accuracy needs scores of classes .* RegressionOutput has .predictions of type Te"
    ):
        value(Accuracy(), RegressionOutput(LOSS, numbers, numbers))
    with pytest.raises(WrongType, match="top needs scores .* SimpleNamespace has neither"):
        value(Accuracy(name="top"), SimpleNamespace(loss=LOSS))
    with pytest.raises(WrongType, match=r"SupervisedOutput has .predictions of type dict.*metrics.of\(fn\)"):
        value(Accuracy(), SupervisedOutput(LOSS, {"a": numbers}, numbers))
    with pytest.raises(WrongType, match="not the predicted classes; got torch.int64"):
        value(Accuracy(), SupervisedOutput(LOSS, torch.tensor([1, 2]), torch.tensor([1, 2])))
    with pytest.raises(
        InvalidArgument, match=r"scores \[3, 7, 5\] and targets \[3, 7\] \(if the classes are the last dimension"
    ):
        value(Accuracy(), SupervisedOutput(LOSS, torch.zeros(3, 7, 5), torch.zeros(3, 7, dtype=torch.long)))
    with pytest.raises(InvalidArgument, match=r"scores \[3, 5\] and targets \[3, 1\]"):
        value(Accuracy(), SupervisedOutput(LOSS, torch.zeros(3, 5), torch.zeros(3, 1, dtype=torch.long)))
    with pytest.raises(InvalidArgument, match=r"a weight has one number per sample .* \[3\] .* got \[2\]"):
        value(Accuracy(), SupervisedOutput(LOSS, torch.zeros(3, 5), torch.zeros(3, dtype=torch.long), torch.ones(2)))


def test_weights_of_samples_apply_to_every_position_of_dense_labels():
    logits, targets = torch.randn(2, 5, 3, generator=DRAW), torch.rand(2, 5, 3, generator=DRAW).round()
    weight = torch.tensor([0.5, 2.0])
    right = ((logits > 0) == (targets > 0.5)).double()
    expected = (right * weight[:, None, None]).sum() / (15 * weight.sum())
    assert value(Accuracy(), MultiLabelOutput(LOSS, logits, targets, weight)) == pytest.approx(expected.item())


def test_targets_with_weight_zero_need_not_be_classes():
    targets, mask = torch.tensor([0, 255, -7]), torch.tensor([True, False, False])
    output = SimpleNamespace(loss=LOSS, logits=torch.eye(3), targets=targets, mask=mask)
    assert value(ConfusionMatrix(), output) == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert value(Precision("none"), output) == [1, 0, 0] and value(Accuracy(), output) == 1


def f_half(logits, targets, classes, **how):
    return reference.multiclass_fbeta_score(logits, targets, 0.5, classes, **how)


CLASS_SCORES = [
    (Precision, precision_score, {}, reference.multiclass_precision),
    (Recall, recall_score, {}, reference.multiclass_recall),
    (FBeta, fbeta_score, {"beta": 0.5}, f_half),
]


@pytest.mark.parametrize(("kind", "score", "settings_", "other"), CLASS_SCORES)
@pytest.mark.parametrize("average", ["micro", "macro", "none"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 12), present=st.integers(1, 4))
def test_class_scores_equal_scikit_learn_and_torchmetrics(kind, score, settings_, other, average, seed, n, present):
    # With few samples, some classes never occur and some are never predicted.
    draw = torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(n, 4, generator=draw), torch.randint(present, (n,), generator=draw)
    weight = torch.rand(n, generator=draw).double()
    metric = kind(average=average, **settings_)
    got = value(metric, ClassificationOutput(LOSS, logits, targets, weight))
    how = {"average": None if average == "none" else average, "zero_division": 0, "sample_weight": weight, **settings_}
    labels = {"labels": range(4)} if average == "none" else {}
    assert got == pytest.approx(score(targets, logits.argmax(1), **how, **labels), abs=1e-12)
    plain = value(metric, ClassificationOutput(LOSS, logits, targets))
    assert plain == pytest.approx(other(logits, targets, 4, average=average).tolist(), abs=1e-6)


@pytest.mark.parametrize(("kind", "score", "settings_", "_"), CLASS_SCORES)
@pytest.mark.parametrize("average", ["micro", "macro", "none"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 8), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_label_scores_equal_scikit_learn(kind, score, settings_, _, average, seed, n, share):
    draw = torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(n, 3, generator=draw), (torch.rand(n, 3, generator=draw) < share).long()
    weight = torch.rand(n, generator=draw).double()
    got = value(kind(average=average, **settings_), MultiLabelOutput(LOSS, logits, targets, weight))
    how = {"average": None if average == "none" else average, "zero_division": 0, "sample_weight": weight, **settings_}
    assert got == pytest.approx(score(targets, logits > 0, **how), abs=1e-12)


@pytest.mark.parametrize(("kind", "score", "settings_", "_"), CLASS_SCORES)
@pytest.mark.parametrize("truth", [[0, 0, 0], [1, 1, 1], [0, 1, 1]])
@pytest.mark.parametrize("predicted", [[0, 0, 0], [1, 1, 1], [1, 0, 1]])
def test_binary_scores_are_those_of_the_yes(kind, score, settings_, _, truth, predicted):
    logits = torch.tensor(predicted) * 2.0 - 1
    output = MultiLabelOutput(LOSS, logits, torch.tensor(truth))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = score(truth, predicted, zero_division=0, **settings_)
    assert value(kind(**settings_), output) == pytest.approx(expected, abs=1e-12)
    assert value(kind(threshold=0.5, **settings_), MultiLabelOutput(LOSS, logits.sigmoid(), torch.tensor(truth))) == (
        pytest.approx(expected, abs=1e-12)
    )


def test_only_ignored_targets_count_as_nothing():
    output = ClassificationOutput(LOSS, torch.randn(3, 4), torch.full((3,), -100))
    assert math.isnan(value(Precision(), output))
    assert value(Precision("none"), output) == []


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_beta_out_of_range_raises(beta):
    with pytest.raises(
        InvalidArgument, match="beta must be above 0 and finite, got .* its limits are Precision and Recall"
    ):
        FBeta(beta)


@pytest.mark.parametrize(("kind", "score"), [(Dice, f1_score), (IoU, jaccard_score)])
@pytest.mark.parametrize("average", ["micro", "macro", "none"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), present=st.integers(1, 4))
def test_region_scores_equal_scikit_learn(kind, score, average, seed, present):
    draw = torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(2, 4, 3, 3, generator=draw), torch.randint(present, (2, 3, 3), generator=draw)
    targets[:, 0, 0] = 255
    kept = targets != 255
    how = {"average": None if average == "none" else average, "zero_division": 0}
    labels = {"labels": range(4)} if average == "none" else {}
    expected = score(targets[kept], logits.argmax(1)[kept], **how, **labels)
    assert value(kind(average, ignore=255), ClassificationOutput(LOSS, logits, targets)) == pytest.approx(expected)


def test_iou_equals_torchmetrics():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 4, 3, 3, generator=draw), torch.randint(3, (2, 3, 3), generator=draw)
    got = value(IoU(), SupervisedOutput(LOSS, logits, targets))
    assert got == pytest.approx(reference.multiclass_jaccard_index(logits, targets, 4).item())


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 1, 3, 3)])
def test_one_score_per_pixel_means_yes_or_no(shape):
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 1, 3, 3, generator=draw), torch.randint(2, shape, generator=draw)
    for kind, score in ((IoU, jaccard_score), (Dice, f1_score)):
        expected = score(targets.flatten(), logits.flatten() > 0)
        assert value(kind(), SupervisedOutput(LOSS, logits, targets)) == pytest.approx(expected)


def test_the_background_is_left_out():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 3, 4, 4, generator=draw), torch.randint(3, (2, 4, 4), generator=draw)
    output = ClassificationOutput(LOSS, logits, targets)
    _, *rest = value(IoU("none"), output)
    assert value(IoU("none", background=0), output) == rest
    assert value(IoU(background=0), output) == pytest.approx(sum(rest) / 2)


def test_only_ignored_pixels_give_nan():
    output = ClassificationOutput(LOSS, torch.randn(2, 3, 4), torch.full((2, 4), -100))
    assert math.isnan(value(Dice(), output)) and math.isnan(value(IoU(background=0), output))


def test_confusion_rows_are_true_and_columns_predicted_classes():
    logits, targets = (
        torch.randn(50, 4, generator=DRAW),
        torch.randint(3, (50,), generator=DRAW),
    )  # class 3 never occurs
    expected = confusion_matrix(targets, logits.argmax(1), labels=range(4))
    assert value(ConfusionMatrix(), ClassificationOutput(LOSS, logits, targets)) == expected.tolist()
    weight = torch.randint(5, (50,), generator=DRAW)
    weighted = confusion_matrix(targets, logits.argmax(1), labels=range(4), sample_weight=weight)
    assert value(ConfusionMatrix(), ClassificationOutput(LOSS, logits, targets, weight)) == weighted.tolist()
    targets[::2] = -100
    kept = confusion_matrix(targets[1::2], logits.argmax(1)[1::2], labels=range(4))
    assert value(ConfusionMatrix(), ClassificationOutput(LOSS, logits, targets)) == kept.tolist()


def test_confusion_of_binary_tasks_and_labels():
    logits, targets = torch.randn(30, 3, generator=DRAW), torch.randint(2, (30, 3), generator=DRAW)
    expected = multilabel_confusion_matrix(targets, logits > 0)
    assert value(ConfusionMatrix(), MultiLabelOutput(LOSS, logits, targets)) == expected.tolist()
    single = value(ConfusionMatrix(), MultiLabelOutput(LOSS, logits[:, 0], targets[:, 0]))
    assert single == confusion_matrix(targets[:, 0], logits[:, 0] > 0).tolist()


def test_confusion_of_nothing_is_an_empty_list():
    assert value(ConfusionMatrix()) == []
