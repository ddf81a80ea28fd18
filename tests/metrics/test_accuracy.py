import math
from types import SimpleNamespace

import pytest
import torch
import torchmetrics.functional.classification as reference
from sklearn.metrics import accuracy_score, hamming_loss, top_k_accuracy_score

from stoker import InvalidArgument, WrongType
from stoker.metrics import Accuracy, Hamming, TopKAccuracy
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)


@pytest.mark.parametrize("Output", [ClassificationOutput, SupervisedOutput])
def test_class_numbers_with_logits(Output):
    logits, targets = torch.randn(50, 5, generator=DRAW), torch.randint(5, (50,), generator=DRAW)
    got = value(Accuracy(), Output(LOSS, logits, targets))
    assert got == accuracy_score(targets, logits.argmax(1))
    assert got == pytest.approx(reference.multiclass_accuracy(logits, targets, 5, average="micro").item())


def test_weights_are_those_of_scikit_learn():
    logits, targets = torch.randn(50, 5, generator=DRAW), torch.randint(5, (50,), generator=DRAW)
    weight = torch.rand(50, generator=DRAW).double()
    got = value(Accuracy(), ClassificationOutput(LOSS, logits, targets, weight))
    assert got == pytest.approx(accuracy_score(targets, logits.argmax(1), sample_weight=weight), abs=1e-12)


@pytest.mark.parametrize("Output", [ClassificationOutput, SupervisedOutput])
def test_positions_count_one_by_one_and_ignored_ones_do_not(Output):
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


def test_a_sequence_has_its_classes_last_and_a_mask():
    logits, targets = torch.randn(3, 7, 5, generator=DRAW), torch.randint(5, (3, 7), generator=DRAW)
    mask = torch.rand(3, 7, generator=DRAW) < 0.5
    logits[~mask] = float("nan")
    expected = (logits.argmax(-1) == targets)[mask].double().mean().item()
    assert value(Accuracy(), SequenceOutput(LOSS, logits, targets, mask)) == expected
    own = SimpleNamespace(loss=LOSS, logits=logits, targets=targets, mask=mask)  # a user's own output
    assert value(Accuracy(), own) == expected
    assert math.isnan(value(Accuracy(), SequenceOutput(LOSS, logits, targets, torch.zeros_like(mask))))


@pytest.mark.parametrize("shape", [(20,), (20, 1)])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("Output", [MultiLabelOutput, SupervisedOutput])
def test_one_score_a_sample_is_a_yes_or_no(shape, flat, dtype, Output):
    logits, targets = torch.randn(shape, generator=DRAW), torch.randint(2, shape, generator=DRAW).to(dtype)
    if flat and Output is SupervisedOutput:
        targets = targets.flatten()
    expected = accuracy_score(targets.flatten() > 0, logits.flatten() > 0)
    assert value(Accuracy(), Output(LOSS, logits, targets)) == expected
    assert value(Accuracy(threshold=0.5), Output(LOSS, logits.sigmoid(), targets)) == expected


def test_probabilities_as_targets_mean_their_largest():
    logits, targets = torch.randn(20, 4, generator=DRAW), torch.rand(20, 4, generator=DRAW).softmax(1)
    expected = accuracy_score(targets.argmax(1), logits.argmax(1))
    assert value(Accuracy(), ClassificationOutput(LOSS, logits, targets)) == expected
    assert value(Accuracy(task="multiclass"), SupervisedOutput(LOSS, logits, targets)) == expected
    with pytest.raises(InvalidArgument, match=r'accuracy: .*\[20, 4\].*say which with task="multilabel" or task="mult'):
        value(Accuracy(), SupervisedOutput(LOSS, logits, targets))
    dense = ClassificationOutput(LOSS, logits.view(5, 4, 4), targets.view(5, 4, 4))
    assert value(Accuracy(), dense) == accuracy_score(dense.targets.argmax(1).flatten(), dense.predictions.flatten())


def test_labels_and_hamming():
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


def test_top_k():
    logits, targets = torch.randn(50, 6, generator=DRAW), torch.randint(6, (50,), generator=DRAW)
    weight = torch.rand(50, generator=DRAW).double()
    output = ClassificationOutput(LOSS, logits, targets, weight)
    for k in (1, 3, 5):
        expected = top_k_accuracy_score(targets, logits, k=k, labels=range(6), sample_weight=weight)
        assert value(TopKAccuracy(k), output) == pytest.approx(expected, abs=1e-12)
    assert value(TopKAccuracy(6), output) == 1
    with pytest.raises(InvalidArgument, match="top7_accuracy: there are 6 classes to choose 7 from"):
        value(TopKAccuracy(7), output)
    with pytest.raises(InvalidArgument, match="k must be at least 1, got 0"):
        TopKAccuracy(0)


def test_what_it_cannot_read_is_named():
    numbers = torch.zeros(3)
    with pytest.raises(
        WrongType, match="accuracy needs scores of classes .* RegressionOutput has .predictions of type Te"
    ):
        value(Accuracy(), RegressionOutput(LOSS, numbers, numbers))
    with pytest.raises(WrongType, match="top needs scores .* SimpleNamespace has neither"):
        value(Accuracy(name="top"), SimpleNamespace(loss=LOSS))
    with pytest.raises(WrongType, match=r"SupervisedOutput has .predictions of type dict.*metrics.of\(fn\)"):
        value(Accuracy(), SupervisedOutput(LOSS, {"a": numbers}, numbers))
    with pytest.raises(WrongType, match="not the classes chosen; got torch.int64"):
        value(Accuracy(), SupervisedOutput(LOSS, torch.tensor([1, 2]), torch.tensor([1, 2])))
    with pytest.raises(
        InvalidArgument, match=r"scores \[3, 7, 5\] and targets \[3, 7\] \(where the classes stand last"
    ):
        value(Accuracy(), SupervisedOutput(LOSS, torch.zeros(3, 7, 5), torch.zeros(3, 7, dtype=torch.long)))
    with pytest.raises(InvalidArgument, match=r"scores \[3, 5\] and targets \[3, 1\]"):
        value(Accuracy(), SupervisedOutput(LOSS, torch.zeros(3, 5), torch.zeros(3, 1, dtype=torch.long)))
    with pytest.raises(InvalidArgument, match=r"a weight has one number a sample .* \[3\] .* got \[2\]"):
        value(Accuracy(), SupervisedOutput(LOSS, torch.zeros(3, 5), torch.zeros(3, dtype=torch.long), torch.ones(2)))
