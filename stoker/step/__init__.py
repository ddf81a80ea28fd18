"""A step: a model and a batch in, a typed output out.

Takes a `torch.nn.Module` and gives `valid(model)`, a view of it for validation, and the outputs that a step returns.
The one type to know is `Output`, anything with a `.loss`: `ClassificationOutput` and its siblings add what the metrics
need.
"""

from stoker.step._outputs import (
    ClassificationOutput,
    MultiLabelOutput,
    Output,
    RegressionOutput,
    SequenceOutput,
)
from stoker.step._valid import valid, was_viewed

__all__ = [
    "ClassificationOutput",
    "MultiLabelOutput",
    "Output",
    "RegressionOutput",
    "SequenceOutput",
    "valid",
    "was_viewed",
]
