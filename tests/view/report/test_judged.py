"""A model's answers, judged; losses beside torch's own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix
from stoker.view.report._judged import probabilities

from stoker.errors import InvalidArgument
from stoker.view.report import judged


@pytest.fixture
def answers():
    torch.manual_seed(0)
    return torch.randn(200, 4, dtype=torch.float64) * 3, torch.randint(4, (200,))


def test_several_classes(answers):
    scores, targets = answers
    found = judged(scores, targets, worst=5)
    losses = F.cross_entropy(scores, targets, reduction="none")
    assert found.task == "multiclass" and found.count == 200 and found.loss == pytest.approx(float(losses.mean()))
    assert [sample.place for sample in found.worst] == losses.argsort(descending=True)[:5].tolist()
    assert found.worst[0].loss == pytest.approx(float(losses.max()))
    assert np.array_equal(found.confusion, confusion_matrix(targets, scores.argmax(1)))
    assert found.labels == ["0", "1", "2", "3"] and found.calibration.count.sum() == 200


def test_probabilities_are_taken_as_they_are(answers):
    scores, targets = answers
    as_scores, as_chances = judged(scores, targets), judged(scores.softmax(1), targets)
    assert as_chances.loss == pytest.approx(as_scores.loss)
    assert as_chances.calibration.error == pytest.approx(as_scores.calibration.error)
    assert probabilities(np.array([[1e4, 0.0]])).tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("form", ["logits", "column", "chances"])
def test_yes_or_no(form):
    torch.manual_seed(0)
    logits, targets = torch.randn(100, dtype=torch.float64) * 3, torch.randint(2, (100,))
    losses = F.binary_cross_entropy_with_logits(logits, targets.double(), reduction="none")
    given = {"logits": logits, "column": logits[:, None], "chances": logits.sigmoid()}[form]
    found = judged(given, targets.double())
    assert found.task == "binary" and found.loss == pytest.approx(float(losses.mean()))
    assert np.array_equal(found.confusion, confusion_matrix(targets, logits > 0))
    assert found.worst[0].place == int(losses.argmax())


@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 1)], ids=str)
def test_numbers(shape):
    torch.manual_seed(0)
    predictions, targets = torch.randn(shape), torch.randn(shape)
    found = judged(predictions, targets)
    losses = F.mse_loss(predictions, targets, reduction="none").reshape(50, -1).mean(1)
    assert found.task == "regression" and found.loss == pytest.approx(float(losses.mean()))
    assert found.worst[0].place == int(losses.argmax()) and found.confusion is found.calibration is None


def test_the_worst_samples_come_with_what_they_are(answers):
    scores, targets = answers
    inputs = np.arange(200 * 16).reshape(200, 4, 4)
    found = judged(scores, targets, inputs=inputs, labels=["a", "b", "c", "d"])
    for sample in found.worst:
        assert np.array_equal(sample.value, inputs[sample.place])
        assert sample.target == "abcd"[targets[sample.place]]
        assert sample.answer.startswith("abcd"[scores[sample.place].argmax()])
    again = judged(scores, targets).with_inputs({sample.place: [1.0] for sample in found.worst})
    assert again.worst[0].value.tolist() == [1.0]


def test_what_is_left_out_and_what_is_not_finite(answers):
    scores, targets = answers
    targets[:150] = -100
    scores[160] = float("nan")
    scores[161, 0] = float("inf")
    found = judged(scores, targets)
    assert found.count == 50 == found.confusion.sum() and {each.place for each in found.worst[:2]} == {160, 161}
    assert found.calibration.count.sum() == 48
    with pytest.raises(InvalidArgument, match="no sample has a target, so there is nothing to judge"):
        judged(scores, torch.full((200,), -1))


def test_mistakes(answers):
    scores, targets = answers
    with pytest.raises(InvalidArgument, match="a target is class 7, and the scores are of 4 classes, 0 to 3"):
        judged(scores, torch.full((200,), 7))
    with pytest.raises(InvalidArgument, match=r"got \[200, 4\] and targets \[3\] of int64"):
        judged(scores, targets[:3])
    with pytest.raises(InvalidArgument, match=r"one score and one target a sample; got scores \[200, 4\]"):
        judged(scores, targets, task="binary")
    with pytest.raises(InvalidArgument, match=r"answers and targets of one shape; got \[200, 4\] and \[200\]"):
        judged(scores, targets, task="regression")
    with pytest.raises(InvalidArgument, match="2 labels for 4 classes"):
        judged(scores, targets, labels=["a", "b"])
