"""Precision, recall and F-scores."""

import math
from collections.abc import Hashable
from typing import Any

import torch

from stoker.errors import InvalidArgument
from stoker.metrics._hits import Average, add_hits, fresh_hits, score
from stoker.metrics._metric import Metric, State
from stoker.metrics._reading import Task, read_scores


class Precision(Metric):
    """Of what was said to be a class, the share that is: the mean over classes, over everything, or one a class.

    >>> from stoker.steps import MultiLabelOutput
    >>> logits, targets = torch.tensor([3.0, 1.0, -1.0, -2.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    >>> metric = Precision(name="precision")
    >>> state = metric.update(metric.init(torch.device("cpu")), MultiLabelOutput(torch.tensor(0.5), logits, targets))
    >>> metric.compute(state)
    0.5

    `average="macro"` is the mean over classes, `"micro"` counts all classes together, `"none"` gives a list. Binary
    tasks have one class, the yes. Shapes, `threshold`, `ignore` and `task` are those of `Accuracy`.
    Nothing said: 0. A class that neither was said nor occurs: 0, and no part of the mean of classes. Of several labels
    the mean is over all of them. Nothing counted: NaN, or an empty list.
    """

    average: Average = "macro"
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def default_name(self) -> str:
        return averaged("precision", self.average)

    @property
    def counts(self) -> Hashable:
        return _hits_of(self)

    def init(self, device: torch.device) -> State:
        return fresh_hits(device)

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return add_hits(state, scored, threshold=self.threshold)

    def compute(self, state: State) -> float | list[float]:
        return score(state, average=self.average, a=1, b=0)


class Recall(Metric):
    """Of what is of a class, the share that was found. Settings and special cases are those of `Precision`.

    >>> Recall("none").name, Recall("micro").name
    ('recall', 'recall_micro')
    """

    average: Average = "macro"
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def default_name(self) -> str:
        return averaged("recall", self.average)

    @property
    def counts(self) -> Hashable:
        return _hits_of(self)

    def init(self, device: torch.device) -> State:
        return fresh_hits(device)

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return add_hits(state, scored, threshold=self.threshold)

    def compute(self, state: State) -> float | list[float]:
        return score(state, average=self.average, a=0, b=1)


class FBeta(Metric):
    """Precision and recall in one: their harmonic mean, in which recall weighs `beta` times as much.

    >>> FBeta().name, FBeta(2, average="micro").name
    ('f1_macro', 'f2_micro')

    The other settings and the special cases are those of `Precision`.
    """

    beta: float = 1.0
    average: Average = "macro"
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def __post_init__(self) -> None:
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise InvalidArgument(
                f"FBeta: beta must be above 0 and finite, got {self.beta}; for the ends there are Precision and Recall"
            )
        super().__post_init__()

    def default_name(self) -> str:
        return averaged(f"f{self.beta:g}", self.average)

    @property
    def counts(self) -> Hashable:
        return _hits_of(self)

    def init(self, device: torch.device) -> State:
        return fresh_hits(device)

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return add_hits(state, scored, threshold=self.threshold)

    def compute(self, state: State) -> float | list[float]:
        squared = self.beta**2
        return score(state, average=self.average, a=1 / (1 + squared), b=squared / (1 + squared))


def _hits_of(metric: Precision | Recall | FBeta) -> Hashable:
    """What hits are counted by; a class of somebody's own may count otherwise."""
    own = type(metric) in (Precision, Recall, FBeta)
    return ("hits", metric.threshold, metric.ignore, metric.task) if own else None


def averaged(stem: str, average: Average) -> str:
    """A metric's name with how it is averaged: `recall_macro`; `recall` where each class has its own number."""
    return stem if average == "none" else f"{stem}_{average}"
