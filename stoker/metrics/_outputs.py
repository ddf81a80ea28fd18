"""What metrics read from an output: scores, targets, and the weight of each sample or token.

Only types and shapes are inspected, never values, so nothing waits for the device.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from stoker._tree import first_tensor
from stoker.errors import InvalidArgument, WrongType
from stoker.metrics._states import widest_float
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput

Task = Literal["binary", "multiclass", "multilabel"]


class Scores(NamedTuple):
    """A classification in one layout, whatever the layout of the output; n counts samples, or positions in them."""

    task: Task
    scores: Tensor  # [n, classes] or [n, labels]; one label for a binary task
    targets: Tensor  # class numbers [n], probabilities [n, classes], or booleans [n, labels]
    weights: Tensor | None  # [n], floats or booleans; None: 1 each

    def classes(self) -> Tensor:
        """The targets as class numbers: the largest of probabilities."""
        return self.targets if self.targets.ndim == 1 else self.targets.argmax(1)

    def float_weights(self) -> Tensor:
        """The weights in the widest floating point type of the device."""
        scores, dtype = self.scores, widest_float(self.scores.device)
        if self.weights is None:
            return torch.ones(len(scores), dtype=dtype, device=scores.device)
        return self.weights.to(dtype)


def read_scores(metric: str, output: Any, *, task: Task | None, ignore: int) -> Scores:
    """The scores and targets of a classification; `task` is needed only if the shapes are ambiguous."""
    scores, targets = read_pair(output)
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor) or isinstance(output, RegressionOutput):
        raise _wrong_output(metric, "scores of classes (logits) and targets", output)
    if not scores.is_floating_point():
        raise WrongType(
            f"{metric} reads the scores of the classes (logits), not the predicted classes; "
            f"got {scores.dtype} from {type(output).__name__}"
        )
    classes_last = isinstance(output, SequenceOutput) or (
        getattr(output, "mask", None) is not None and scores.shape[:-1] == targets.shape
    )
    found = task or ("multiclass" if classes_last else _infer_task(metric, output, scores, targets))
    if found == "multiclass":
        return _read_multiclass(metric, output, scores, targets, axis=-1 if classes_last else 1, ignore=ignore)
    return _read_labels(metric, output, scores, targets, found)


def read_numbers(metric: str, output: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """The predictions and targets of a regression in the device's widest type, and weights in their shape (or None)."""
    predictions, targets = getattr(output, "predictions", None), getattr(output, "targets", None)
    if not isinstance(predictions, Tensor) or not isinstance(targets, Tensor) or hasattr(output, "logits"):
        raise _wrong_output(metric, "predictions that are numbers, and targets", output)
    if predictions.shape != targets.shape:
        raise InvalidArgument(
            f"{metric} compares predictions and targets of one shape; got predictions {list(predictions.shape)} and "
            f"targets {list(targets.shape)}, which do not fit or would broadcast; reshape one of them"
        )
    dtype = widest_float(predictions.device)
    weights = read_weights(metric, output, predictions.shape)
    return predictions.to(dtype), targets.to(dtype), weights


def read_pair(output: Any) -> tuple[Any, Any]:
    """What the model returned (`.logits`, else `.predictions`) and the targets, as they are."""
    scores = getattr(output, "logits", None)
    return (getattr(output, "predictions", None) if scores is None else scores), getattr(output, "targets", None)


def read_weights(metric: str, output: Any, shape: torch.Size) -> Tensor | None:
    """The weight of each element of `shape` (samples first), from the output's `weight` and `mask`."""
    weights = _flat_weights(metric, output, shape)
    return None if weights is None else weights.reshape(shape)


def weight_of(output: Any) -> float | Tensor:
    """The weight of a loss: the number of samples or tokens it is the mean of, or the sum of their weights.

    >>> output = RegressionOutput(torch.tensor(0.5), torch.zeros(32, 1), torch.ones(32, 1))
    >>> weight_of(output)
    32

    For an output class of the user it is `count`, else the sum of `weight`, else the number of samples in the targets
    (or predictions), else 1. Never waits for the device.
    """
    weight, shape = getattr(output, "weight", None), getattr(output, "weights_shape", None)
    if shape is not None and weight is None and getattr(output, "mask", None) is None:
        return math.prod(shape)  # what the output's own `count` gives, without a tensor of ones
    count = getattr(output, "count", None)
    if isinstance(count, Tensor | int | float):
        return count
    if isinstance(weight, Tensor):
        return weight.sum(dtype=weight.dtype if weight.dtype == torch.float64 else torch.float32)
    for part in (getattr(output, "targets", None), getattr(output, "predictions", None)):
        tensor = first_tensor(part)
        if tensor is not None and tensor.ndim:
            return tensor.shape[0]
    return 1


