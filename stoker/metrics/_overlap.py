"""How far predicted regions cover the true ones."""

from typing import Any

import torch

from stoker.metrics._hits import Average, add_hits, fresh_hits, score
from stoker.metrics._metric import Metric, State
from stoker.metrics._precision import averaged
from stoker.metrics._reading import Task, read_scores


class Dice(Metric):
    """Twice the overlap of what was predicted and what is, divided by the sum of both, over all pixels seen.

    >>> Dice().name, Dice("none", background=0).name
    ('dice_macro', 'dice')

    Scores are [samples, classes, ...], targets [samples, ...]; settings and special cases are those of `Precision`.
    The class `background` has no part. It is the F1 of the pixels: counts are added up over images and batches, so
    that a small image counts less than a large one.
    """

    average: Average = "macro"
    background: int | None = None
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def default_name(self) -> str:
        return averaged("dice", self.average)

    def init(self, device: torch.device) -> State:
        return fresh_hits(device)

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return add_hits(state, scored, threshold=self.threshold)

    def compute(self, state: State) -> float | list[float]:
        return score(state, average=self.average, a=0.5, b=0.5, skip=self.background)


class IoU(Metric):
    """The overlap of what was predicted and what is, divided by their union, over all pixels seen (Jaccard index).

    >>> IoU().name
    'iou_macro'

    Settings and special cases are those of `Dice`.
    """

    average: Average = "macro"
    background: int | None = None
    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def default_name(self) -> str:
        return averaged("iou", self.average)

    def init(self, device: torch.device) -> State:
        return fresh_hits(device)

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return add_hits(state, scored, threshold=self.threshold)

    def compute(self, state: State) -> float | list[float]:
        return score(state, average=self.average, a=1, b=1, skip=self.background)
