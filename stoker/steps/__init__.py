"""A step: from a model and a batch to a typed output.

`Output` is the type to know: anything with a `.loss`. `ClassificationOutput` and its siblings add what metrics need.
`Supervised` computes the loss with a function of predictions and targets, `StepFunction` with a step of the user's, and
`OwnForward` is the step of a model whose `forward` returns the loss. `valid(model)` is a view of a model for
validation.
"""

from typing import TYPE_CHECKING

from stoker._lazy import import_on_use
from stoker.steps._loss_count import LossCount
from stoker.steps._losses import LossFunction, mixed_mean, per_sample, weighted_mean
from stoker.steps._outputs import (
    KNOWN_PARTS,
    BareLoss,
    ClassificationOutput,
    ForwardOutput,
    MultiLabelOutput,
    Objective,
    Output,
    RegressionOutput,
    SequenceOutput,
    count_targets,
    extra_numbers,
    named_parts,
    says_count,
)
from stoker.steps._samples import count_samples
from stoker.steps._step_function import OwnForward, StepFunction, Steps
from stoker.steps._supervised import Columns, Parts, Supervised, SupervisedOutput
from stoker.steps._valid import clone_model, unwrap, valid

if TYPE_CHECKING:
    from stoker.steps._summary import Summary, summary
else:  # what a plain fit does not use
    __getattr__, __dir__ = import_on_use(__name__, {"_summary": "Summary summary"})

__all__ = [
    "ClassificationOutput",
    "MultiLabelOutput",
    "Objective",
    "Output",
    "RegressionOutput",
    "SequenceOutput",
    "Summary",
    "summary",
    "valid",
]
