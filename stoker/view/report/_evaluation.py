"""A model's predictions compared with the targets: confusion matrix, calibration, and the worst samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker.errors import InvalidArgument

Task = Literal["multiclass", "binary", "regression"]


@dataclass(frozen=True)
class Calibration:
    """A model's confidence and accuracy in bins of equal width, and the distance between them."""

    confidence: np.ndarray  # [bins] mean confidence; NaN for an empty bin
    accuracy: np.ndarray  # [bins] share of correct predictions; NaN for an empty bin
    count: np.ndarray  # [bins] samples
    error: float  # expected calibration error: mean of |confidence - accuracy| over the samples


class Sample(NamedTuple):
    """A sample with a high loss."""

    place: int  # index in the data set
    loss: float
    target: str
    answer: str  # the prediction, with its probability
    value: np.ndarray | None = None  # the sample itself, if available


@dataclass(frozen=True)
class Evaluation:
    """What a data set says about a model; `report_html` and `plot` show it."""

    task: Task
    count: int  # samples
    loss: float  # mean over the samples
    labels: Sequence[str]  # of the classes; empty for a regression
    confusion: np.ndarray | None  # [classes, classes], rows are the true classes
    calibration: Calibration | None
    worst: Sequence[Sample]  # highest loss first

    def with_inputs(self, inputs: Any) -> "Evaluation":
        """Adds the values of the worst samples; `inputs[place]` gives the sample at a place."""
        return replace(self, worst=[sample._replace(value=np.asarray(inputs[sample.place])) for sample in self.worst])


def evaluate_predictions(
    scores: Any,
    targets: Any,
    *,
    inputs: Any = None,
    labels: Sequence[str] | None = None,
    task: Task | None = None,
    probabilities: bool | None = None,
    worst: int = 12,
) -> Evaluation:
    """Compares a model's predictions with the targets.

    >>> evaluation = evaluate_predictions([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]], [0, 1, 1], labels=["cat", "dog"])
    >>> evaluation.confusion.tolist(), evaluation.worst[0].place, evaluation.worst[0].answer
    ([[1.0, 0.0], [1.0, 1.0]], 2, 'cat, 73.1 %')

    `scores` are [samples, classes] with class numbers as targets (negative targets are ignored), one value per sample
    with targets 0 and 1 (`task="binary"`, the default for such targets), or values in the shape of the targets
    (`task="regression"`). Scores may be logits or probabilities; of one score per sample, `probabilities` says
    which, by default those that are all between 0 and 1. The loss is the cross entropy or the squared error.
    """
    scores, targets = np.asarray(scores, dtype=np.float64), np.asarray(targets)
    kind = task or _guess_task(scores, targets)
    if kind == "regression":
        result = _evaluate_regression(scores, targets, worst)
    else:
        if kind == "binary":
            scores = _two_class_scores(scores.reshape(len(scores), -1), targets, probabilities)
        result = _evaluate_classes(kind, scores, targets.reshape(-1).astype(np.int64), labels, worst)
    return result if inputs is None else result.with_inputs(inputs)


def measure_calibration(probabilities: Any, targets: Any, *, bins: int = 15) -> Calibration:
    """Compares predicted probabilities with how often the predictions are correct.

    >>> round(measure_calibration([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1]).error, 6)
    0.3

    `probabilities` are [samples, classes] with class numbers as targets (the likeliest class counts), or [samples] with
    targets 0 and 1.
    """
    given, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(targets)
    _check_calibration(given, truth, bins)
    confidence = given.max(1) if given.ndim == 2 else given
    correct = (given.argmax(1) == truth if given.ndim == 2 else truth).astype(np.float64)
    bin_of = np.clip(np.searchsorted(np.linspace(0, 1, bins + 1), confidence, side="right") - 1, 0, bins - 1)
    count = np.bincount(bin_of, minlength=bins)
    with np.errstate(invalid="ignore"):  # empty bins: 0 / 0
        confidence, accuracy = (np.bincount(bin_of, values, bins) / count for values in (confidence, correct))
    error = np.nansum(np.abs(confidence - accuracy) * count) / count.sum()
    return Calibration(confidence, accuracy, count, float(error))


def class_names(labels: Sequence[str] | None, classes: int) -> list[str]:
    """The labels, or the class numbers if there are none."""
    if labels is None:
        return [str(number) for number in range(classes)]
    if len(labels) != classes:
        raise InvalidArgument(f"{len(labels)} labels for {classes} classes; expected one label per class")
    return [str(label) for label in labels]


def row_shares(counts: np.ndarray) -> np.ndarray:
    """Each cell of a confusion matrix as a share of its row; 0 in an empty row."""
    totals = counts.sum(axis=1, keepdims=True)
    return np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)


