"""Metrics of classes and labels: accuracy, precision, recall, F-scores, Dice, IoU and the confusion matrix."""

import math
from collections.abc import Hashable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from stoker.errors import InvalidArgument
from stoker.metrics._metric import Metric, State
from stoker.metrics._outputs import Scores, Task, read_scores
from stoker.metrics._states import add, read, weighted_bincount, weighted_sum, widest_float, zero_count, zero_sum

Average = Literal["micro", "macro", "none"] | None  # None is "none", as in scikit-learn


class _Counts(Metric):
    """Base of metrics that count predicted classes and labels.

    Labels are counted in two ways, [2, ...], if it is not known whether the scores are logits or probabilities. They
    are probabilities if none of them is outside of 0 to 1, and that is known when all have been seen.
    """

    def init(self, device: torch.device) -> State:
        return {"nan": zero_count(device), "outside": zero_count(device)}

    def check_scores(
        self, state: State, scored: Scores, *, two_ways: bool = False, largest: Tensor | None = None
    ) -> State:
        """Counts the scores that are NaN and, if there are two ways to count, those that are not probabilities."""
        checked = {"nan": add(state["nan"], scored.count_nan(largest)), "outside": state["outside"]}
        if two_ways:
            checked["outside"] = add(state["outside"], scored.count_flags((scored.scores < 0) | (scored.scores > 1)))
        return checked

    def read_counts(self, state: State, name: str, *, dimensions: int) -> Tensor:
        """A count with so many dimensions: of two ways the right one; NaN if a score is NaN."""
        counts = read(state[name])
        if counts.ndim > dimensions:
            counts = counts[0 if read(state["outside"]) else -1]
        return counts * math.nan if read(state["nan"]) else counts


# --- fractions of correct predictions


class _Fraction(_Counts):
    """Base of fractions of correct predictions."""

    direction = "max"

    def init(self, device: torch.device) -> State:
        return {**super().init(device), "right": zero_count(device), "count": zero_count(device)}

    def count_right(self, state: State, scored: Scores, right: Tensor, largest: Tensor | None = None) -> State:
        """Counts correct samples [n], or labels [n, labels] or [2, n, labels]."""
        weights = scored.weights
        if weights is None:
            count: Tensor | float = right[0].numel() if right.ndim == 3 else right.numel()
        elif weights.dtype == torch.bool:
            count = weights.count_nonzero()
        else:
            count = weights.sum(dtype=widest_float(weights.device))
        if right.ndim == 3:
            amount = torch.stack([weighted_sum(way, weights) for way in right])
        else:
            amount = weighted_sum(right, weights)
        checked = self.check_scores(state, scored, two_ways=right.ndim == 3, largest=largest)
        return {**checked, "right": add(state["right"], amount), "count": add(state["count"], count)}

    def compute(self, state: State) -> float:
        return (self.read_counts(state, "right", dimensions=0) / read(state["count"])).item()


class Accuracy(_Fraction):
    """The fraction of samples, or of positions in them, whose true class has the largest score.

    >>> from stoker.steps import ClassificationOutput
    >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> metric = Accuracy()
    >>> state = metric.init(torch.device("cpu"))
    >>> state = metric.update(state, ClassificationOutput(torch.tensor(0.5), logits, targets))
    >>> round(metric.compute(state), 3)
    0.667

    The model's scores are used as they are. With classes they are [samples, classes, ...], and targets are class
    numbers or probabilities; in a `SequenceOutput` the classes are the last dimension. With several labels per sample
    it is the fraction of correct labels. Targets equal to `ignore` (or to the `ignore_index` of the loss given to
    `fit`) do not count. Set `task` if the shapes are ambiguous. A score that is NaN makes the value NaN.

    A label is predicted if its score is above `threshold`: by default 0 for logits, 0.5 for probabilities. Which of
    them the scores are is known from the loss of `fit` (`nn.BCELoss` takes probabilities, other losses of torch do
    not) or the name `logits` in an output; otherwise they are probabilities if all of them are between 0 and 1.
    """

    threshold: float | None = None
    ignore: int = -100
    task: Task | None = None

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        if scored.task == "multiclass":
            largest, choice = scored.scores.max(1)
            return self.count_right(state, scored, choice == scored.classes(), largest)
        return self.count_right(state, scored, scored.predicted_labels(self.threshold) == scored.targets)


class Hamming(Accuracy):
    """The fraction of wrong labels (Hamming loss), which is 1 - `Accuracy`; with one label per sample the error rate.

    >>> Hamming().direction
    'min'
    """

    direction = "min"

    def compute(self, state: State) -> float:
        return 1 - super().compute(state)


class TopKAccuracy(_Fraction):
    """The fraction of samples whose class is among the `k` with the largest scores.

    >>> TopKAccuracy(5).name
    'top5_accuracy'

    torch's `topk` chooses among equal scores, as in torchmetrics. Only for classes, in the shapes of `Accuracy`.
    """

    k: int
    ignore: int = -100

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InvalidArgument(f"TopKAccuracy: k must be at least 1, got {self.k}")
        super().__post_init__()

    def default_name(self) -> str:
        return f"top{self.k}_accuracy"

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task="multiclass", ignore=self.ignore)
        classes = scored.scores.shape[1]
        if self.k > classes:
            raise InvalidArgument(f"{self.name}: k is {self.k}, but there are only {classes} classes")
        best = scored.scores.topk(self.k, dim=1).indices
        return self.count_right(state, scored, (best == scored.classes()[:, None]).any(1))


# --- scores per class


