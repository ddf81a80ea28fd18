"""Metrics: numbers about samples and tokens, computed on the device and read on the host only when needed.

Values do not depend on how the samples were split into batches. A metric is a frozen `Metric`; what it has counted is
a state that is passed in and returned. A `Meter` reads numbers about the training instead of an output.

>>> import torch
>>> from stoker import ClassificationOutput, metrics
>>> logits, targets = torch.eye(3), torch.tensor([0, 1, 0])
>>> metric = metrics.Accuracy()
>>> state = metric.init(torch.device("cpu"))
>>> for rows in (slice(0, 2), slice(2, 3)):
...     state = metric.update(state, ClassificationOutput(torch.tensor(0.0), logits[rows], targets[rows]))
>>> round(metric.compute(state), 3)
0.667
"""

from stoker.metrics._adapters import as_metric, as_metrics
from stoker.metrics._classification import (
    Accuracy,
    ConfusionMatrix,
    Dice,
    FBeta,
    Hamming,
    IoU,
    Precision,
    Recall,
    TopKAccuracy,
)
from stoker.metrics._means import MAE, MSE, R2, RMSE, Loss, of
from stoker.metrics._meters import (
    CPUTemperature,
    CPUUse,
    GPUMemory,
    GPUPower,
    GPUTemperature,
    GPUUse,
    GradientNorm,
    LearningRate,
    MemoryUse,
    Meter,
    Readings,
    Throughput,
)
from stoker.metrics._metric import Metric, State, Value, flatten_value
from stoker.metrics._outputs import takes_probabilities, weight_of
from stoker.metrics._ranking import AUROC, AveragePrecision
from stoker.metrics._text import ErrorRate, Perplexity

__all__ = [
    "AUROC",
    "MAE",
    "MSE",
    "R2",
    "RMSE",
    "Accuracy",
    "AveragePrecision",
    "CPUTemperature",
    "CPUUse",
    "ConfusionMatrix",
    "Dice",
    "ErrorRate",
    "FBeta",
    "GPUMemory",
    "GPUPower",
    "GPUTemperature",
    "GPUUse",
    "GradientNorm",
    "Hamming",
    "IoU",
    "LearningRate",
    "Loss",
    "MemoryUse",
    "Meter",
    "Metric",
    "Perplexity",
    "Precision",
    "Readings",
    "Recall",
    "State",
    "Throughput",
    "TopKAccuracy",
    "Value",
    "as_metric",
    "of",
]
