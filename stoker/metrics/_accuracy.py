"""The share of samples, positions or labels that a model gets right."""

from typing import Any

import torch
from torch import Tensor

from stoker.errors import InvalidArgument
from stoker.metrics._metric import Metric, State
from stoker.metrics._reading import Scored, Task, read_scores
from stoker.metrics._sums import add, fresh_count, ratio, weighted, wide


class Accuracy(Metric):
    """The share of samples, or of the positions in them, for which the right class has the largest score.

    >>> from stoker.steps import ClassificationOutput
    >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> metric = Accuracy()
    >>> state = metric.init(torch.device("cpu"))
    >>> state = metric.update(state, ClassificationOutput(torch.tensor(0.5), logits, targets))
    >>> round(metric.compute(state), 3)
    0.667

    Scores are as the model gives them. Classes: [samples, classes, ...] with class numbers or probabilities as
    targets; in a `SequenceOutput` the classes stand last. One score a sample: yes where it is above `threshold` (0 for
    logits; 0.5 where the model gives probabilities). Several labels: the share of labels that are right. Targets equal
    to `ignore` count for nothing, as in `cross_entropy`. Where shapes can't tell what is meant, `task` says it.
    """

    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "max"

    def init(self, device: torch.device) -> State:
        return {"right": fresh_count(device), "count": fresh_count(device)}

    def update(self, state: State, output: Any) -> State:
        read = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return _count(state, read, _right(read, self.threshold))

    def compute(self, state: State) -> float:
        return ratio(state["right"], state["count"])


class Hamming(Metric):
    """The share of labels that a model gets wrong (Hamming loss); with one label a sample, the error rate.

    >>> Hamming().direction
    'min'

    Reads what `Accuracy` reads, and is 1 minus it.
    """

    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    direction = "min"

    def init(self, device: torch.device) -> State:
        return {"right": fresh_count(device), "count": fresh_count(device)}

    def update(self, state: State, output: Any) -> State:
        read = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        return _count(state, read, _right(read, self.threshold))

    def compute(self, state: State) -> float:
        return 1 - ratio(state["right"], state["count"])


class TopKAccuracy(Metric):
    """The share of samples whose class is among the `k` with the largest scores.

    >>> TopKAccuracy(5).name
    'top5_accuracy'

    Among equal scores torch's `topk` chooses, as in torchmetrics. For classes only; `Accuracy` has the shapes.
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
        return {"right": fresh_count(device), "count": fresh_count(device)}

    def update(self, state: State, output: Any) -> State:
        read = read_scores(self.name, output, task="multiclass", ignore=self.ignore)
        if self.k > read.scores.shape[1]:
            raise InvalidArgument(f"{self.name}: there are {read.scores.shape[1]} classes to choose {self.k} from")
        best = read.scores.topk(self.k, dim=1).indices
        return _count(state, read, (best == read.classes()[:, None]).any(1))

    def compute(self, state: State) -> float:
        return ratio(state["right"], state["count"])


def _right(read: Scored, threshold: float) -> Tensor:
    """Which samples [n] or labels [n, labels] are right."""
    if read.task == "multiclass":
        return read.scores.argmax(1) == read.classes()
    return (read.scores > threshold) == read.targets


def _count(state: State, read: Scored, right: Tensor) -> State:
    weights = read.weights
    if weights is None:
        count: Tensor | float = right.numel()
    elif right.ndim == 2:
        weights = weights[:, None].expand_as(right)
        count = weighted(torch.ones_like(right), weights)
    else:
        count = weights.count_nonzero() if weights.dtype == torch.bool else weights.sum(dtype=wide(weights.device))
    return {"right": add(state["right"], weighted(right, weights)), "count": add(state["count"], count)}