def top_mistakes(counts: np.ndarray, *, most: int = 10) -> list[tuple[int, int, float]]:
    """The highest counts off the diagonal: (true class, predicted class, count)."""
    wrong = np.where(np.eye(len(counts), dtype=bool), 0, np.nan_to_num(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    cells = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [(int(row), int(column), float(wrong[row, column])) for row, column in cells if wrong[row, column] > 0]


def format_values(value: np.ndarray, *, most: int = 6) -> str:
    """The first values of an array.

    >>> format_values(np.arange(9.0)), format_values(np.float64(0.5))
    ('0, 1, 2, 3, 4, 5, …', '0.5')
    """
    flat = np.asarray(value).reshape(-1)
    texts = [f"{item:.4g}" if np.issubdtype(flat.dtype, np.number) else str(item) for item in flat[:most].tolist()]
    return ", ".join([*texts, "…"] if flat.size > most else texts)


def _guess_task(scores: np.ndarray, targets: np.ndarray) -> Task:
    if scores.ndim == 2 and scores.shape[1] > 1 and targets.shape == scores.shape[:1]:
        if np.issubdtype(targets.dtype, np.integer) or targets.dtype == bool:
            return "multiclass"
    elif scores.ndim and scores.size == targets.size == len(scores) and np.isin(targets, (0, 1)).all():
        return "binary"
    if scores.size == targets.size:
        return "regression"
    raise InvalidArgument(
        "evaluate_predictions: expected scores [samples, classes] with class numbers as targets, or predictions in the "
        f"shape of the targets; got scores {list(scores.shape)} and targets {list(targets.shape)} of {targets.dtype}"
    )


def _evaluate_classes(
    kind: Task, scores: np.ndarray, targets: np.ndarray, labels: Sequence[str] | None, worst: int
) -> Evaluation:
    classes = scores.shape[1]
    names = class_names(labels, classes)
    if (too_large := targets[targets >= classes]).size:
        raise InvalidArgument(
            f"evaluate_predictions: a target is class {too_large[0]}, but the scores have {classes} classes "
            f"(0 to {classes - 1})"
        )
    counted = np.flatnonzero(targets >= 0)
    if not counted.size:
        raise InvalidArgument("evaluate_predictions: every target is negative (ignored); expected at least one class")
    probabilities, targets = _probabilities(scores[counted]), targets[counted]
    predicted = probabilities.argmax(1)
    with np.errstate(divide="ignore"):  # log(0) is the infinite loss of an impossible class
        losses = -np.log(probabilities[np.arange(len(targets)), targets])
    counts = np.bincount(targets * classes + predicted, minlength=classes**2).reshape(classes, classes)
    samples = [
        Sample(
            int(counted[at]),
            float(losses[at]),
            names[targets[at]],
            f"{names[predicted[at]]}, {100 * probabilities[at, predicted[at]]:.1f} %",
        )
        for at in _highest(losses, worst)
    ]
    finite = np.isfinite(probabilities).all(1)
    confidence = probabilities if kind == "multiclass" else probabilities[:, 1]
    calibration = measure_calibration(confidence[finite], targets[finite]) if finite.any() else None
    loss = float(losses.mean())
    return Evaluation(kind, len(targets), loss, names, counts.astype(np.float64), calibration, samples)


def _evaluate_regression(predictions: np.ndarray, targets: np.ndarray, worst: int) -> Evaluation:
    if predictions.shape != targets.shape and predictions.size == targets.size:  # [samples, 1] and [samples]
        predictions = predictions.reshape(targets.shape)
    if predictions.shape != targets.shape or not predictions.size:
        raise InvalidArgument(
            "evaluate_predictions: expected predictions and targets of the same shape; "
            f"got {list(predictions.shape)} and {list(targets.shape)}"
        )
    losses = ((predictions - targets) ** 2).reshape(len(targets), -1).mean(1)
    samples = [
        Sample(int(at), float(losses[at]), format_values(targets[at]), format_values(predictions[at]))
        for at in _highest(losses, worst)
    ]
    return Evaluation("regression", len(targets), float(losses.mean()), [], None, None, samples)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """The softmax of scores [samples, classes]; probabilities stay as they are."""
    if (scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=1e-4):
        return scores
    with np.errstate(invalid="ignore"):  # an infinite score gives NaN
        powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def _two_class_scores(scores: np.ndarray, targets: np.ndarray, probabilities: bool | None) -> np.ndarray:
    """One score per sample, [samples, 1], as scores of two classes."""
    if scores.shape[1] != 1 or scores.size != targets.size:
        raise InvalidArgument(
            "evaluate_predictions: a binary task needs one score and one target per sample; "
            f"got scores {list(scores.shape)} and targets {list(targets.shape)}"
        )
    if probabilities is None:
        probabilities = bool((scores >= 0).all() and (scores <= 1).all())
    return np.hstack([1 - scores if probabilities else np.zeros_like(scores), scores])


def _highest(losses: np.ndarray, most: int) -> np.ndarray:
    """The counted of the highest losses; NaN counts as the highest."""
    return np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")[:most]


def _check_calibration(probabilities: np.ndarray, targets: np.ndarray, bins: int) -> None:
    if bins < 1:
        raise InvalidArgument(f"calibration: bins is {bins}; expected at least 1")
    shape = probabilities.shape
    if probabilities.ndim not in (1, 2) or targets.shape != shape[:1] or not len(probabilities):
        raise InvalidArgument(
            "calibration: expected probabilities [samples, classes] or [samples], and one target per sample; got "
            f"{list(shape)} and {list(targets.shape)}"
        )
    low, high = probabilities.min(), probabilities.max()
    if not (low >= 0 and high <= 1 + 1e-6):  # also true for NaN
        raise InvalidArgument(
            f"calibration: expected probabilities between 0 and 1; got {low:.4g} to {high:.4g}. Apply softmax to "
            "logits of classes, or sigmoid to a single logit"
        )
