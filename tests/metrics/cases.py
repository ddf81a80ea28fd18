"""Every metric with random data for it: a line in `CASES` puts a metric under all tests of `test_contract.py`."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from stoker import metrics
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput, SupervisedOutput

CPU = torch.device("cpu")


def classes(draw, n):
    logits, targets = torch.randn(n, 4, generator=draw).double(), torch.randint(4, (n,), generator=draw)
    weight = torch.rand(n, generator=draw).double()

    def output(rows):
        losses = F.cross_entropy(logits[rows], targets[rows], reduction="none") * weight[rows]
        loss = losses.sum() / weight[rows].sum()
        return ClassificationOutput(loss, logits[rows], targets[rows], weight[rows])

    return output


def dense(draw, n):
    logits, targets = torch.randn(n, 3, 2, 2, generator=draw), torch.randint(3, (n, 2, 2), generator=draw)
    targets[torch.rand(n, 2, 2, generator=draw) < 0.3] = -100
    return lambda rows: SupervisedOutput(torch.tensor(0.0), logits[rows], targets[rows])


def labels(draw, n):
    logits, targets = torch.randn(n, 3, generator=draw).round(decimals=1), torch.randint(2, (n, 3), generator=draw)
    return lambda rows: MultiLabelOutput(torch.tensor(0.0), logits[rows], targets[rows])


def binary(draw, n):
    logits, targets = torch.randn(n, 1, generator=draw), torch.randint(2, (n,), generator=draw)
    weight = torch.rand(n, generator=draw)
    return lambda rows: SupervisedOutput(torch.tensor(0.0), logits[rows], targets[rows].float(), weight[rows])


def tokens(draw, n):
    logits, targets = torch.randn(n, 5, 6, generator=draw).double(), torch.randint(6, (n, 5), generator=draw)
    mask = torch.rand(n, 5, generator=draw) < 0.6

    def output(rows):
        counted = mask[rows]
        loss = F.cross_entropy(logits[rows][counted], targets[rows][counted])
        return SequenceOutput(loss, logits[rows], targets[rows], counted)

    return output


def numbers(draw, n):
    predictions, targets = torch.randn(n, 2, generator=draw), torch.randn(n, 2, generator=draw) + 1000
    weight = torch.rand(n, generator=draw)
    return lambda rows: RegressionOutput(torch.tensor(0.0), predictions[rows], targets[rows], weight[rows])


def sentences(draw, n):
    predicted, expected = torch.randint(4, (n, 6), generator=draw), torch.randint(4, (n, 7), generator=draw)
    return lambda rows: SimpleNamespace(loss=torch.tensor(0.0), predictions=predicted[rows], targets=expected[rows])


def absolute(predictions, targets):
    return (predictions - targets).abs()


CASES = [
    (metrics.Loss(), classes),
    (metrics.Loss(), tokens),
    (metrics.Accuracy(), classes),
    (metrics.Accuracy(), dense),
    (metrics.Accuracy(), labels),
    (metrics.Accuracy(), binary),
    (metrics.Accuracy(), tokens),
    (metrics.Hamming(), labels),
    (metrics.TopKAccuracy(2), classes),
    (metrics.Precision(), classes),
    (metrics.Precision(), labels),
    (metrics.Recall("none"), tokens),
    (metrics.Recall("micro"), binary),
    (metrics.FBeta(2), labels),
    (metrics.FBeta(average="micro"), tokens),
    (metrics.Dice(), dense),
    (metrics.IoU("none", background=0), dense),
    (metrics.ConfusionMatrix(), classes),
    (metrics.ConfusionMatrix(), labels),
    (metrics.ConfusionMatrix(), binary),
    (metrics.AUROC(), classes),
    (metrics.AUROC(), binary),
    (metrics.AUROC(bins=20), labels),
    (metrics.AUROC(bins=20), dense),
    (metrics.AveragePrecision(), labels),
    (metrics.AveragePrecision(), tokens),
    (metrics.AveragePrecision(bins=20), classes),
    (metrics.MAE(), numbers),
    (metrics.MSE(), numbers),
    (metrics.RMSE(), numbers),
    (metrics.R2(), numbers),
    (metrics.Perplexity(), tokens),
    (metrics.Perplexity(), classes),
    (metrics.CharErrorRate(), sentences),
    (metrics.WordErrorRate(separator=0), sentences),
    (metrics.WordErrorRate(end=2), tokens),
    (metrics.of(absolute), numbers),
]


def value(metric, *outputs):
    """The value of a metric after some outputs."""
    state = metric.init(CPU)
    for output in outputs:
        state = metric.update(state, output)
    return metric.compute(state)
