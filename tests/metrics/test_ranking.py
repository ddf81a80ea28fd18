"""Areas under the ROC and the precision-recall curve against scikit-learn."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from stoker import InvalidArgument
from stoker.metrics import AUROC, AveragePrecision
from stoker.steps import ClassificationOutput, MultiLabelOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
KINDS = [(AUROC, roc_auc_score), (AveragePrecision, average_precision_score)]


def column_mean(score, truth, scores, weight=None):
    """The mean over columns that have a yes and a no (for the average precision, a yes)."""
    parts = [
        score(truth[:, each], scores[:, each], sample_weight=weight)
        for each in range(truth.shape[1])
        if truth[:, each].any() and (score is average_precision_score or not truth[:, each].all())
    ]
    return sum(parts) / len(parts) if parts else math.nan


@pytest.mark.parametrize(("kind", "score"), KINDS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(1, 12),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    scale=st.sampled_from([1e-300, 1.0, 1e300]),
)
def test_binary_areas_are_exact_with_ties_and_weights(kind, score, seed, n, share, scale):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (n,), generator=draw).float()  # many ties
    truth, weight = torch.rand(n, generator=draw) < share, torch.rand(n, generator=draw).double()
    expected = column_mean(score, truth[:, None], logits[:, None], weight)
    got = value(kind(), SupervisedOutput(LOSS, logits, truth.float(), weight * scale))
    assert got == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("kind", "score"), KINDS)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 12), present=st.integers(1, 4))
def test_classes_are_ranked_one_against_the_rest(kind, score, seed, n, present):
    draw = torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(n, 4, generator=draw), torch.randint(present, (n,), generator=draw)
    truth = targets[:, None] == torch.arange(4)
    expected = column_mean(score, truth, logits.softmax(1))
    assert value(kind(), ClassificationOutput(LOSS, logits, targets)) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    probable = ClassificationOutput(LOSS, logits.softmax(1), targets)
    assert value(kind(probabilities=True), probable) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("kind", "score"), KINDS)
def test_labels_are_ranked_one_by_one(kind, score):
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(30, 3, generator=draw), torch.randint(2, (30, 3), generator=draw)
    targets[:, 1] = 0  # never yes
    expected = column_mean(score, targets.bool(), logits)
    assert value(kind(), MultiLabelOutput(LOSS, logits, targets)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("kind", "score"), KINDS)
def test_bins_give_the_areas_of_rounded_scores(kind, score):
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(60, 1, generator=draw), torch.randint(2, (60, 1), generator=draw)
    rounded = (logits.sigmoid() * 10).floor()
    weight = torch.rand(60, generator=draw).double()
    got = value(kind(bins=10), MultiLabelOutput(LOSS, logits, targets, weight))
    assert got == pytest.approx(column_mean(score, targets.bool(), rounded, weight), abs=1e-12)
    multi = ClassificationOutput(LOSS, torch.randn(60, 3, generator=draw), torch.randint(3, (60,), generator=draw))
    truth, rounded = multi.targets[:, None] == torch.arange(3), (multi.logits.softmax(1) * 10).floor()
    assert value(kind(bins=10), multi) == pytest.approx(column_mean(score, truth, rounded), abs=1e-12)


def test_a_class_without_a_yes_or_a_no_gives_nan():
    only = MultiLabelOutput(LOSS, torch.randn(5), torch.ones(5))
    assert math.isnan(value(AUROC(), only)) and value(AveragePrecision(), only) == 1
    none = MultiLabelOutput(LOSS, torch.randn(5), torch.zeros(5))
    assert math.isnan(value(AUROC(bins=4), none)) and math.isnan(value(AveragePrecision(bins=4), none))


def test_a_single_bin_raises():
    with pytest.raises(InvalidArgument, match="bins must be at least 2, got 1; omit it for exact areas"):
        AUROC(bins=1)
