"""Hits and misses of each class: what precision, recall, F-scores, Dice and IoU are made of."""

from typing import Literal

import torch
from torch import Tensor

from stoker.metrics._metric import State
from stoker.metrics._reading import Scored
from stoker.metrics._sums import add, fresh, read, wide

Average = Literal["micro", "macro", "none"]


def fresh_hits(device: torch.device) -> State:
    """No hits and no misses yet, of classes whose number the first batch tells."""
    return {name: fresh(device) for name in ("hits", "chosen", "present", "count", "labels")}


def add_hits(state: State, scored: Scored, *, threshold: float) -> State:
    """Counts for each class (or label) how often it was right, how often chosen, and how often present."""
    scores, weights, dtype = scored.scores, scored.weights, wide(scored.scores.device)
    if weights is None:
        weights = torch.ones(len(scores), dtype=dtype, device=scores.device)
    weights = weights.to(dtype)
    if scored.task == "multiclass":
        classes = scores.shape[1]
        # What doesn't count has the weight 0, and may be a number that is no class.
        truth = scored.classes().where(weights != 0, 0)
        choice = scores.argmax(1)
        chosen = tally(choice, weights, classes)
        present = tally(truth, weights, classes)
        hits = tally(truth, weights * (choice == truth), classes)
    else:
        choice, truth, column = scores > threshold, scored.targets, weights[:, None]
        chosen, present, hits = ((flag * column).sum(0) for flag in (choice, truth, choice & truth))
    amounts: dict[str, Tensor | float] = {"hits": hits, "chosen": chosen, "present": present, "count": weights.sum()}
    amounts["labels"] = int(scored.task == "multilabel")  # above 0 says what the classes are
    return {name: add(state[name], amount) for name, amount in amounts.items()}


def tally(numbers: Tensor, weights: Tensor, classes: int) -> Tensor:
    """The sum of the weights of each number: `bincount`, which would wait for the device."""
    return torch.zeros(classes, dtype=weights.dtype, device=weights.device).index_add(0, numbers, weights)


def score(state: State, *, average: Average, a: float, b: float, skip: int | None = None) -> float | list[float]:
    """`hits / (hits + a * false alarms + b * misses)` of each class, or on average.

    A class that was never chosen and never present has the value 0 and, unless it is a label, no part in the mean.
    """
    hits, chosen, present = (read(state[name]) for name in ("hits", "chosen", "present"))
    if read(state["count"]) == 0:
        return [] if average == "none" else float("nan")
    if skip is not None:
        kept = torch.arange(len(hits)) != skip
        hits, chosen, present = hits[kept], chosen[kept], present[kept]
    if average == "micro":
        hits, chosen, present = hits.sum(), chosen.sum(), present.sum()
    below = hits + a * (chosen - hits) + b * (present - hits)
    values = torch.where(below > 0, hits / below, 0.0)
    if average == "none":
        return values.tolist()
    if average == "micro":
        return values.item()
    occurs = (chosen > 0) | (present > 0) | (read(state["labels"]) > 0)
    return values[occurs].mean().item() if occurs.any() else 0.0
