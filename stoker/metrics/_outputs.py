"""What metrics read from an output: scores, targets, and the weight of each sample or token.

Only types and shapes are inspected, never values, so nothing waits for the device.
"""

import math
from dataclasses import is_dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.metrics._states import widest_float
from stoker.steps import (
    KNOWN_PARTS,
    ClassificationOutput,
    ForwardOutput,
    MultiLabelOutput,
    RegressionOutput,
    SequenceOutput,
    count_samples,
    count_targets,
    named_parts,
)

Task = Literal["binary", "multiclass", "multilabel"]


class Scores(NamedTuple):
    """A classification in one layout, whatever the layout of the output; n counts samples, or positions in them."""

    task: Task
    scores: Tensor  # [n, classes] or [n, labels]; one label for a binary task
    targets: Tensor  # class numbers [n], probabilities [n, classes], or booleans [n, labels]
    weights: Tensor | None  # [n] for classes, [n, labels] for labels; floats or booleans; None: 1 each
    are_probabilities: bool | None  # None: unknown

    def classes(self) -> Tensor:
        """The targets as class numbers: the largest of probabilities."""
        return self.targets if self.targets.ndim == 1 else self.targets.argmax(1)

    def predicted_labels(self, threshold: float | None) -> Tensor:
        """Whether each label is predicted, [n, labels].

        If the scores may be logits or probabilities, [2, n, labels]: what holds for logits, and for probabilities.
        """
        if threshold is None and self.are_probabilities is None:
            return torch.stack((self.scores > 0.0, self.scores > 0.5))
        return self.scores > (0.5 * bool(self.are_probabilities) if threshold is None else threshold)

    def count_nan(self, largest: Tensor | None = None) -> Tensor:
        """How many samples or labels that count have a score that is NaN, which is then the largest of its classes.

        `largest` are the largest scores of classes, if they are known.
        """
        if self.task != "multiclass":
            largest = self.scores
        return self.count_flags((self.scores.amax(1) if largest is None else largest).isnan())

    def count_flags(self, flags: Tensor) -> Tensor:
        """How many flags are set, [n] for classes, [n, labels] for labels, where something counts."""
        if self.weights is None:
            return flags.count_nonzero()
        return (flags & (self.weights if self.weights.dtype == torch.bool else self.weights != 0)).count_nonzero()

    def float_weights(self) -> Tensor:
        """The weights in the widest floating point type of the device, [n], or [n, labels] for labels."""
        dtype = widest_float(self.scores.device)
        if self.weights is None:
            shape = self.scores.shape[:1] if self.task == "multiclass" else self.scores.shape
            return torch.ones(shape, dtype=dtype, device=self.scores.device)
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
    if not targets.is_floating_point() and targets.dtype != torch.bool:
        targets = targets.long()  # in small types, class numbers overflow and -100 is a class
    facts, classes_last = _facts_of(output), has_classes_last(output, scores, targets)
    if task is None:
        task = "multiclass" if classes_last else _infer_task(metric, output, scores, targets, facts)
    if task == "multiclass":
        ignored = (ignore,) if facts.ignore_index in (None, ignore) else (ignore, facts.ignore_index)
        return _read_multiclass(metric, output, scores, targets, -1 if classes_last else 1, ignored)
    return _read_labels(metric, output, scores, targets, task, ignore, facts.are_probabilities)


class _LossFacts(NamedTuple):
    """What the loss that was given to `fit` says about the scores."""

    has_classes: bool | None = None  # whether a sample has one class (in dimension 1), not labels; None: unknown
    are_probabilities: bool | None = None  # None: unknown
    ignore_index: int | None = None


_LOGITS = _LossFacts(are_probabilities=False)


def _facts_of(output: Any) -> _LossFacts:
    if isinstance(output, ForwardOutput) and output.ignore_index is not None:  # its loss is a cross-entropy
        return _LossFacts(None, False, output.ignore_index)
    if hasattr(output, "logits") or not isinstance(output.predictions, Tensor):  # a part of them is called so
        return _LOGITS
    return _facts_of_loss(getattr(output, "loss_function", None))


