"""How well scores order the samples: the areas under the ROC and the precision-recall curve."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stoker.errors import InvalidArgument
from stoker.metrics._hits import tally
from stoker.metrics._kept import keep, keep_all, kept
from stoker.metrics._metric import Metric, State
from stoker.metrics._reading import Scored, Task, read_scores
from stoker.metrics._sums import add, fresh, join, read, wide


class AUROC(Metric):
    """The area under the ROC curve: how likely a yes has a larger score than a no (ties count half).

    >>> from stoker.steps import MultiLabelOutput
    >>> logits, targets = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])
    >>> metric = AUROC()
    >>> state = metric.update(metric.init(torch.device("cpu")), MultiLabelOutput(torch.tensor(0.5), logits, targets))
    >>> metric.compute(state)
    0.75

    Exact: every score is kept on its device until `compute`, which sorts them on the host. With `bins=n` only counts
    are kept, of scores rounded to n equal steps of probability. Classes are judged one against the rest by their
    probabilities (the softmax of the scores, unless `probabilities` says they are that already), labels one by one;
    the result is the mean. A class of which there is no yes or no no has no part in it; where that leaves none: NaN.
    """

    bins: int | None = None
    probabilities: bool = False
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def __post_init__(self) -> None:
        _check_bins(self.bins)
        super().__post_init__()

    @property
    def static(self) -> bool:
        """Only with `bins`: what is kept grows."""
        return self.bins is not None

    def init(self, device: torch.device) -> State:
        return {} if self.bins is None else {"yes": fresh(device), "no": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return _see(state, scored, self.bins, self.probabilities)

    def merge(self, a: State, b: State) -> State:
        return keep_all(a, b) if self.bins is None else {name: join(each, b[name]) for name, each in a.items()}

    def compute(self, state: State) -> float:
        return _mean_area(_columns(state, self.bins), _roc_area)


class AveragePrecision(Metric):
    """The area under the precision-recall curve: precision at each score, weighed by the recall that it adds.

    >>> AveragePrecision().name, AveragePrecision(bins=100).static
    ('average_precision', True)

    Everything else is as in `AUROC`. A class of which there is no yes has no part in the mean; where that leaves
    none: NaN.
    """

    bins: int | None = None
    probabilities: bool = False
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def __post_init__(self) -> None:
        _check_bins(self.bins)
        super().__post_init__()

    @property
    def static(self) -> bool:
        """Only with `bins`: what is kept grows."""
        return self.bins is not None

    def init(self, device: torch.device) -> State:
        return {} if self.bins is None else {"yes": fresh(device), "no": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return _see(state, scored, self.bins, self.probabilities)

    def merge(self, a: State, b: State) -> State:
        return keep_all(a, b) if self.bins is None else {name: join(each, b[name]) for name, each in a.items()}

    def compute(self, state: State) -> float:
        return _mean_area(_columns(state, self.bins), _precision_area)


def _check_bins(bins: int | None) -> None:
    if bins is not None and bins < 2:
        raise InvalidArgument(f"bins must be at least 2, got {bins}; leave it out for exact areas")


def _see(state: State, scored: Scored, bins: int | None, probabilities: bool) -> State:
    scores, dtype = scored.scores, wide(scored.scores.device)
    weights = torch.ones(len(scores), device=scores.device) if scored.weights is None else scored.weights
    targets = scored.targets
    if scored.task == "multiclass":
        scores = scores if probabilities else scores.softmax(1)
        targets = scored.classes()
    elif bins is not None and not probabilities:
        scores = scores.sigmoid()
    if bins is None:  # a logit orders as its probability does, and has no ties at the ends
        return keep(state, {"scores": scores, "targets": targets, "weights": weights.to(dtype)})
    yes = targets if targets.ndim == 2 else targets[:, None] == torch.arange(scores.shape[1], device=scores.device)
    columns = scores.shape[1]
    step = (scores * bins).long().clamp(0, bins - 1) + bins * torch.arange(columns, device=scores.device)
    mass = weights.to(dtype)[:, None].expand_as(scores)
    counts = {
        name: tally(step.flatten(), mass.where(flag, 0).flatten(), columns * bins).view(columns, bins)
        for name, flag in (("yes", yes), ("no", ~yes))
    }
    return {name: add(state[name], counts[name]) for name in ("yes", "no")}


def _columns(state: State, bins: int | None) -> list[tuple[Tensor, Tensor]]:
    """For each class or label: how much yes and how much no there is at each score, the largest score first."""
    if bins is not None:
        yes, no = read(state["yes"]), read(state["no"])
        return [(a.flip(0), b.flip(0)) for a, b in zip(yes, no, strict=True)] if yes.ndim else []
    columns = kept(state)
    if not columns:
        return []
    found, weights = [], columns["weights"].double()
    for column, scores in enumerate(columns["scores"].T):
        yes = columns["targets"] == column if columns["targets"].ndim == 1 else columns["targets"][:, column]
        distinct, place = scores.unique(return_inverse=True)
        masses = (tally(place, weights * flag, len(distinct)).flip(0) for flag in (yes, ~yes))
        found.append(tuple(masses))
    return found


def _mean_area(columns: list[tuple[Tensor, Tensor]], area: Callable[[Tensor, Tensor], float]) -> float:
    areas = torch.tensor([area(yes, no) for yes, no in columns], dtype=torch.float64)
    return areas.nanmean().item() if len(areas) else float("nan")


def _roc_area(yes: Tensor, no: Tensor) -> float:
    above = yes.cumsum(0) - yes  # the yes with a larger score, which each no is compared with
    return ((no * (above + yes / 2)).sum() / (yes.sum() * no.sum())).item()


def _precision_area(yes: Tensor, no: Tensor) -> float:
    found = yes.cumsum(0)
    precision = found / (found + no.cumsum(0)).clamp(min=torch.finfo(found.dtype).tiny)
    return ((precision * yes).sum() / yes.sum()).item()
