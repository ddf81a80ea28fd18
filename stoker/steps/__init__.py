"""A step: from a model and a batch to a typed output.

`Output` is the type to know: anything with a `.loss`. `ClassificationOutput` and its siblings add what metrics need.
`Supervised` is the step of models that have none of their own. `valid(model)` is a view of a model for validation.
"""

from stoker.steps._losses import LossFunction, per_sample, weighted_mean
from stoker.steps._outputs import (
    ClassificationOutput,
    MultiLabelOutput,
    Objective,
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
