import math

import pytest
import torch
import torchmetrics.functional.classification as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, jaccard_score

from stoker.metrics import Dice, IoU
from stoker.steps import ClassificationOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)


@pytest.mark.parametrize(("kind", "score"), [(Dice, f1_score), (IoU, jaccard_score)])
@pytest.mark.parametrize("average", ["micro", "macro", "none"])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), present=st.integers(1, 4))
def test_regions_are_scored_as_by_scikit_learn(kind, score, average, seed, present):
    draw = torch.Generator().manual_seed(seed)
    logits, targets = torch.randn(2, 4, 3, 3, generator=draw), torch.randint(present, (2, 3, 3), generator=draw)
    targets[:, 0, 0] = 255
    kept = targets != 255
    how = {"average": None if average == "none" else average, "zero_division": 0}
    labels = {"labels": range(4)} if average == "none" else {}
    expected = score(targets[kept], logits.argmax(1)[kept], **how, **labels)
    assert value(kind(average, ignore=255), ClassificationOutput(LOSS, logits, targets)) == pytest.approx(expected)


def test_iou_is_that_of_torchmetrics():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 4, 3, 3, generator=draw), torch.randint(3, (2, 3, 3), generator=draw)
    got = value(IoU(), SupervisedOutput(LOSS, logits, targets))
    assert got == pytest.approx(reference.multiclass_jaccard_index(logits, targets, 4).item())


@pytest.mark.parametrize("shape", [(2, 3, 3), (2, 1, 3, 3)])
def test_one_score_a_pixel_is_a_yes_or_no(shape):
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 1, 3, 3, generator=draw), torch.randint(2, shape, generator=draw)
    for kind, score in ((IoU, jaccard_score), (Dice, f1_score)):
        expected = score(targets.flatten(), logits.flatten() > 0)
        assert value(kind(), SupervisedOutput(LOSS, logits, targets)) == pytest.approx(expected)


def test_the_background_has_no_part():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 3, 4, 4, generator=draw), torch.randint(3, (2, 4, 4), generator=draw)
    output = ClassificationOutput(LOSS, logits, targets)
    _, *rest = value(IoU("none"), output)
    assert value(IoU("none", background=0), output) == rest
    assert value(IoU(background=0), output) == pytest.approx(sum(rest) / 2)


def test_nothing_but_ignored_pixels_is_nan():
    output = ClassificationOutput(LOSS, torch.randn(2, 3, 4), torch.full((2, 4), -100))
    assert math.isnan(value(Dice(), output)) and math.isnan(value(IoU(background=0), output))
