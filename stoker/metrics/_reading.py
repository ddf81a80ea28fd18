"""What a metric reads from an output: scores, targets, and how much each sample or token counts.

Only types and shapes are looked at, never values: the device is not waited for.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType
from stoker.metrics._sums import wide
from stoker.steps import ClassificationOutput, MultiLabelOutput, RegressionOutput, SequenceOutput

Task = Literal["binary", "multiclass", "multilabel"]


class Scored(NamedTuple):
    """Classification in one layout, whatever the output's was. `n` counts samples, or the positions in them."""

    task: Task
    scores: Tensor  # [n, classes] or [n, labels], a single label where the task is binary
    targets: Tensor  # class numbers [n], probabilities [n, classes], or booleans [n, labels]
    weights: Tensor | None  # [n], of floats or booleans; None: 1 each

    def classes(self) -> Tensor:
        """The targets as class numbers; of probabilities the likeliest."""
        return self.targets if self.targets.ndim == 1 else self.targets.argmax(1)


class Compared(NamedTuple):
    """Numbers and what they should have been, in one shape, samples first."""

    predictions: Tensor
    targets: Tensor
    weights: Tensor | None  # in the same shape; None: 1 each


def read_scores(who: str, output: Any, *, task: Task | None, ignore: int) -> Scored:
    """Scores and targets of a classification; `task` is needed only where shapes can't tell."""
    scores, targets = read_raw(output)
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor) or isinstance(output, RegressionOutput):
        raise _wrong(who, "scores of classes (logits) and targets", output)
    if not scores.is_floating_point():
        raise WrongType(
            f"{who} reads the scores of the classes (logits), not the classes chosen; "
            f"got {scores.dtype} from {type(output).__name__}"
        )
    last = isinstance(output, SequenceOutput) or (
        getattr(output, "mask", None) is not None and scores.shape[:-1] == targets.shape
    )
    found = task or ("multiclass" if last else _task(who, output, scores, targets))
    if found == "multiclass":
        return _multiclass(who, output, scores, targets, axis=-1 if last else 1, ignore=ignore)
    return _yes_or_no(who, output, scores, targets, found)


def read_numbers(who: str, output: Any) -> Compared:
    """Predictions and targets of a regression, in the widest type of the device."""
    predictions, targets = getattr(output, "predictions", None), getattr(output, "targets", None)
    if not isinstance(predictions, Tensor) or not isinstance(targets, Tensor) or hasattr(output, "logits"):
        raise _wrong(who, "predictions that are numbers, and targets", output)
    if predictions.shape != targets.shape:
        raise InvalidArgument(
            f"{who} compares predictions and targets of one shape; got predictions {list(predictions.shape)} and "
            f"targets {list(targets.shape)}, which would broadcast into something else or not fit; reshape one of them"
        )
    dtype = wide(predictions.device)
    weights = read_weights(who, output, predictions.shape)
    return Compared(predictions.to(dtype), targets.to(dtype), weights)


def read_raw(output: Any) -> tuple[Any, Any]:
    """What the model said and what it should have said, as they are: `.logits` (or `.predictions`), `.targets`."""
    scores = getattr(output, "logits", None)
    return (getattr(output, "predictions", None) if scores is None else scores), getattr(output, "targets", None)


def read_weights(who: str, output: Any, shape: torch.Size) -> Tensor | None:
    """How much each of `shape` counts (samples first), from the output's `weight` and `mask`, in that shape."""
    weights = _weights(who, output, shape)
    return None if weights is None else weights.reshape(shape)


def weight_of(output: Any) -> float | Tensor:
    """How much a loss stands for: the number of samples (or tokens) it is a mean of, or the sum of their weights.

    >>> output = RegressionOutput(torch.tensor(0.5), torch.zeros(32, 1), torch.ones(32, 1))
    >>> weight_of(output)
    32

    An output of the user's own counts what its `count` says, else as many samples as its targets (or predictions)
    have, else 1. Never waits for the device.
    """
    weight, counted = getattr(output, "weight", None), getattr(output, "counted", None)
    if counted is not None and weight is None and getattr(output, "mask", None) is None:
        return math.prod(counted)  # as the output's own `count`, without making a tensor of ones
    count = getattr(output, "count", None)
    if isinstance(count, Tensor | int | float):
        return count
    if isinstance(weight, Tensor):
        return weight.sum(dtype=weight.dtype if weight.dtype == torch.float64 else torch.float32)
    for part in (getattr(output, "targets", None), getattr(output, "predictions", None)):
        if (found := _first_tensor(part)) is not None and found.ndim:
            return found.shape[0]
    return 1


