"""Outputs in, numbers out, on the device until somebody reads them.

Takes what steps return and gives numbers about samples and tokens that do not depend on how these came in batches. The
one type to know is `Metric(init, update, merge, compute)`, a frozen value whose state is passed in and given back; a
`Meter` reads the loop instead of an output.

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

from stoker.metrics._accept import as_metric
from stoker.metrics._accuracy import Accuracy, Hamming, TopKAccuracy
from stoker.metrics._confusion import ConfusionMatrix
from stoker.metrics._function import of
from stoker.metrics._loss import Loss
from stoker.metrics._meters import GradientNorm, LearningRate, Meter, Readings, Throughput
from stoker.metrics._metric import Metric, State, Value, named
from stoker.metrics._overlap import Dice, IoU
from stoker.metrics._precision import FBeta, Precision, Recall
from stoker.metrics._ranking import AUROC, AveragePrecision
from stoker.metrics._reading import weight_of
from stoker.metrics._regression import MAE, MSE, R2, RMSE
from stoker.metrics._system import CPUTemperature, CPUUse, GPUMemory, GPUPower, GPUTemperature, GPUUse, MemoryUse
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
    "named",
    "of",
    "weight_of",
]
