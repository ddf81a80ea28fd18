"""Which classes are taken for which."""

from typing import Any

import torch

from stoker.metrics._hits import tally
from stoker.metrics._metric import Metric, State
from stoker.metrics._reading import Task, read_scores
from stoker.metrics._sums import add, fresh, read, wide


class ConfusionMatrix(Metric):
    """How often each class (row) was taken for each class (column), as nested lists.

    >>> from stoker.steps import ClassificationOutput
    >>> logits, targets = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]]), torch.tensor([0, 1, 1])
    >>> metric = ConfusionMatrix()
    >>> state = metric.init(torch.device("cpu"))
    >>> metric.compute(metric.update(state, ClassificationOutput(torch.tensor(0.5), logits, targets)))
    [[1.0, 0.0], [1.0, 1.0]]

    Binary tasks give no and yes; several labels give one such matrix a label. Shapes, `threshold`, `ignore` and `task`
    are those of `Accuracy`. Nothing counted: an empty list.
    """

    threshold: float = 0.0
    ignore: int = -100
    task: Task | None = None

    def default_name(self) -> str:
        return "confusion"

    def init(self, device: torch.device) -> State:
        return {"counts": fresh(device)}

    def update(self, state: State, output: Any) -> State:
        scored = read_scores(self.name, output, task=self.task, ignore=self.ignore)
        scores, dtype = scored.scores, wide(scored.scores.device)
        weights = torch.ones(len(scores), device=scores.device) if scored.weights is None else scored.weights
        weights = weights.to(dtype)
        if scored.task == "multiclass":
            classes = scores.shape[1]
            truth = scored.classes().where(weights != 0, 0)  # what doesn't count may be a number that is no class
            counts = tally(truth * classes + scores.argmax(1), weights, classes * classes).view(classes, classes)
        else:
            labels = scores.shape[1]
            cell = scored.targets * 2 + (scores > self.threshold) + 4 * torch.arange(labels, device=scores.device)
            spread = weights[:, None].expand(-1, labels).flatten()
            counts = tally(cell.flatten(), spread, 4 * labels).view(labels, 2, 2)
            counts = counts[0] if scored.task == "binary" else counts
        return {"counts": add(state["counts"], counts)}

    def compute(self, state: State) -> list[Any]:
        counts = read(state["counts"])
        return counts.tolist() if counts.ndim else []
