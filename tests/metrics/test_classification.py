"""Metrics of classes and labels equal scikit-learn in every layout of outputs."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from stoker import InvalidArgument, WrongType
from stoker.metrics import Accuracy, ConfusionMatrix, Dice, FBeta, Hamming, IoU, Precision, Recall, TopKAccuracy
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
AVERAGES = st.sampled_from(["none", None, "macro", "micro"])
SCORES = [
    (Precision, {}, sk.precision_score),
    (Recall, {}, sk.recall_score),
    (FBeta, {"beta": 0.5}, sk.fbeta_score),
    (Dice, {}, sk.f1_score),
    (IoU, {}, sk.jaccard_score),
]


def draw_classes(layout, draw, n, present, weighted):
    """An output of 4 classes, of which the first `present` occur, and true class, predicted class and weight of what
    counts."""
    places = {"dense": (2, 3), "sequence": (5,), "own": (5,)}.get(layout, ())
    targets = torch.randint(present, (n, *places), generator=draw)
    logits = torch.randn(n, *places, 4, generator=draw)
    weight = torch.rand(n, generator=draw).double() if weighted else None
    counted = torch.rand(n, *places, generator=draw) < 0.7 if places else torch.ones(n, dtype=torch.bool)
    each_weight = torch.ones(n).double() if weight is None else weight
    weights = each_weight.reshape(n, *(1 for _ in places)).expand_as(targets)[counted]
    truth, choice = targets[counted], logits.argmax(-1)[counted]
    if layout == "dense":
        output = ClassificationOutput(LOSS, logits.movedim(-1, 1), targets.where(counted, -100), weight)
    elif layout in ("sequence", "own"):
        logits[~counted] = math.nan  # padding may contain anything
        output = SequenceOutput(LOSS, logits, targets, counted, weight)
        if layout == "own":
            output = SimpleNamespace(loss=LOSS, logits=logits, targets=targets, mask=counted, weight=weight)
    elif layout == "probabilities":
        soft = torch.nn.functional.one_hot(targets, 4) * 0.6 + 0.1
        output = ClassificationOutput(LOSS, logits, soft, weight)
    else:
        output = {"typed": ClassificationOutput, "supervised": SupervisedOutput}[layout](LOSS, logits, targets, weight)
    return output, truth.numpy(), choice.numpy(), weights.numpy()


@settings(max_examples=60)
@given(
    layout=st.sampled_from(["typed", "supervised", "dense", "sequence", "own", "probabilities"]),
    average=AVERAGES,
    seed=st.integers(0, 2**32),
    n=st.integers(1, 12),
    present=st.integers(1, 4),
    weighted=st.booleans(),
)
def test_classes_equal_scikit_learn(layout, average, seed, n, present, weighted):
    # With few samples, some classes never occur and some are never predicted.
    output, truth, choice, weights = draw_classes(layout, torch.Generator().manual_seed(seed), n, present, weighted)
    if not len(truth):
        assert math.isnan(value(Accuracy(), output)) and value(Precision("none"), output) == []
        assert math.isnan(value(Dice(), output)) and math.isnan(value(IoU(background=0), output))
        return
    expected = sk.accuracy_score(truth, choice, sample_weight=weights)
    assert value(Accuracy(), output) == pytest.approx(expected, abs=1e-12)
    assert value(Hamming(), output) == pytest.approx(1 - expected, abs=1e-12)
    expected = sk.confusion_matrix(truth, choice, labels=range(4), sample_weight=weights)
    assert np.allclose(value(ConfusionMatrix(), output), expected, atol=1e-12)
    how = {"average": None, "labels": range(4)} if average in ("none", None) else {"average": average}
    for kind, options, score in SCORES:
        expected = score(truth, choice, zero_division=0, sample_weight=weights, **how, **options)
        assert value(kind(average=average, **options), output) == pytest.approx(expected, abs=1e-12), kind


@settings(max_examples=60)
@given(
    places=st.sampled_from([(), (2,)]),
    average=AVERAGES,
    seed=st.integers(0, 2**32),
    n=st.integers(1, 8),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    weighted=st.booleans(),
)
def test_labels_equal_scikit_learn(places, average, seed, n, share, weighted):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 3, *places, generator=draw)
    targets = (torch.rand(n, 3, *places, generator=draw) < share).float()
    weight = torch.rand(n, generator=draw).double() if weighted else None
    truth, choice = (each.movedim(1, -1).flatten(0, -2).numpy() for each in (targets > 0, logits > 0))
    weights = (torch.ones(n).double() if weight is None else weight).repeat_interleave(2 if places else 1).numpy()
    output = MultiLabelOutput(LOSS, logits, targets, weight)
    wrong = sk.hamming_loss(truth, choice, sample_weight=weights)
    assert value(Hamming(), output) == pytest.approx(wrong, abs=1e-12)
    assert value(Accuracy(), output) == pytest.approx(1 - wrong, abs=1e-12)
    known = SupervisedOutput(LOSS, logits, targets, weight, loss_function=nn.BCEWithLogitsLoss())
    assert value(Accuracy(), known) == pytest.approx(1 - wrong)
    expected = sk.multilabel_confusion_matrix(truth, choice, sample_weight=weights)
    assert np.allclose(value(ConfusionMatrix(), output), expected, atol=1e-12)
    how = {"average": None if average in ("none", None) else average, "zero_division": 0, "sample_weight": weights}
    for kind, options, score in SCORES:
        expected = score(truth, choice, **how, **options)
        assert value(kind(average=average, **options), output) == pytest.approx(expected, abs=1e-12), kind


@pytest.mark.parametrize("shape", [(9,), (9, 1), (9, 1, 2)])
@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 0.0), (torch.int64, 0.5), (torch.bool, 1.0)])
def test_one_score_per_sample_or_pixel_means_yes_or_no(shape, dtype, share):
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(shape, generator=draw), (torch.rand(shape, generator=draw) < share).to(dtype)
    truth, choice = targets.flatten() > 0, logits.flatten() > 0
    outputs = [MultiLabelOutput(LOSS, logits, targets), SupervisedOutput(LOSS, logits, targets)]
    if len(shape) > 1:
        outputs.append(SupervisedOutput(LOSS, logits, targets[:, 0]))
    for output in outputs:
        assert value(Accuracy(), output) == pytest.approx(sk.accuracy_score(truth, choice))
        assert value(ConfusionMatrix(), output) == sk.confusion_matrix(truth, choice, labels=[0, 1]).tolist()
        for kind, options, score in SCORES:
            expected = score(truth, choice, zero_division=0, **options)
            assert value(kind(**options), output) == pytest.approx(expected), kind
    probabilities = SupervisedOutput(LOSS, logits.sigmoid(), targets)
    assert value(Accuracy(threshold=0.5), probabilities) == value(Accuracy(), outputs[0])
    assert value(Recall(threshold=0.5), probabilities) == value(Recall(), outputs[0])


def test_top_k_accuracy_equals_scikit_learn_and_settings_are_checked():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(50, 6, generator=draw), torch.randint(6, (50,), generator=draw)
    weight = torch.rand(50, generator=draw).double()
    output = ClassificationOutput(LOSS, logits, targets, weight)
    for k in (1, 3, 5):
        expected = sk.top_k_accuracy_score(targets, logits, k=k, labels=range(6), sample_weight=weight)
        assert value(TopKAccuracy(k), output) == pytest.approx(expected, abs=1e-12)
    assert value(TopKAccuracy(6), output) == 1
    with pytest.raises(InvalidArgument, match="top7_accuracy: k is 7, but there are only 6 classes"):
        value(TopKAccuracy(7), output)
    with pytest.raises(InvalidArgument, match="k must be at least 1, got 0"):
        TopKAccuracy(0)
    with pytest.raises(InvalidArgument, match="beta must be above 0 and finite, got 0.0; its limits are Precision"):
        FBeta(0.0)


def test_the_background_is_left_out():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 3, 4, 4, generator=draw), torch.randint(3, (2, 4, 4), generator=draw)
    output = ClassificationOutput(LOSS, logits, targets)
    _, *rest = value(IoU("none"), output)
    assert value(IoU("none", background=0), output) == rest
    assert value(IoU(background=0), output) == pytest.approx(sum(rest) / 2)


def test_targets_that_do_not_count_need_not_be_classes():
    targets, mask = torch.tensor([0, 255, -7]), torch.tensor([True, False, False])
    output = SimpleNamespace(loss=LOSS, logits=torch.eye(3), targets=targets, mask=mask)
    assert value(ConfusionMatrix(), output) == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert value(Precision("none"), output) == [1, 0, 0] and value(Accuracy(), output) == 1
    ignored = ClassificationOutput(LOSS, torch.eye(3), torch.tensor([0, 255, 255]))
    assert value(Accuracy(ignore=255), ignored) == 1 == value(Recall("micro", ignore=255), ignored)


NUMBERS, CLASSES = torch.zeros(3), torch.zeros(3, dtype=torch.long)


@pytest.mark.parametrize(
    ("predictions", "targets", "text"),
    [
        ({"a": NUMBERS}, NUMBERS, r"needs scores .* has .predictions of type dict.*metrics.of\(fn\)"),
        (CLASSES, CLASSES, "not the predicted classes; got torch.int64"),
        (torch.zeros(3, 7, 5), torch.zeros(3, 7).long(), r"scores \[3, 7, 5\] and targets \[3, 7\] \(if the classes"),
        (torch.zeros(3, 5), torch.zeros(3, 1).long(), r"scores \[3, 5\] and targets \[3, 1\]"),
        (
            torch.rand(3, 4),
            torch.rand(3, 4),
            r'\[3, 4\] can be several labels .*; choose with task="multilabel"',
        ),
    ],
)
def test_outputs_that_cannot_be_read_are_named(predictions, targets, text):
    with pytest.raises((WrongType, InvalidArgument), match=text):
        value(Accuracy(), SupervisedOutput(LOSS, predictions, targets))


def test_regressions_and_weights_of_other_shapes_raise():
    with pytest.raises(WrongType, match="accuracy needs scores .* RegressionOutput has .predictions of type Tensor"):
        value(Accuracy(), RegressionOutput(LOSS, NUMBERS, NUMBERS))
    with pytest.raises(InvalidArgument, match=r"a weight has one number per sample .* \[3\] .* got \[2\]"):
        value(Accuracy(), SupervisedOutput(LOSS, torch.zeros(3, 5), CLASSES, torch.ones(2)))


def test_task_decides_between_probabilities_and_labels():
    scores, targets = torch.tensor([[2.0, 1.0]]), torch.tensor([[0.9, 0.8]])
    output = SupervisedOutput(LOSS, scores, targets)
    assert value(Accuracy(task="multiclass"), output) == 1 == value(Accuracy(task="multilabel"), output)
    assert value(ConfusionMatrix(task="multiclass"), output) == [[1, 0], [0, 0]]
    assert value(ConfusionMatrix(task="multilabel"), output) == [[[0, 0], [0, 1]]] * 2
