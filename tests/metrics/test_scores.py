"""What a metric takes scores for: logits or probabilities, classes or labels, which axis, what is ignored, NaN."""

import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import stoker
from stoker import InvalidArgument, metrics
from stoker.metrics import AUROC, Accuracy, AveragePrecision, ConfusionMatrix, FBeta, Hamming, Recall, TopKAccuracy
from stoker.steps import ClassificationOutput, MultiLabelOutput, SequenceOutput, SupervisedOutput
from stoker.view import report
from tests.metrics.cases import value

LOSS = torch.tensor(0.0)
DRAW = torch.Generator().manual_seed(0)


class Fixed(nn.Module):
    """A model whose output is its input, so that the numbers of a fit are known."""

    def __init__(self):
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + 0 * self.zero


def evaluate(loss, scores, targets, measured, batch_size=7):
    """The metrics of a fit on data whose scores are given."""
    learner = stoker.Learner(Fixed(), loss=loss, lr=0.0, metrics=measured, seed=0)
    fitted = learner.fit((scores, targets), epochs=1, batch_size=batch_size, show=False)
    return fitted.evaluate((scores, targets), batch_size=batch_size)


def focal(scores, targets):
    """A loss that stoker knows nothing about."""
    return (scores.sigmoid() - targets).square().mean()


@pytest.mark.parametrize("labels", [(), (1,), (3,)])
@pytest.mark.parametrize(
    ("loss", "are_probabilities"),
    [
        (nn.BCELoss(), True),
        (F.binary_cross_entropy, True),
        (partial(F.binary_cross_entropy, reduction="sum"), True),
        (lambda scores, targets: (scores - targets).square().mean(), True),
        (nn.BCEWithLogitsLoss(), False),
        (F.binary_cross_entropy_with_logits, False),
        (nn.MultiLabelSoftMarginLoss(), False),
        (focal, False),
    ],
)
def test_the_threshold_follows_the_loss_of_the_fit(loss, are_probabilities, labels):
    if isinstance(loss, nn.MultiLabelSoftMarginLoss) and labels != (3,):
        return
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(40, *labels, generator=draw) - 0.3
    targets = (logits + torch.randn(40, *labels, generator=draw) > 0).float()
    scores = logits.sigmoid() if are_probabilities else logits
    task = "multilabel" if labels == (3,) else None
    measured = [Accuracy(task=task), FBeta(task=task), ConfusionMatrix(task=task), Hamming(task=task)]
    found = evaluate(loss, scores, targets, measured)
    truth, choice = (each.reshape(40, -1).numpy() for each in (targets > 0, logits > 0))
    assert found["accuracy"] == pytest.approx((truth == choice).mean())
    assert found["hamming"] == pytest.approx((truth != choice).mean())
    macro = np.mean([sk.f1_score(truth[:, k], choice[:, k]) for k in range(truth.shape[1])])
    assert found["f1_macro"] == pytest.approx(macro)
    cells = [found[name] for name in found if name.startswith("confusion")]
    matrices = [sk.confusion_matrix(truth[:, k], choice[:, k], labels=[0, 1]) for k in range(truth.shape[1])]
    assert cells == [matrix.tolist() for matrix in matrices]