def _infer_task(metric: str, output: Any, scores: Tensor, targets: Tensor) -> Task:
    """The kind of classification, from the output's class or else from shapes and types."""
    if isinstance(output, ClassificationOutput):
        return "multiclass"
    single = scores.ndim == 1 or scores.shape[1] == 1
    if isinstance(output, MultiLabelOutput):
        return "binary" if single else "multilabel"
    if scores.shape == targets.shape:
        if single or not targets.is_floating_point():
            return "binary" if single else "multilabel"
        raise InvalidArgument(
            f"{metric}: scores and targets of the same shape {list(scores.shape)} can be several labels per sample or "
            f'probabilities of classes; choose with task="multilabel" or task="multiclass"'
        )
    if scores.ndim > 1 and scores.shape[:1] + scores.shape[2:] == targets.shape:
        return "binary" if single else "multiclass"
    raise _wrong_shapes(metric, scores, targets)


def _read_multiclass(metric: str, output: Any, scores: Tensor, targets: Tensor, *, axis: int, ignore: int) -> Scores:
    soft = targets.shape == scores.shape and targets.is_floating_point()
    if scores.ndim > 2 and axis == 1:
        scores, targets = scores.movedim(1, -1), targets.movedim(1, -1) if soft else targets
    positions = scores.shape[:-1]
    if not soft and targets.shape != positions:
        raise _wrong_shapes(metric, scores, targets)
    weights = _flat_weights(metric, output, positions)
    if len(positions) > 1:
        scores, targets = scores.flatten(0, -2), targets.flatten(0, -2 if soft else -1)
    if not soft:
        counted = targets != ignore
        weights = counted if weights is None else weights.where(counted, 0)
    return Scores("multiclass", scores, targets, weights)


def _read_labels(metric: str, output: Any, scores: Tensor, targets: Tensor, task: Task) -> Scores:
    if scores.ndim == 1:
        scores = scores[:, None]
    if scores.shape[1] == 1 and targets.shape == scores.shape[:1] + scores.shape[2:]:
        targets = targets[:, None]
    if targets.shape != scores.shape or (task == "binary" and scores.shape[1] != 1):
        raise _wrong_shapes(metric, scores, targets)
    if scores.ndim > 2:
        scores, targets = scores.movedim(1, -1), targets.movedim(1, -1)
    weights = _flat_weights(metric, output, scores.shape[:-1])
    return Scores(task, scores.flatten(0, -2), targets.flatten(0, -2) > 0.5, weights)


def _flat_weights(metric: str, output: Any, shape: torch.Size) -> Tensor | None:
    """Weight and mask of an output as one flat tensor for the positions in `shape`; None if all weigh 1."""
    given = [(name, getattr(output, name, None)) for name in ("weight", "mask")]
    parts = [_expand_weight(metric, name, each, shape) for name, each in given if each is not None]
    if len(parts) == 2:
        return parts[0].where(parts[1] != 0, 0)
    return parts[0] if parts else None


def _expand_weight(metric: str, name: str, weight: Tensor, shape: torch.Size) -> Tensor:
    if weight.shape != shape[: weight.ndim]:
        raise InvalidArgument(
            f"{metric}: a {name} has one number per sample or position, so its shape is {list(shape[:1])} or "
            f"{list(shape)}; got {list(weight.shape)}"
        )
    precise = weight if weight.dtype in (torch.bool, torch.float64) else weight.float()
    return precise.reshape(precise.shape + (1,) * (len(shape) - precise.ndim)).expand(shape).flatten()


def _wrong_shapes(metric: str, scores: Tensor, targets: Tensor) -> InvalidArgument:
    return InvalidArgument(
        f"{metric}: expected scores [samples, classes, ...] and targets [samples, ...]; got scores "
        f"{list(scores.shape)} and targets {list(targets.shape)} (if the classes are the last dimension, return a "
        "SequenceOutput from train_step)"
    )


def _wrong_output(metric: str, needs: str, output: Any) -> WrongType:
    values = {name: getattr(output, name, None) for name in ("logits", "predictions", "targets")}
    found = ", ".join(f".{name} of type {type(each).__name__}" for name, each in values.items() if each is not None)
    return WrongType(
        f"{metric} needs {needs}; {type(output).__name__} has {found or 'neither'}: return an output that has them "
        "from train_step, or use metrics.of(fn)"
    )