def has_classes_last(output: Any, scores: Tensor, targets: Tensor) -> bool:
    """Whether the classes are the last dimension of the scores, as for tokens, and not dimension 1."""
    if scores.shape[:-1] != targets.shape:
        return isinstance(output, SequenceOutput)
    if isinstance(output, ForwardOutput):  # also if there are as many tokens as classes, in an output of Transformers
        is_clear = scores.shape[:1] + scores.shape[2:] != targets.shape or output.shift > 0
        is_last = scores.ndim > 2 and (is_clear or is_dataclass(output.result))
        if is_last and output.ignore_index is None and "targets" not in named_parts(output.result):
            raise InvalidArgument(
                f"logits {list(scores.shape)} may belong to the targets {list(targets.shape)} of the same position or "
                "of the next, and the loss does not show which, since it is not a cross-entropy of them: return a "
                'mapping with "loss", "predictions" and "targets" from a step, Learner(step=fn)'
            )
        return is_last
    return isinstance(output, SequenceOutput) or getattr(output, "mask", None) is not None


def takes_probabilities(loss: Any) -> bool | None:
    """Whether the predictions that a loss takes are probabilities; None if that is unknown.

    >>> takes_probabilities(nn.BCELoss()), takes_probabilities(nn.BCEWithLogitsLoss()), takes_probabilities(max)
    (True, False, None)
    """
    return _facts_of_loss(loss).are_probabilities


def _facts_of_loss(loss: Any) -> _LossFacts:
    keywords: dict[str, Any] = {}
    while isinstance(loss, partial):
        keywords, loss = {**loss.keywords, **keywords}, loss.func
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return _LossFacts(True, False, loss.ignore_index)
    if loss is F.cross_entropy or loss is F.nll_loss:
        return _LossFacts(True, False, keywords.get("ignore_index", -100))
    if isinstance(loss, nn.BCELoss) or loss is F.binary_cross_entropy:
        return _LossFacts(False, True)
    if isinstance(loss, nn.BCEWithLogitsLoss) or loss is F.binary_cross_entropy_with_logits:
        return _LossFacts(False, False)
    module = getattr(type(loss) if isinstance(loss, nn.Module) else loss, "__module__", None) or ""
    return _LOGITS if module.startswith("torch.nn.") else _LossFacts()