class _ClassCounts(_Counts):
    """Base of scores computed from the hits and misses of each class: hits / (hits + a * false alarms + b * misses).

    A subclass has the fields `average`, `threshold`, `ignore` and `task`, and may have `background`.
    """

    stem: ClassVar[str] = ""
    a: ClassVar[float]
    b: ClassVar[float]

    direction = "max"

    def __post_init__(self) -> None:
        settings: Any = self
        if settings.average is None:
            object.__setattr__(self, "average", "none")
        super().__post_init__()

    def default_name(self) -> str:
        settings: Any = self
        return self.stem if settings.average == "none" else f"{self.stem}_{settings.average}"

    def init(self, device: torch.device) -> State:
        names = ("hits", "chosen", "present", "count", "labels")
        return {**super().init(device), **{name: zero_sum(device) for name in names}}

    def update(self, state: State, output: Any) -> State:
        settings: Any = self
        scored = read_scores(self.name, output, task=settings.task, ignore=settings.ignore)
        weights, truth = scored.float_weights(), scored.targets
        if scored.task == "multiclass":
            classes = scored.scores.shape[1]
            # A target with weight 0 may be a number that is not a class.
            choice, truth = scored.scores.argmax(1), scored.classes().where(weights != 0, 0)
            chosen = weighted_bincount(choice, weights, classes)
            present = weighted_bincount(truth, weights, classes)
            hits = weighted_bincount(truth, weights * (choice == truth), classes)
        else:
            choice = scored.predicted_labels(settings.threshold)
            chosen, present, hits = ((flag * weights).sum(-2) for flag in (choice, truth, choice & truth))
        return {
            **self.check_scores(state, scored, two_ways=choice.ndim == 3),
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
        hits, chosen, present = (self.read_counts(state, name, dimensions=1) for name in ("hits", "chosen", "present"))
        if read(state["count"]) == 0:
            return [] if average == "none" else math.nan
        if background is not None:
            foreground = torch.arange(len(hits)) != background
            hits, chosen, present = hits[foreground], chosen[foreground], present[foreground]
        if average == "micro":
            hits, chosen, present = hits.sum(), chosen.sum(), present.sum()
        denominator = hits + a * (chosen - hits) + b * (present - hits)
        values = torch.where(denominator == 0, 0.0, hits / denominator)
        if average == "none":
            return values.tolist()
        if average == "micro":
            return values.item()
        occurs = (chosen != 0) | (present != 0) | (read(state["labels"]) > 0)
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
    threshold: float | None = None
    ignore: int = -100
    task: Task | None = None

    stem, a, b = "precision", 1, 0


class Recall(_ClassCounts):
    """The fraction of a class that is found. Settings and special cases are those of `Precision`.

    >>> Recall("none").name, Recall("micro").name
    ('recall', 'recall_micro')
    """

    average: Average = "macro"
    threshold: float | None = None
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
    threshold: float | None = None
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
    threshold: float | None = None
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
    threshold: float | None = None
    ignore: int = -100
    task: Task | None = None

    stem, a, b = "iou", 1, 1


class ConfusionMatrix(_Counts):
    """How often each class (row) was predicted as each class (column), as nested lists.

    >>> from stoker.steps import ClassificationOutput
    >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> metric = ConfusionMatrix()
    >>> state = metric.init(torch.device("cpu"))
    >>> metric.compute(metric.update(state, ClassificationOutput(torch.tensor(0.5), logits, targets)))
    [[1.0, 0.0], [1.0, 1.0]]

    A binary task has the classes no and yes; several labels give one such matrix per label. Shapes, `threshold`,
    `ignore` and `task` are those of `Accuracy`. `labels` are the names of the classes, which pages, reports and plots
    show. Nothing counted: an empty list.
    """

    threshold: float | None = None
    ignore: int = -100
    task: Task | None = None
    labels: tuple[str, ...] = ()

    def default_name(self) -> str:
        return "confusion"

    def init(self, device: torch.device) -> State:
        return {**super().init(device), "counts": zero_sum(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        weights, width = scored.float_weights(), scored.scores.shape[1]
        self._check_labels(2 if scored.task == "binary" else width, scored.task)
        if scored.task == "multiclass":
            truth = scored.classes().where(weights != 0, 0)  # a target with weight 0 need not be a class
            counts = weighted_bincount(truth * width + scored.scores.argmax(1), weights, width * width)
            return {**self.check_scores(state, scored), "counts": add(state["counts"], counts.view(width, width))}
        choices = scored.predicted_labels(self.threshold)
        no_of_label = 4 * torch.arange(width, device=choices.device) + 2 * scored.targets  # each label has four cells
        cells = (no_of_label + choices).flatten(-2)
        ways = [weighted_bincount(way, weights.flatten(), 4 * width) for way in (cells if cells.ndim == 2 else [cells])]
        counts = torch.stack(ways).view(*choices.shape[:-2], width, 2, 2)
        checked = self.check_scores(state, scored, two_ways=choices.ndim == 3)
        return {**checked, "counts": add(state["counts"], counts)}

    def _check_labels(self, classes: int, task: Task) -> None:
        if self.labels and (task == "multilabel" or len(self.labels) != classes):
            expected = "none for a matrix per label" if task == "multilabel" else f"{classes}, one for each class"
            raise InvalidArgument(f"{type(self).__name__} got {len(self.labels)} labels; expected {expected}")

    def compute(self, state: State) -> list[Any]:
        counts = self.read_counts(state, "counts", dimensions=3)
        if counts.ndim == 0:
            return []
        return (counts[0] if counts.shape == (1, 2, 2) else counts).tolist()  # one label: a binary task
