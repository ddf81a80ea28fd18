"""How well scores rank the samples: the areas under the ROC and the precision-recall curve."""

import math
from typing import Any

import torch
from torch import Tensor

from stoker.errors import InvalidArgument
from stoker.metrics._metric import Metric, State
from stoker.metrics._outputs import Task, read_scores
from stoker.metrics._states import add, append_rows, merge_rows, read, read_rows, weighted_bincount, zero_sum


class _Ranking(Metric):
    """Base of areas under a curve; a subclass computes the area of one class."""

    bins: int | None = None
    probabilities: bool = False
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def __post_init__(self) -> None:
        if self.bins is not None and self.bins < 2:
            raise InvalidArgument(f"bins must be at least 2, got {self.bins}; omit it for exact areas")
        super().__post_init__()

    @property
    def static(self) -> bool:
        """Only with `bins`: without, every score is stored."""
        return self.bins is not None

    def init(self, device: torch.device) -> State:
        return {} if self.bins is None else {"yes": zero_sum(device), "no": zero_sum(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        scores, targets = scored.scores, scored.targets if scored.targets.dtype == torch.bool else scored.classes()
        weights = scored.float_weights()
        if self.bins is None:  # as they are: logits rank like their probabilities, without ties near 0 and 1
            return append_rows(state, {"scores": scores, "targets": targets, "weights": weights})
        if not self.probabilities and not scored.are_probabilities:
            precise = scores if scores.dtype == torch.float64 else scores.float()
            scores = precise.softmax(1) if targets.ndim == 1 else precise.sigmoid()
        columns, numbers = scores.shape[1], torch.arange(scores.shape[1], device=scores.device)
        if targets.ndim == 1:
            targets, weights = targets[:, None] == numbers, weights[:, None]
        cell = (scores.nan_to_num() * self.bins).long().clamp(0, self.bins - 1) + self.bins * numbers
        weights = torch.where(scores.isnan() & (weights != 0), math.nan, weights)
        new: State = {}
        for name, flag in (("yes", targets), ("no", ~targets)):
            counts = weighted_bincount(cell.flatten(), weights.where(flag, 0).flatten(), columns * self.bins)
            new[name] = add(state[name], counts.view(columns, self.bins))
        return new

    def merge(self, a: State, b: State) -> State:
        return merge_rows(a, b) if self.bins is None else super().merge(a, b)

    def compute(self, state: State) -> float:
        masses = self._masses(state)
        if any(mass.isnan().any() for pair in masses for mass in pair):
            return math.nan
        areas = torch.tensor([self._area(yes, no) for yes, no in masses], dtype=torch.float64)
        return areas.nanmean().item() if len(areas) else math.nan

    def _masses(self, state: State) -> list[tuple[Tensor, Tensor]]:
        """For each class or label the weight of yes and of no at each distinct score, largest score first.

        A weight is NaN if a score that counts is NaN.
        """
        if self.bins is not None:
            yes, no = read(state["yes"]), read(state["no"])
            return [(a.flip(0), b.flip(0)) for a, b in zip(yes, no, strict=True)] if yes.ndim else []
        rows = read_rows(state)
        if not rows:
            return []
        scores, targets, weights = rows["scores"].double(), rows["targets"], rows["weights"].double()
        if targets.ndim == 1:
            tolerance = 4 * scores.shape[1] * torch.finfo(rows["scores"].dtype).eps
            are_distributions = (scores >= 0).all() and ((scores.sum(1) - 1).abs() <= tolerance).all()
            scores = scores if self.probabilities or are_distributions else scores.softmax(1)
            weights = weights[:, None]
        weights = torch.where(scores.isnan() & (weights != 0), math.nan, weights)
        result: list[tuple[Tensor, Tensor]] = []
        for column, (column_scores, weight) in enumerate(zip(scores.T, weights.T, strict=True)):
            yes = targets == column if targets.ndim == 1 else targets[:, column]
            distinct, position = column_scores.unique(return_inverse=True)
            masses = [weighted_bincount(position, weight.where(flag, 0), len(distinct)) for flag in (yes, ~yes)]
            result.append((masses[0].flip(0), masses[1].flip(0)))
        return result

    def _area(self, yes: Tensor, no: Tensor) -> float:
        raise NotImplementedError


class AUROC(_Ranking):
    """The area under the ROC curve: the probability that a yes has a larger score than a no (ties count half).

    >>> from stoker.steps import MultiLabelOutput
    >>> logits, targets = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
    >>> metric = AUROC()
    >>> state = metric.update(metric.init(torch.device("cpu")), MultiLabelOutput(torch.tensor(0.5), logits, targets))
    >>> metric.compute(state)
    0.75

    Exact: every score is stored on its device until `compute`, which sorts them on the host. With `bins=n` only counts
    are stored, of probabilities rounded to n equal steps. Classes are compared one against the rest by their
    probabilities, labels one by one; the result is the mean. Probabilities are the softmax of the scores, unless the
    scores are probabilities already: set `probabilities`, which is needed with `bins` only. A class without a yes or
    without a no is left out; if none remains, or a score is NaN: NaN.
    """

    def _area(self, yes: Tensor, no: Tensor) -> float:
        above = yes.cumsum(0) - yes  # the yes with a larger score than each no
        return (no / no.sum() * ((above + yes / 2) / yes.sum())).sum().item()


class AveragePrecision(_Ranking):
    """The area under the precision-recall curve: the precision at each score, weighted by the recall that it adds.

    >>> AveragePrecision().name, AveragePrecision(bins=100).static
    ('average_precision', True)

    Everything else is as in `AUROC`. A class without a yes is left out of the mean; if none remains: NaN.
    """

    def _area(self, yes: Tensor, no: Tensor) -> float:
        found = yes.cumsum(0)
        precision = found / (found + no.cumsum(0)).clamp(min=torch.finfo(found.dtype).tiny)
        return ((precision * yes).sum() / yes.sum()).item()
