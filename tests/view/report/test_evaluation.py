"""Predictions compared with targets, checked against torch, scikit-learn and torchmetrics."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from stoker.errors import InvalidArgument
from stoker.view.report import evaluate_predictions, measure_calibration


@pytest.fixture
def predictions():
    torch.manual_seed(0)
    return torch.randn(200, 4, dtype=torch.float64) * 3, torch.randint(4, (200,))


def test_several_classes(predictions):
    scores, targets = predictions
    found = evaluate_predictions(scores, targets, worst=5)
    losses = F.cross_entropy(scores, targets, reduction="none")
    assert found.task == "multiclass" and found.count == 200 and found.loss == pytest.approx(float(losses.mean()))
    assert [sample.place for sample in found.worst] == losses.argsort(descending=True)[:5].tolist()
    assert found.worst[0].loss == pytest.approx(float(losses.max()))
    assert np.array_equal(found.confusion, confusion_matrix(targets, scores.argmax(1)))
    assert found.labels == ["0", "1", "2", "3"] and found.calibration.count.sum() == 200


def test_probabilities_are_recognised(predictions):
    scores, targets = predictions
    logits, probabilities = evaluate_predictions(scores, targets), evaluate_predictions(scores.softmax(1), targets)
    assert probabilities.loss == pytest.approx(logits.loss)
    assert probabilities.calibration.error == pytest.approx(logits.calibration.error)
    assert evaluate_predictions([[1e4, 0.0]], [0]).loss == 0.0, "the softmax does not overflow"


@pytest.mark.parametrize("form", ["logits", "column", "probabilities"])
def test_binary_targets(form):
    torch.manual_seed(0)
    logits, targets = torch.randn(100, dtype=torch.float64) * 3, torch.randint(2, (100,))
    losses = F.binary_cross_entropy_with_logits(logits, targets.double(), reduction="none")
    scores = {"logits": logits, "column": logits[:, None], "probabilities": logits.sigmoid()}[form]
    found = evaluate_predictions(scores, targets.double())
    assert found.task == "binary" and found.loss == pytest.approx(float(losses.mean()))
    assert np.array_equal(found.confusion, confusion_matrix(targets, logits > 0))
    assert found.worst[0].place == int(losses.argmax())


@pytest.mark.parametrize("shape", [(50,), (50, 3), (50, 1)], ids=str)
def test_regression(shape):
    torch.manual_seed(0)
    predictions, targets = torch.randn(shape), torch.randn(shape)
    found = evaluate_predictions(predictions, targets)
    losses = F.mse_loss(predictions, targets, reduction="none").reshape(50, -1).mean(1)
    assert found.task == "regression" and found.loss == pytest.approx(float(losses.mean()))
    assert found.worst[0].place == int(losses.argmax()) and found.confusion is found.calibration is None


def test_the_worst_samples_come_with_their_inputs(predictions):
    scores, targets = predictions
    inputs = np.arange(200 * 16).reshape(200, 4, 4)
    found = evaluate_predictions(scores, targets, inputs=inputs, labels=["a", "b", "c", "d"])
    for sample in found.worst:
        assert np.array_equal(sample.value, inputs[sample.place])
        assert sample.target == "abcd"[targets[sample.place]]
        assert sample.answer.startswith("abcd"[scores[sample.place].argmax()])
    again = evaluate_predictions(scores, targets).with_inputs({sample.place: [1.0] for sample in found.worst})
    assert again.worst[0].value.tolist() == [1.0]


def test_negative_targets_are_ignored_and_nan_is_the_worst(predictions):
    scores, targets = predictions
    targets[:150] = -100
    scores[160] = float("nan")
    scores[161, 0] = float("inf")
    found = evaluate_predictions(scores, targets)
    assert found.count == 50 == found.confusion.sum() and {each.place for each in found.worst[:2]} == {160, 161}
    assert found.calibration.count.sum() == 48
    with pytest.raises(InvalidArgument, match="every target is negative"):
        evaluate_predictions(scores, torch.full((200,), -1))


def test_wrong_arguments(predictions):
    scores, targets = predictions
    with pytest.raises(InvalidArgument, match=r"a target is class 7, but the scores have 4 classes \(0 to 3\)"):
        evaluate_predictions(scores, torch.full((200,), 7))
    with pytest.raises(InvalidArgument, match=r"got scores \[200, 4\] and targets \[3\] of int64"):
        evaluate_predictions(scores, targets[:3])
    with pytest.raises(InvalidArgument, match=r"one score and one target per sample; got scores \[200, 4\]"):
        evaluate_predictions(scores, targets, task="binary")
    with pytest.raises(InvalidArgument, match=r"targets of the same shape; got \[200, 4\] and \[200\]"):
        evaluate_predictions(scores, targets, task="regression")
    with pytest.raises(InvalidArgument, match="2 labels for 4 classes; expected one label per class"):
        evaluate_predictions(scores, targets, labels=["a", "b"])


def random_probabilities(classes):
    random = np.random.default_rng(0)
    return random.dirichlet(np.ones(classes), 500), random.integers(0, classes, 500)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("classes", [2, 5])
def test_the_calibration_error_equals_torchmetrics(classes, bins):
    values, targets = random_probabilities(classes)
    expected = multiclass_calibration_error(
        torch.tensor(values), torch.tensor(targets), num_classes=classes, n_bins=bins
    )
    assert measure_calibration(values, targets, bins=bins).error == pytest.approx(float(expected), abs=1e-6)


def test_the_binary_calibration_error_equals_torchmetrics():
    on_the_edges = [0.0, 0.25, 0.5, 0.75, 1.0], [0, 1, 1, 0, 1], 4
    values, targets = random_probabilities(2)
    for given, truth, bins in (on_the_edges, (values[:, 1], targets, 15)):
        expected = binary_calibration_error(torch.tensor(given), torch.tensor(truth), n_bins=bins)
        assert measure_calibration(given, truth, bins=bins).error == pytest.approx(float(expected), abs=1e-6)
    assert measure_calibration(*on_the_edges[:2], bins=4).count.tolist() == [1, 1, 1, 2]


def test_wrong_arguments_of_a_calibration():
    with pytest.raises(InvalidArgument, match="between 0 and 1; got -1 to 2. Apply softmax to logits"):
        measure_calibration([[-1.0, 2.0]], [0])
    with pytest.raises(InvalidArgument, match="between 0 and 1; got nan to nan"):
        measure_calibration([float("nan")], [0])
    with pytest.raises(InvalidArgument, match=r"and one target per sample; got \[2, 2\] and \[3\]"):
        measure_calibration([[0.5, 0.5]] * 2, [0, 1, 0])
    with pytest.raises(InvalidArgument, match=r"got \[0\] and \[0\]"):
        measure_calibration([], [])
    with pytest.raises(InvalidArgument, match="bins is 0; expected at least 1"):
        measure_calibration([0.5], [0], bins=0)
