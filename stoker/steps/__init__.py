"""A step: a model and a batch in, a typed output out.

Takes a `torch.nn.Module` and gives `valid(model)`, a view of it for validation, and the outputs that a step returns.
The one type to know is `Output`, anything with a `.loss`: `ClassificationOutput` and its siblings add what the metrics
need.
"""

from stoker.steps._loss import LossFunction, per_sample, weighted_mean
from stoker.steps._objective import Objective
from stoker.steps._outputs import (
    ClassificationOutput,
    MultiLabelOutput,
    Output,
    RegressionOutput,
    SequenceOutput,
)
from stoker.steps._summary import Layer, Summary, summary
from stoker.steps._supervised import Parts, Supervised, SupervisedOutput
from stoker.steps._valid import valid

__all__ = [
    "ClassificationOutput",
    "Layer",
    "LossFunction",
    "MultiLabelOutput",
    "Objective",
    "Output",
    "Parts",
    "RegressionOutput",
    "SequenceOutput",
    "Summary",
    "Supervised",
    "SupervisedOutput",
    "per_sample",
    "summary",
    "valid",
    "weighted_mean",
]
