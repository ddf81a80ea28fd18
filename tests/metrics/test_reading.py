from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from stoker.metrics import weight_of
from stoker.metrics._reading import read_scores
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput

LOSS = torch.tensor(0.5)
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
def test_a_typed_output_weighs_what_it_counts(output):
    assert float(weight_of(output)) == output.count.item()


def test_other_outputs_weigh_their_samples_or_one():
    assert weight_of(SupervisedOutput(LOSS, torch.zeros(8, 1), torch.zeros(7))) == 7
    assert weight_of(SupervisedOutput(LOSS, {"a": (torch.zeros(8),)}, None)) == 8
    assert weight_of(SupervisedOutput(LOSS, torch.zeros(2), [{"x": torch.zeros(3, 2)}, torch.zeros(9)])) == 3
    assert weight_of(SupervisedOutput(LOSS, torch.zeros(2), torch.zeros(2), WEIGHT)) == 2.5
    assert weight_of(SimpleNamespace(loss=LOSS)) == 1
    assert weight_of(SimpleNamespace(loss=LOSS, count=12)) == 12
    assert weight_of(namedtuple("Own", "loss")(LOSS)) == 1  # a tuple's method `count` is no count
    assert weight_of(SimpleNamespace(loss=LOSS, targets=torch.tensor(3))) == 1


def test_layouts_are_read_into_one():
    dense = ClassificationOutput(LOSS, torch.rand(2, 5, 3), torch.arange(6).view(2, 3) % 5, WEIGHT)
    read = read_scores("it", dense, task=None, ignore=4)
    assert read.task == "multiclass" and read.scores.shape == (6, 5)
    assert torch.equal(read.scores[4], dense.logits[1, :, 1])
    assert read.targets.tolist() == [0, 1, 2, 3, 4, 0]
    assert read.weights.tolist() == [0.5, 0.5, 0.5, 2, 0, 2]
    masked = TYPED[-1]
    assert read_scores("it", masked, task=None, ignore=-100).weights.tolist() == [0.5, 0, 0.5, 2, 2, 2]
    labels = MultiLabelOutput(LOSS, torch.rand(2, 5, 3), torch.rand(2, 5, 3), WEIGHT)
    read = read_scores("it", labels, task=None, ignore=-100)
    assert read.task == "multilabel" and torch.equal(read.scores[4], labels.logits[1, :, 1])
    assert read.weights.tolist() == [0.5, 0.5, 0.5, 2, 2, 2]