def test_a_known_loss_and_a_given_threshold_decide_for_logits_between_zero_and_one():
    logits, targets = torch.rand(20, generator=DRAW), torch.randint(2, (20,), generator=DRAW).float()
    all_yes = targets.mean().item()
    assert evaluate(nn.BCEWithLogitsLoss(), logits, targets, [Accuracy()])["accuracy"] == pytest.approx(all_yes)
    assert value(Accuracy(), MultiLabelOutput(LOSS, logits, targets)) == pytest.approx(all_yes)
    unknown = SupervisedOutput(LOSS, logits, targets)
    assert value(Accuracy(threshold=0.0), unknown) == pytest.approx(all_yes)
    half = ((logits > 0.5) == (targets > 0)).float().mean().item()
    assert value(Accuracy(), unknown) == pytest.approx(half)
    outside = SupervisedOutput(LOSS, torch.tensor([-1.0]), torch.tensor([0.0]))  # so all of them are logits
    for order in ((unknown, outside), (outside, unknown)):
        assert value(Accuracy(), *order) == pytest.approx((all_yes * 20 + 1) / 21)
        metric = ConfusionMatrix()
        states = [metric.update(metric.init(torch.device("cpu")), output) for output in order]
        assert metric.compute(metric.merge(*states))[0] == [1.0, 20 - targets.sum().item()]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    layout=st.sampled_from(["binary", "labels", "pixels"]),
    ignore=st.sampled_from([-100, -1, 255]),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.int32, torch.float16]),
    weighted=st.booleans(),
)
def test_ignored_labels_do_not_count(seed, layout, ignore, dtype, weighted):
    draw = torch.Generator().manual_seed(seed)
    shape = {"binary": (30,), "labels": (12, 3), "pixels": (4, 1, 3, 3)}[layout]
    logits = torch.randn(shape, generator=draw)
    targets = torch.randint(2, shape, generator=draw)
    is_ignored = torch.rand(shape, generator=draw) < 0.4
    weight = torch.rand(shape[0], generator=draw).double() if weighted else None
    output = MultiLabelOutput(LOSS, logits, targets.masked_fill(is_ignored, ignore).to(dtype), weight)
    weights = torch.ones(shape[0]).double() if weight is None else weight
    weights = weights.reshape(-1, *(1 for _ in shape[1:])).expand(shape)

    def columns(tensor):
        return tensor.movedim(1, -1).reshape(-1, shape[1]) if len(shape) > 1 else tensor[:, None]

    kept, truth, choice, scores, weights = map(columns, (~is_ignored, targets, logits > 0, logits, weights))
    flat = [each[kept].numpy() for each in (truth, choice, weights)]
    got = value(Accuracy(ignore=ignore), output)
    assert got == pytest.approx(sk.accuracy_score(flat[0], flat[1], sample_weight=flat[2]))
    expected = []
    for label in range(truth.shape[1]):
        rows = kept[:, label]
        parts = [each[rows, label].numpy() for each in (truth, choice, weights)]
        expected.append(sk.confusion_matrix(parts[0], parts[1], labels=[0, 1], sample_weight=parts[2]))
        if len(set(parts[0])) == 2 and truth.shape[1] == 1:
            area = sk.roc_auc_score(parts[0], scores[rows, label], sample_weight=parts[2])
            assert value(AUROC(ignore=ignore), output) == pytest.approx(area)
    got = np.array(value(ConfusionMatrix(ignore=ignore), output))
    assert np.allclose(got, expected[0] if len(expected) == 1 else expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.float32])
def test_class_numbers_of_any_type_are_counted(dtype):
    classes = 120 if dtype == torch.int8 else 200
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(300, classes, generator=draw), torch.randint(classes, (300,), generator=draw)
    targets[:2] = torch.tensor([classes - 1, 156 % classes])  # 156 is -100 in eight bits
    for small, output in ((dtype, SupervisedOutput), (torch.int64, SupervisedOutput)):
        if small.is_floating_point:
            continue
        found = output(LOSS, logits, targets.to(small), loss_function=nn.CrossEntropyLoss())
        matrix = np.array(value(ConfusionMatrix(), found))
        assert np.array_equal(matrix, sk.confusion_matrix(targets, logits.argmax(1), labels=range(classes)))
        assert value(Accuracy(), found) == pytest.approx(sk.accuracy_score(targets, logits.argmax(1)))


def test_the_ignored_class_of_the_loss_is_ignored_by_metrics():
    scores, targets = torch.eye(3).repeat(4, 1), torch.tensor([0, 1, 255, 2] * 3)
    kept = targets != 255
    right = (scores.argmax(1) == targets)[kept].double().mean().item()
    for loss in (nn.CrossEntropyLoss(ignore_index=255), partial(F.cross_entropy, ignore_index=255)):
        found = evaluate(loss, scores, targets, [Accuracy(), Recall("micro"), TopKAccuracy(2)])
        assert found["accuracy"] == found["recall_micro"] == pytest.approx(right)


NAN = float("nan")


