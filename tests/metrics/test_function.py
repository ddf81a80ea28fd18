import math
from types import SimpleNamespace

import pytest
import torch

from stoker import InvalidArgument, WrongType
from stoker.metrics import MAE, Accuracy, of
from stoker.steps import ClassificationOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)


def right(scores, targets):
    return (scores.argmax(-1) == targets).float()


def absolute(predictions, targets):
    return (predictions - targets).abs().mean()


def test_values_of_samples_count_by_their_weights_and_mask():
    logits, targets = torch.randn(9, 4, generator=DRAW), torch.randint(4, (9,), generator=DRAW)
    output = ClassificationOutput(LOSS, logits, targets, torch.rand(9, generator=DRAW))
    assert value(of(right), output) == pytest.approx(value(Accuracy(), output), abs=1e-12)
    logits, targets = torch.randn(9, 3, 4, generator=DRAW), torch.randint(4, (9, 3), generator=DRAW)
    output = SequenceOutput(LOSS, logits, targets, torch.rand(9, 3, generator=DRAW) < 0.5)
    assert value(of(right), output) == pytest.approx(value(Accuracy(), output), abs=1e-12)


def test_a_mean_of_the_batch_counts_its_samples():
    predictions, targets = torch.randn(9, 2, generator=DRAW).double(), torch.randn(9, 2, generator=DRAW).double()
    whole = SupervisedOutput(LOSS, predictions, targets)
    parts = [SupervisedOutput(LOSS, predictions[each], targets[each]) for each in (slice(0, 7), slice(7, 9))]
    assert value(of(absolute), *parts) == pytest.approx(value(MAE(), whole), abs=1e-12)
    plain = of(lambda predictions, targets: absolute(predictions, targets).item(), "plain")
    assert value(plain, *parts) == pytest.approx(value(MAE(), whole), abs=1e-6)
    assert math.isnan(value(of(absolute), SupervisedOutput(LOSS, torch.zeros(0), torch.zeros(0))))


def test_any_structure_may_come():
    own = SimpleNamespace(predictions={"a": torch.ones(3)}, targets=(torch.zeros(3),))
    assert value(of(lambda said, meant: said["a"] - meant[0], name="gap"), own) == 1


def test_settings_are_the_users():
    metric = of(right, direction="max", unit="%")
    assert (metric.name, metric.direction, metric.unit, metric.on) == ("right", "max", "%", "both")
    with pytest.raises(InvalidArgument, match=r"no name for the metric: write metrics.of\(fn, name='...'\)"):
        of(lambda predictions, targets: predictions)
    with pytest.raises(WrongType, match="metrics.of takes a function .* got 3"):
        of(3)  # pyright: ignore
