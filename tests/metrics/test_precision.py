import math
import warnings

import pytest
import torch
import torchmetrics.functional.classification as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import fbeta_score, precision_score, recall_score

from stoker import InvalidArgument
from stoker.metrics import FBeta, Precision, Recall
from stoker.steps import ClassificationOutput, MultiLabelOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)


def half(logits, targets, classes, **how):
    return reference.multiclass_fbeta_score(logits, targets, 0.5, classes, **how)


KINDS = [
    (Precision, precision_score, {}, reference.multiclass_precision),
    (Recall, recall_score, {}, reference.multiclass_recall),
    (FBeta, fbeta_score, {"beta": 0.5}, half),
]


@pytest.mark.parametrize(("kind", "score", "settings_", "other"), KINDS)
@pytest.mark.parametrize("average", ["micro", "macro", "none"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 12), present=st.integers(1, 4))
def test_classes_are_scored_as_by_the_others(kind, score, settings_, other, average, seed, n, present):
    """With few samples of few of the classes, some never occur and some are never said."""
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


@pytest.mark.parametrize(("kind", "score", "settings_", "_"), KINDS)
@pytest.mark.parametrize("average", ["micro", "macro", "none"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 8), share=st.sampled_from([0.0, 0.3, 1.0]))
def test_labels_are_scored_as_by_scikit_learn(kind, score, settings_, _, average, seed, n, share):
    draw = torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(n, 3, generator=draw), (torch.rand(n, 3, generator=draw) < share).long()
    weight = torch.rand(n, generator=draw).double()
    got = value(kind(average=average, **settings_), MultiLabelOutput(LOSS, logits, targets, weight))
    how = {"average": None if average == "none" else average, "zero_division": 0, "sample_weight": weight, **settings_}
    assert got == pytest.approx(score(targets, logits > 0, **how), abs=1e-12)


@pytest.mark.parametrize(("kind", "score", "settings_", "_"), KINDS)
@pytest.mark.parametrize("truth", [[0, 0, 0], [1, 1, 1], [0, 1, 1]])
@pytest.mark.parametrize("said", [[0, 0, 0], [1, 1, 1], [1, 0, 1]])
def test_a_binary_task_scores_the_yes(kind, score, settings_, _, truth, said):
    logits = torch.tensor(said) * 2.0 - 1
    output = MultiLabelOutput(LOSS, logits, torch.tensor(truth))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = score(truth, said, zero_division=0, **settings_)
    assert value(kind(**settings_), output) == pytest.approx(expected, abs=1e-12)
    assert value(kind(threshold=0.5, **settings_), MultiLabelOutput(LOSS, logits.sigmoid(), torch.tensor(truth))) == (
        pytest.approx(expected, abs=1e-12)
    )


def test_all_ignored_is_nothing_counted():
    output = ClassificationOutput(LOSS, torch.randn(3, 4), torch.full((3,), -100))
    assert math.isnan(value(Precision(), output))
    assert value(Precision("none"), output) == []


@pytest.mark.parametrize("beta", [0.0, -1.0, float("inf"), float("nan")])
def test_a_beta_out_of_range_is_refused(beta):
    with pytest.raises(InvalidArgument, match="beta must be above 0 and finite, got .* there are Precision and Recall"):
        FBeta(beta)