def _first_tensor(part: Any) -> Tensor | None:
    if isinstance(part, Tensor):
        return part
    inner = part.values() if isinstance(part, Mapping) else part if isinstance(part, tuple | list) else ()
    return next((found for each in inner if (found := _first_tensor(each)) is not None), None)


def _task(who: str, output: Any, scores: Tensor, targets: Tensor) -> Task:
    """What kind of classification an output holds, from its class or else from shapes and types."""
    if isinstance(output, ClassificationOutput):
        return "multiclass"
    single = scores.ndim == 1 or scores.shape[1] == 1
    if isinstance(output, MultiLabelOutput):
        return "binary" if single else "multilabel"
    if scores.shape == targets.shape:
        if single or not targets.is_floating_point():
            return "binary" if single else "multilabel"
        raise InvalidArgument(
            f"{who}: scores and targets of one shape, {list(scores.shape)}, can be labels that are yes or no each, or "
            f'probabilities of classes; say which with task="multilabel" or task="multiclass"'
        )
    if scores.ndim > 1 and scores.shape[:1] + scores.shape[2:] == targets.shape:
        return "binary" if single else "multiclass"
    raise _unfit(who, scores, targets)


def _multiclass(who: str, output: Any, scores: Tensor, targets: Tensor, *, axis: int, ignore: int) -> Scored:
    soft = targets.shape == scores.shape and targets.is_floating_point()
    if scores.ndim > 2 and axis == 1:
        scores, targets = scores.movedim(1, -1), targets.movedim(1, -1) if soft else targets
    places = scores.shape[:-1]
    if not soft and targets.shape != places:
        raise _unfit(who, scores, targets)
    weights = _weights(who, output, places)
    if len(places) > 1:
        scores, targets = scores.flatten(0, -2), targets.flatten(0, -2 if soft else -1)
    if not soft:
        counted = targets != ignore
        weights = counted if weights is None else weights.where(counted, 0)
    return Scored("multiclass", scores, targets, weights)


def _yes_or_no(who: str, output: Any, scores: Tensor, targets: Tensor, task: Task) -> Scored:
    if scores.ndim == 1:
        scores = scores[:, None]
    if scores.shape[1] == 1 and targets.shape == scores.shape[:1] + scores.shape[2:]:
        targets = targets[:, None]
    if targets.shape != scores.shape or (task == "binary" and scores.shape[1] != 1):
        raise _unfit(who, scores, targets)
    if scores.ndim > 2:
        scores, targets = scores.movedim(1, -1), targets.movedim(1, -1)
    weights = _weights(who, output, scores.shape[:-1])
    return Scored(task, scores.flatten(0, -2), targets.flatten(0, -2) > 0.5, weights)


def _weights(who: str, output: Any, shape: torch.Size) -> Tensor | None:
    """The weight and the mask of an output as one flat tensor for positions in `shape`, or None where all count 1."""
    weight, mask = getattr(output, "weight", None), getattr(output, "mask", None)
    if weight is None and mask is None:
        return None
    parts = [_spread(who, name, each, shape) for name, each in (("weight", weight), ("mask", mask)) if each is not None]
    if len(parts) == 1:
        return parts[0]
    return parts[0].where(parts[1] != 0, 0)


def _spread(who: str, name: str, given: Tensor, shape: torch.Size) -> Tensor:
    if given.shape != shape[: given.ndim]:
        raise InvalidArgument(
            f"{who}: a {name} has one number a sample or a position, the shape {list(shape[:1])} or {list(shape)}; "
            f"got {list(given.shape)}"
        )
    precise = given if given.dtype in (torch.bool, torch.float64) else given.float()
    return precise.reshape(precise.shape + (1,) * (len(shape) - precise.ndim)).expand(shape).flatten()


def _unfit(who: str, scores: Tensor, targets: Tensor) -> InvalidArgument:
    return InvalidArgument(
        f"{who}: scores [samples, classes, ...] go with targets [samples, ...]; got scores {list(scores.shape)} and "
        f"targets {list(targets.shape)} (where the classes stand last, return a SequenceOutput from train_step)"
    )


def _wrong(who: str, needs: str, output: Any) -> WrongType:
    held = {name: getattr(output, name, None) for name in ("logits", "predictions", "targets")}
    found = ", ".join(f".{name} of type {type(each).__name__}" for name, each in held.items() if each is not None)
    return WrongType(
        f"{who} needs {needs}; {type(output).__name__} has {found or 'neither'}: return a fitting output from "
        "train_step, or write metrics.of(fn)"
    )
