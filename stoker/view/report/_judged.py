"""A model judged on a data set: which classes it mistakes, how sure it is, and the samples that it gets most wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker.errors import InvalidArgument
from stoker.view.report._calibration import Calibration, calibrated
from stoker.view.report._confusion import names_of

Task = Literal["multiclass", "binary", "regression"]


class Sample(NamedTuple):
    """A sample that a model got wrong."""

    place: int  # in the data set, from 0
    loss: float
    target: str
    answer: str
    value: np.ndarray | None = None  # the sample itself, where it is at hand


@dataclass(frozen=True)
class Judged:
    """What a data set says of a model; a report shows it."""

    task: Task
    count: int  # samples
    loss: float  # their mean
    labels: Sequence[str]  # of the classes; empty for a regression
    confusion: np.ndarray | None  # [classes, classes], rows are the truth
    calibration: Calibration | None
    worst: Sequence[Sample]  # the highest loss first

    def with_inputs(self, inputs: Any) -> "Judged":
        """The same with the worst samples' own values; `inputs` gives one for each of their places."""
        return replace(self, worst=[each._replace(value=np.asarray(inputs[each.place])) for each in self.worst])


def judged(
    scores: Any,
    targets: Any,
    *,
    inputs: Any = None,
    labels: Sequence[str] | None = None,
    task: Task | None = None,
    worst: int = 12,
) -> Judged:
    """Judges a model's answers to a data set by its targets.

    >>> found = judged([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]], [0, 1, 1], labels=["cat", "dog"])
    >>> found.confusion.tolist(), found.worst[0].place, found.worst[0].answer
    ([[1.0, 0.0], [1.0, 1.0]], 2, 'cat, 73.1 %')

    `scores` are [samples, classes] with the classes' numbers as targets (below 0: left out), or one number a sample
    with targets 0 and 1 (`task="binary"`, guessed from them), or anything in the shape of the targets
    (`task="regression"`). Scores may be logits or probabilities. The loss is the cross entropy, or the squared error.
    """
    answers, truth = np.asarray(scores, dtype=np.float64), np.asarray(targets)
    kind = task or _guess(answers, truth)
    if kind == "regression":
        found = _numbers(answers, truth, worst)
    else:
        if kind == "binary":
            answers = _no_and_yes(answers.reshape(len(answers), -1), truth)
        found = _classes(kind, answers, truth.reshape(-1).astype(np.int64), labels, worst)
    return found if inputs is None else found.with_inputs(inputs)


def _classes(kind: Task, answers: np.ndarray, truth: np.ndarray, labels: Sequence[str] | None, worst: int) -> Judged:
    many = answers.shape[1]
    names = names_of(labels, many)
    if (past := truth[truth >= many]).size:
        raise InvalidArgument(
            f"judged: a target is class {past[0]}, and the scores are of {many} classes, 0 to {many - 1}"
        )
    counted = np.flatnonzero(truth >= 0)
    if not counted.size:
        raise InvalidArgument("judged: no sample has a target, so there is nothing to judge")
    chances, truth = probabilities(answers[counted]), truth[counted]
    chosen = chances.argmax(1)
    with np.errstate(divide="ignore"):
        losses = -np.log(chances[np.arange(len(truth)), truth])
    counts = np.bincount(truth * many + chosen, minlength=many * many).reshape(many, many).astype(np.float64)
    finite = np.isfinite(chances).all(1)
    sure = chances if kind == "multiclass" else chances[:, 1]
    samples = [
        Sample(
            int(counted[place]),
            float(losses[place]),
            names[truth[place]],
            f"{names[chosen[place]]}, {100 * chances[place, chosen[place]]:.1f} %",
        )
        for place in _highest(losses, worst)
    ]
    kept = calibrated(sure[finite], truth[finite]) if finite.any() else None
    return Judged(kind, len(truth), float(losses.mean()), names, counts, kept, samples)


def _numbers(answers: np.ndarray, truth: np.ndarray, worst: int) -> Judged:
    if answers.shape != truth.shape and answers.size == truth.size:  # [samples, 1] and [samples]
        answers = answers.reshape(truth.shape)
    if answers.shape != truth.shape or not answers.size:
        raise InvalidArgument(
            f"judged: expected answers and targets of one shape; got {list(answers.shape)} and {list(truth.shape)}"
        )
    losses = ((answers - truth) ** 2).reshape(len(truth), -1).mean(1)
    samples = [
        Sample(place, float(losses[place]), few(truth[place]), few(answers[place]))
        for place in map(int, _highest(losses, worst))
    ]
    return Judged("regression", len(truth), float(losses.mean()), [], None, None, samples)


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Scores of classes, [samples, classes], by softmax; what are probabilities already stay so."""
    if _sums_to_one(scores):
        return scores
    with np.errstate(invalid="ignore"):  # an infinite score has no probability: NaN
        powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def few(value: np.ndarray, *, most: int = 6) -> str:
    """The first numbers of an array, in words.

    >>> few(np.arange(9.0)), few(np.float64(0.5))
    ('0, 1, 2, 3, 4, 5, …', '0.5')
    """
    flat = np.asarray(value).reshape(-1)
    told = [f"{each:.4g}" if np.issubdtype(flat.dtype, np.number) else str(each) for each in flat[:most].tolist()]
    return ", ".join([*told, "…"] if flat.size > most else told)


def _guess(answers: np.ndarray, truth: np.ndarray) -> Task:
    if answers.ndim == 2 and answers.shape[1] > 1 and truth.shape == answers.shape[:1]:
        if np.issubdtype(truth.dtype, np.integer) or truth.dtype == bool:
            return "multiclass"
    elif answers.ndim and answers.size == truth.size == len(answers) and np.isin(truth, (0, 1)).all():
        return "binary"
    if answers.size == truth.size:
        return "regression"
    raise InvalidArgument(
        "judged: expected scores [samples, classes] with the numbers of classes as targets, or answers in the shape of "
        f"the targets; got {list(answers.shape)} and targets {list(truth.shape)} of {truth.dtype}"
    )


def _no_and_yes(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """One score a sample, [samples, 1], as the scores of two classes."""
    if scores.shape[1] != 1 or scores.size != truth.size:
        raise InvalidArgument(
            "judged: a binary task has one score and one target a sample; "
            f"got scores {list(scores.shape)} and targets {list(truth.shape)}"
        )
    chance = (scores >= 0).all() and (scores <= 1).all()
    return np.hstack([1 - scores if chance else np.zeros_like(scores), scores])


def _sums_to_one(scores: np.ndarray) -> bool:
    return bool((scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=1e-4))


def _highest(losses: np.ndarray, most: int) -> np.ndarray:
    """The places of the highest losses; NaN is worse than any."""
    return np.argsort(-np.nan_to_num(losses, nan=np.inf), kind="stable")[:most]
