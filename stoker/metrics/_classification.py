"""Metrics of classes and labels: accuracy, precision, recall, F-scores, Dice, IoU and the confusion matrix."""

import math
from collections.abc import Hashable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from stoker.errors import InvalidArgument
from stoker.metrics._metric import Metric, State
from stoker.metrics._outputs import Scores, Task, read_scores
from stoker.metrics._states import (
    add,
    ratio,
    read,
    weighted_bincount,
    weighted_sum,
    widest_float,
    zero_count,
    zero_sum,
)

Average = Literal["micro", "macro", "none"]


# --- fractions of correct predictions


class Accuracy(Metric):
    """The fraction of samples, or of positions in them, whose true class has the largest score.

    >>> from stoker.steps import ClassificationOutput
    >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> metric = Accuracy()
    >>> state = metric.init(torch.device("cpu"))
    >>> state = metric.update(state, ClassificationOutput(torch.tensor(0.5), logits, targets))
    >>> round(metric.compute(state), 3)
    0.667

    The model's scores are used as they are. With classes they are [samples, classes, ...], and targets are class
    numbers or probabilities; in a `SequenceOutput` the classes are the last dimension. One score per sample means yes
    if it is above `threshold` (0 for logits; use 0.5 for probabilities). With several labels per sample it is the
    fraction of correct labels. Targets equal to `ignore` do not count, as in `cross_entropy`. Set `task` if the
    shapes are ambiguous.
    """

    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def init(self, device: torch.device) -> State:
        return {"right": zero_count(device), "count": zero_count(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        if scored.task == "multiclass":
            right = scored.scores.argmax(1) == scored.classes()
        else:
            right = (scored.scores > self.threshold) == scored.targets
        return _count_right(state, scored, right)

    def compute(self, state: State) -> float:
        return ratio(state["right"], state["count"])


class Hamming(Accuracy):
    """The fraction of wrong labels (Hamming loss), which is 1 - `Accuracy`; with one label per sample the error rate.

    >>> Hamming().direction
    'min'
    """

    direction = "min"

    def compute(self, state: State) -> float:
        return 1 - super().compute(state)


class TopKAccuracy(Metric):
    """The fraction of samples whose class is among the `k` with the largest scores.

    >>> TopKAccuracy(5).name
    'top5_accuracy'

    torch's `topk` chooses among equal scores, as in torchmetrics. Only for classes, in the shapes of `Accuracy`.
    """

    k: int
    ignore: int = -100

    direction = "max"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidArgument(f"TopKAccuracy: k must be at least 1, got {self.k}")
        super().__post_init__()

    def default_name(self) -> str:
        return f"top{self.k}_accuracy"

    def init(self, device: torch.device) -> State:
        return {"right": zero_count(device), "count": zero_count(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task="multiclass", ignore=self.ignore)
        classes = scored.scores.shape[1]
        if self.k > classes:
            raise InvalidArgument(f"{self.name}: k is {self.k}, but there are only {classes} classes")
        best = scored.scores.topk(self.k, dim=1).indices
        return _count_right(state, scored, (best == scored.classes()[:, None]).any(1))

    def compute(self, state: State) -> float:
        return ratio(state["right"], state["count"])


def _count_right(state: State, scored: Scores, right: Tensor) -> State:
    """Counts correct samples [n] or labels [n, labels]."""
    weights = scored.weights
    if weights is None:
        count: Tensor | float = right.numel()
    elif right.ndim == 2:
        weights = weights[:, None].expand_as(right)
        count = weighted_sum(torch.ones_like(right), weights)
    elif weights.dtype == torch.bool:
        count = weights.count_nonzero()
    else:
        count = weights.sum(dtype=widest_float(weights.device))
    return {"right": add(state["right"], weighted_sum(right, weights)), "count": add(state["count"], count)}


# --- scores per class


class _ClassCounts(Metric):
    """Base of scores computed from the hits and misses of each class: hits / (hits + a * false alarms + b * misses).

    A subclass has the fields `average`, `threshold`, `ignore` and `task`, and may have `background`.
    """

    stem: ClassVar[str] = ""
    a: ClassVar[float]
    b: ClassVar[float]

    direction = "max"

    def default_name(self) -> str:
        settings: Any = self
        return self.stem if settings.average == "none" else f"{self.stem}_{settings.average}"

    def init(self, device: torch.device) -> State:
        return {name: zero_sum(device) for name in ("hits", "chosen", "present", "count", "labels")}

    def update(self, state: State, output: Any) -> State:
        settings: Any = self
        scored = read_scores(self.name, output, task=settings.task, ignore=settings.ignore)
        weights = scored.float_weights()
        if scored.task == "multiclass":
            classes = scored.scores.shape[1]
            # A target with weight 0 may be a number that is not a class.
            truth, choice = scored.classes().where(weights != 0, 0), scored.scores.argmax(1)
            chosen = weighted_bincount(choice, weights, classes)
            present = weighted_bincount(truth, weights, classes)
            hits = weighted_bincount(truth, weights * (choice == truth), classes)
        else:
            choice, truth, column = scored.scores > settings.threshold, scored.targets, weights[:, None]
            chosen, present, hits = ((flag * column).sum(0) for flag in (choice, truth, choice & truth))
        return {
            "hits": add(state["hits"], hits),
            "chosen": add(state["chosen"], chosen),
            "present": add(state["present"], present),
            "count": add(state["count"], weights.sum()),
            "labels": add(state["labels"], int(scored.task == "multilabel")),  # above 0: the classes are labels
        }

    def compute(self, state: State) -> float | list[float]:
        settings: Any = self
        return self._score(state, settings.average, self.a, self.b, getattr(self, "background", None))

    def _score(
        self, state: State, average: Average, a: float, b: float, background: int | None = None
    ) -> float | list[float]:
        """A class that neither occurs nor is predicted scores 0; unless it is a label, the mean leaves it out."""
        hits, chosen, present = (read(state[name]) for name in ("hits", "chosen", "present"))
        if read(state["count"]) == 0:
            return [] if average == "none" else float("nan")
        if background is not None:
            foreground = torch.arange(len(hits)) != background
            hits, chosen, present = hits[foreground], chosen[foreground], present[foreground]
        if average == "micro":
            hits, chosen, present = hits.sum(), chosen.sum(), present.sum()
        denominator = hits + a * (chosen - hits) + b * (present - hits)
        values = torch.where(denominator > 0, hits / denominator, 0.0)
        if average == "none":
            return values.tolist()
        if average == "micro":
            return values.item()
        occurs = (chosen > 0) | (present > 0) | (read(state["labels"]) > 0)
        return values[occurs].mean().item() if occurs.any() else 0.0

    @property
    def counts(self) -> Hashable:
        """Shared by `Precision`, `Recall` and `FBeta`; a subclass of them may count differently."""
        if type(self) not in (Precision, Recall, FBeta):
            return None
        settings: Any = self
        return ("hits", settings.threshold, settings.ignore, settings.task)


class Precision(_ClassCounts):
    """The fraction of predictions of a class that are correct: per class, averaged over classes, or over everything.

    >>> from stoker.steps import MultiLabelOutput
    >>> logits, targets = torch.tensor([3.0, 1.0, -1.0, -2.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    >>> metric = Precision(name="precision")
    >>> state = metric.update(metric.init(torch.device("cpu")), MultiLabelOutput(torch.tensor(0.5), logits, targets))
    >>> metric.compute(state)
    0.5

    `average="macro"` is the mean over classes, `"micro"` counts all classes together, `"none"` gives a list. A binary
    task has one class, the yes. Shapes, `threshold`, `ignore` and `task` are those of `Accuracy`.
    A class that is never predicted scores 0; if it does not occur either, it is left out of the mean over classes
    (but not over labels). Nothing counted: NaN, or an empty list.
    """

    average: Average = "macro"
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    stem, a, b = "precision", 1, 0


class Recall(_ClassCounts):
    """The fraction of a class that is found. Settings and special cases are those of `Precision`.

    >>> Recall("none").name, Recall("micro").name
    ('recall', 'recall_micro')
    """

    average: Average = "macro"
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    stem, a, b = "recall", 0, 1


class FBeta(_ClassCounts):
    """The harmonic mean of precision and recall, with recall weighted `beta` times as much.

    >>> FBeta().name, FBeta(2, average="micro").name
    ('f1_macro', 'f2_micro')

    The other settings and the special cases are those of `Precision`.
    """

    beta: float = 1.0
    average: Average = "macro"
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    def __post_init__(self) -> None:
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise InvalidArgument(
                f"FBeta: beta must be above 0 and finite, got {self.beta}; its limits are Precision and Recall"
            )
        super().__post_init__()

    def default_name(self) -> str:
        return f"f{self.beta:g}" if self.average == "none" else f"f{self.beta:g}_{self.average}"

    def compute(self, state: State) -> float | list[float]:
        squared = self.beta**2
        return self._score(state, self.average, 1 / (1 + squared), squared / (1 + squared))


class Dice(_ClassCounts):
    """Twice the overlap of prediction and truth divided by the sum of both, over all pixels.

    >>> Dice().name, Dice("none", background=0).name
    ('dice_macro', 'dice')

    Scores are [samples, classes, ...], targets [samples, ...]; settings and special cases are those of `Precision`.
    The class `background` is left out. This is the F1 of the pixels: counts are added over images and batches, so a
    small image counts less than a large one.
    """

    average: Average = "macro"
    background: int | None = None
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    stem, a, b = "dice", 0.5, 0.5


class IoU(_ClassCounts):
    """The overlap of prediction and truth divided by their union (Jaccard index), over all pixels.

    >>> IoU().name
    'iou_macro'

    Settings and special cases are those of `Dice`.
    """

    average: Average = "macro"
    background: int | None = None
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    stem, a, b = "iou", 1, 1


class ConfusionMatrix(Metric):
    """How often each class (row) was predicted as each class (column), as nested lists.

    >>> from stoker.steps import ClassificationOutput
    >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> metric = ConfusionMatrix()
    >>> state = metric.init(torch.device("cpu"))
    >>> metric.compute(metric.update(state, ClassificationOutput(torch.tensor(0.5), logits, targets)))
    [[1.0, 0.0], [1.0, 1.0]]

    A binary task has the classes no and yes; several labels give one such matrix per label. Shapes, `threshold`,
    `ignore` and `task` are those of `Accuracy`. Nothing counted: an empty list.
    """

    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    def default_name(self) -> str:
        return "confusion"

    def init(self, device: torch.device) -> State:
        return {"counts": zero_sum(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        scores, weights = scored.scores, scored.float_weights()
        width = scores.shape[1]
        if scored.task == "multiclass":
            truth = scored.classes().where(weights != 0, 0)  # a target with weight 0 may be no class
            cell = truth * width + scores.argmax(1)
            counts = weighted_bincount(cell, weights, width * width).view(width, width)
        else:
            cell = scored.targets * 2 + (scores > self.threshold) + 4 * torch.arange(width, device=scores.device)
            expanded = weights[:, None].expand(-1, width).flatten()
            counts = weighted_bincount(cell.flatten(), expanded, 4 * width).view(width, 2, 2)
            counts = counts[0] if scored.task == "binary" else counts
        return {"counts": add(state["counts"], counts)}

    def compute(self, state: State) -> list[Any]:
        counts = read(state["counts"])
        return counts.tolist() if counts.ndim else []