def read_numbers(metric: str, output: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """The predictions and targets of a regression in the device's widest type, and weights in their shape (or None)."""
    predictions, targets = getattr(output, "predictions", None), getattr(output, "targets", None)
    # Models of Transformers call everything logits, also the numbers of a regression.
    has_logits = hasattr(output, "logits") and not isinstance(output, ForwardOutput)
    if not isinstance(predictions, Tensor) or not isinstance(targets, Tensor) or has_logits:
        raise _wrong_output(metric, "predictions that are numbers, and targets", output)
    if isinstance(output, ForwardOutput) and predictions.shape == (*targets.shape, 1):
        predictions = predictions.squeeze(-1)
    if predictions.shape != targets.shape:
        raise InvalidArgument(
            f"{metric} compares predictions and targets of one shape; got predictions {list(predictions.shape)} and "
            f"targets {list(targets.shape)}, which do not fit or would broadcast; reshape one of them"
        )
    dtype = widest_float(predictions.device)
    weights = read_weights(metric, output, predictions.shape)
    return predictions.to(dtype), targets.to(dtype), weights


def read_pair(output: Any) -> tuple[Any, Any]:
    """What the model returned (`.logits`, else `.predictions` or their `logits`) and the targets, as they are.

    If the model predicts the next token, they are the tokens that are predicted, and their predictions.
    """
    scores, targets = getattr(output, "logits", None), getattr(output, "targets", None)
    if scores is None:
        scores = getattr(output, "predictions", None)
        scores = scores if isinstance(scores, Tensor) else named_parts(scores).get("logits", scores)
    is_shifted = isinstance(output, ForwardOutput) and output.shift > 0
    if is_shifted and isinstance(scores, Tensor) and isinstance(targets, Tensor):
        return scores[:, : -output.shift], targets[:, output.shift :]
    return scores, targets


# --- parts of an output

_NOT_PARTS = KNOWN_PARTS | {"loss_function"}


def read_part(metric: str, output: Any, name: str) -> Any:
    """The part of an output that is called `name`, as an output.

    >>> from types import SimpleNamespace as Output
    >>> both = Output(predictions={"digit": torch.ones(2, 10), "even": torch.ones(2)}, targets=torch.tensor([3, 4]))
    >>> read_part("accuracy", both, "digit").predictions.shape
    torch.Size([2, 10])

    Targets, weights and masks that have no parts belong to every part.
    """
    own = named_parts(output.result if isinstance(output, ForwardOutput) else output)
    part = own.get(name)
    if hasattr(part, "targets"):
        return part
    kind = "predictions" if getattr(output, "logits", None) is None else "logits"
    scores, targets = getattr(output, kind, None), getattr(output, "targets", None)
    if name in named_parts(scores):
        part = named_parts(scores)[name]
    elif part is None or name in _NOT_PARTS:
        known = [*named_parts(scores), *(each for each in own if each not in _NOT_PARTS)]
        raise _no_such_part(metric, "the output", name, known, scores)
    elif isinstance(output, ForwardOutput) and "targets" not in own:  # there may be others for other parts
        raise InvalidArgument(
            f"{metric} is of={name!r}, but it is not known which targets belong to this part of what the model "
            'returned: return a mapping with "loss", "predictions" and "targets" from a step, Learner(step=fn)'
        )
    if _has_parts(targets):
        if name not in named_parts(targets):
            raise _no_such_part(metric, "the target", name, list(named_parts(targets)), targets)
        targets = named_parts(targets)[name]
    others = {each: getattr(output, each, None) for each in ("weight", "mask")}
    others = {each: named_parts(value).get(name) if _has_parts(value) else value for each, value in others.items()}
    if isinstance(output, ForwardOutput):
        return replace(output, loss=None, predictions=part, targets=targets, result={**others, "targets": targets})
    return SimpleNamespace(**{kind: part}, targets=targets, **others)


def _has_parts(value: Any) -> bool:
    """Whether a value has parts, with names or (in a tuple) without; a list has entries, one for each sample."""
    return isinstance(value, tuple) or bool(named_parts(value))


def _no_such_part(metric: str, whole: str, name: str, known: list[str], value: Any) -> InvalidArgument:
    if known:
        found = f"its parts are {', '.join(map(repr, known))}{did_you_mean(name, known)}"
    else:
        found = f"{'its predictions are' if whole == 'the output' else 'it is'} a {type(value).__name__} without names"
    return InvalidArgument(f"{metric} is of={name!r}, but {whole} has no part of this name; {found}")


# --- weights


def read_weights(metric: str, output: Any, shape: torch.Size) -> Tensor | None:
    """The weight of each element of `shape` (samples first), from the output's `weight` and `mask`; None: 1 each."""
    parts: list[Tensor] = []
    for name in ("weight", "mask"):
        weight = getattr(output, name, None)
        if weight is None:
            continue
        if weight.shape != shape[: weight.ndim]:
            raise InvalidArgument(
                f"{metric}: a {name} has one number per sample or position, so its shape is {list(shape[:1])} or "
                f"{list(shape)}; got {list(weight.shape)}"
            )
        precise = weight if weight.dtype in (torch.bool, torch.float64) else weight.float()
        parts.append(precise.reshape(precise.shape + (1,) * (len(shape) - precise.ndim)).expand(shape))
    if len(parts) == 2:
        return parts[0].where(parts[1] != 0, 0)
    return parts[0] if parts else None


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
    if isinstance(output, ForwardOutput) and output.ignore_index is not None and isinstance(output.targets, Tensor):
        return count_targets(output.targets, output.shift, output.ignore_index, output.class_weight)
    if isinstance(weight, Tensor):
        return weight.sum(dtype=weight.dtype if weight.dtype == torch.float64 else torch.float32)
    parts = (getattr(output, "targets", None), getattr(output, "predictions", None))
    return next((count_samples((part,)) for part in parts if part is not None), 1)


def _infer_task(metric: str, output: Any, scores: Tensor, targets: Tensor, facts: _LossFacts) -> Task:
    """The kind of classification, from the output's class, the loss, or else from shapes and types."""
    single = scores.ndim == 1 or scores.shape[1] == 1
    if isinstance(output, ClassificationOutput):
        return "multiclass"
    if isinstance(output, MultiLabelOutput):
        return "binary" if single else "multilabel"
    if scores.shape == targets.shape:
        if facts.has_classes and targets.is_floating_point():
            return "multiclass"
        if single or not targets.is_floating_point() or facts.has_classes is False:
            return "binary" if single else "multilabel"
        raise InvalidArgument(
            f"{metric}: scores and targets of the same shape {list(scores.shape)} can be several labels per sample or "
            f'probabilities of classes; choose with task="multilabel" or task="multiclass"'
        )
    if scores.ndim == 1 or scores.shape[:1] + scores.shape[2:] != targets.shape:
        raise _wrong_shapes(metric, scores, targets)
    if scores.ndim > 2 and scores.shape[:-1] == targets.shape and not facts.has_classes:
        raise InvalidArgument(
            f"{metric}: the classes can be dimension 1 or the last dimension of the scores {list(scores.shape)}, with "
            f'targets {list(targets.shape)}: if they are dimension 1, write task="multiclass"; if they are the last, '
            "return a SequenceOutput from train_step"
        )
    return "binary" if single else "multiclass"


def _read_multiclass(
    metric: str, output: Any, scores: Tensor, targets: Tensor, axis: int, ignored: tuple[int, ...]
) -> Scores:
    soft = targets.shape == scores.shape and targets.is_floating_point()
    if scores.ndim > 2 and axis == 1:
        scores, targets = scores.movedim(1, -1), targets.movedim(1, -1) if soft else targets
    positions = scores.shape[:-1]
    if not soft and targets.shape != positions:
        raise _wrong_shapes(metric, scores, targets)
    weights = read_weights(metric, output, positions)
    if len(positions) > 1:
        scores, targets = scores.flatten(0, -2), targets.flatten(0, -2 if soft else -1)
        weights = None if weights is None else weights.flatten()
    if not soft:
        targets = targets.long()
        for number in ignored:
            weights = _keep(weights, targets != number)
    return Scores("multiclass", scores, targets, weights, None)


def _read_labels(
    metric: str, output: Any, scores: Tensor, targets: Tensor, task: Task, ignore: int, are_probabilities: bool | None
) -> Scores:
    if scores.ndim == 1:
        scores = scores[:, None]
    if scores.shape[1] == 1 and targets.shape == scores.shape[:1] + scores.shape[2:]:
        targets = targets[:, None]
    if targets.shape != scores.shape or (task == "binary" and scores.shape[1] != 1):
        raise _wrong_shapes(metric, scores, targets)
    if scores.ndim > 2:
        scores, targets = scores.movedim(1, -1), targets.movedim(1, -1)
    weights = read_weights(metric, output, scores.shape[:-1])
    scores, targets = scores.flatten(0, -2), targets.flatten(0, -2)
    if weights is not None:
        weights = weights.flatten()[:, None].expand(scores.shape)
    if targets.dtype != torch.bool:
        weights = _keep(weights, targets != ignore)
    return Scores(task, scores, targets > 0.5, weights, are_probabilities)


def _keep(weights: Tensor | None, counted: Tensor) -> Tensor:
    """The weights, 0 where something does not count."""
    if weights is None:
        return counted
    return weights & counted if weights.dtype == torch.bool else weights.where(counted, 0)


def _wrong_shapes(metric: str, scores: Tensor, targets: Tensor) -> InvalidArgument:
    return InvalidArgument(
        f"{metric}: expected scores [samples, classes, ...] and targets [samples, ...]; got scores "
        f"{list(scores.shape)} and targets {list(targets.shape)} (if the classes are the last dimension, return a "
        "SequenceOutput from train_step)"
    )


def _wrong_output(metric: str, needs: str, output: Any) -> WrongType:
    values = {name: getattr(output, name, None) for name in ("logits", "predictions", "targets")}
    found = ", ".join(f".{name} of type {type(each).__name__}" for name, each in values.items() if each is not None)
    result = output.result if isinstance(output, ForwardOutput) else output
    parts = f" (its parts are {', '.join(map(repr, named_parts(result)))})" if isinstance(output, ForwardOutput) else ""
    return WrongType(
        f"{metric} needs {needs}; {type(result).__name__}{parts} has {found or 'neither'}: return an output that has "
        "them from a step, or use metrics.of(fn)"
    )