@pytest.mark.parametrize(
    "metric",
    [
        Accuracy(), Hamming(), TopKAccuracy(2), FBeta(), Recall("none"), metrics.IoU(), ConfusionMatrix(), AUROC(),
        AveragePrecision(), AUROC(bins=10), AveragePrecision(bins=10),
    ],
)  # fmt: skip
def test_a_nan_score_gives_nan_unless_it_does_not_count(metric):
    good = torch.randn(6, 3, generator=DRAW)
    bad, targets = good.clone(), torch.tensor([0, 1, 2, 0, 1, 2])
    bad[4, 1] = NAN
    labels = (torch.arange(18).reshape(6, 3) % 2).long()
    mask = torch.arange(6) != 4

    def outputs(scores, weight=None):
        yield ClassificationOutput(LOSS, scores, targets, weight)
        if not isinstance(metric, TopKAccuracy):
            yield MultiLabelOutput(LOSS, scores, labels, weight)
            yield MultiLabelOutput(LOSS, scores[:, 1], labels[:, 1], weight)

    for broken, fine, ignored in zip(
        outputs(bad), outputs(good, mask.float()), outputs(bad, mask.float()), strict=True
    ):
        got = metrics.flatten_value("x", value(metric, broken)).values()
        assert (got and all(map(math.isnan, got))) or isinstance(metric, ConfusionMatrix | Recall)
        assert any(map(math.isnan, got))
        merged = metric.merge(*[metric.update(metric.init(torch.device("cpu")), each) for each in (fine, broken)])
        assert any(map(math.isnan, metrics.flatten_value("x", metric.compute(merged)).values()))
        assert value(metric, ignored) == value(metric, fine)


def test_the_axis_of_the_classes_is_known_or_asked_for():
    draw = torch.Generator().manual_seed(0)
    scores, targets = torch.randn(6, 4, 4, generator=draw), torch.randint(4, (6, 4), generator=draw)
    last, first = (scores.argmax(2) == targets).double().mean(), (scores.argmax(1) == targets).double().mean()
    assert last != first
    known = SupervisedOutput(LOSS, scores, targets, loss_function=nn.CrossEntropyLoss())
    assert value(Accuracy(), known) == first == value(Accuracy(), ClassificationOutput(LOSS, scores, targets))
    assert value(Accuracy(), SequenceOutput(LOSS, scores, targets)) == last
    for ambiguous in (
        SupervisedOutput(LOSS, scores, targets),
        SupervisedOutput(
            LOSS, scores, targets, loss_function=lambda a, b: F.cross_entropy(a.flatten(0, 1), b.flatten())
        ),
        SimpleNamespace(loss=LOSS, logits=scores, targets=targets),
    ):
        with pytest.raises(InvalidArgument, match=r"dimension 1 or the last .*task=\"multiclass\".*SequenceOutput"):
            value(Accuracy(), ambiguous)
        assert value(Accuracy(task="multiclass"), ambiguous) == first


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32), dtype=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]))
def test_classes_are_ranked_by_exact_probabilities_whatever_the_dtype(seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    logits = (torch.randn(60, 3, generator=draw) * 4).to(dtype)
    targets = torch.randint(3, (60,), generator=draw)
    exact = logits.double().softmax(1)
    expected = sk.roc_auc_score(targets, exact, multi_class="ovr")
    assert value(AUROC(), ClassificationOutput(LOSS, logits, targets)) == pytest.approx(expected, abs=1e-12)
    probabilities = SupervisedOutput(LOSS, exact.float(), targets)  # recognised: every row adds up to 1
    assert value(AUROC(), probabilities) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("loss", [nn.BCELoss(), nn.BCEWithLogitsLoss(), focal])
def test_a_report_and_the_confusion_matrix_agree_on_scores_between_zero_and_one(loss, tmp_path, monkeypatch):
    scores = torch.rand(30, generator=torch.Generator().manual_seed(2)).clamp(0.01, 0.99)
    targets, shown = (torch.arange(30) % 3 == 0).float(), []
    learner = stoker.Learner(Fixed(), loss=loss, lr=0.0, metrics=[ConfusionMatrix()], seed=0)
    fitted = learner.fit((scores, targets), epochs=1, show=False)
    matrix = fitted.evaluate((scores, targets))["confusion"]
    choice = scores > (0.0 if isinstance(loss, nn.BCEWithLogitsLoss) else 0.5)
    assert matrix == sk.confusion_matrix(targets, choice).tolist()
    evaluate_predictions = report.evaluate_predictions
    monkeypatch.setattr(
        report, "evaluate_predictions", lambda *a, **k: shown.append(evaluate_predictions(*a, **k)) or shown[0]
    )
    fitted.report(tmp_path / "report.html", (scores, targets))
    assert shown[0].confusion.tolist() == matrix
