"""A loss sample by sample, where samples weigh differently: what the loss would have averaged, before it does."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker.errors import InvalidArgument

LossFunction = Callable[..., Tensor]


def per_sample(loss: LossFunction, predictions: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """For each sample its share of the loss's sum, and of what that sum is divided by for the mean.

    >>> values, shares = per_sample(nn.MSELoss(), torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    >>> values.tolist(), shares.tolist()
    ([1.0, 9.0], [1.0, 1.0])

    Class weights and `ignore_index` count as `cross_entropy` counts them. The loss must be able to leave out its
    reduction: a module with a `reduction`, or a function that takes `reduction=`.
    """
    values = _unreduced(loss)(predictions, targets)
    if not values.dim():
        raise InvalidArgument(f"{type(loss).__name__} gives one number for the batch also with reduction='none'")
    shares = _shares(loss, values, targets)
    rows = values.shape[0]
    return values.reshape(rows, -1).sum(1), shares.reshape(rows, -1).sum(1)


def weighted_mean(loss: LossFunction, predictions: Any, targets: Any, weight: Tensor) -> Tensor:
    """The loss with every sample counting `weight` times.

    >>> weighted_mean(nn.MSELoss(), torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1), torch.tensor([3.0, 1.0]))
    tensor(3.)
    """
    values, shares = per_sample(loss, predictions, targets)
    if weight.shape != values.shape:
        raise InvalidArgument(f"there are {len(values)} samples and weights of shape {list(weight.shape)}")
    return (values * weight).sum() / (shares * weight).sum()


def is_sum(loss: LossFunction | None) -> bool:
    """Whether a loss adds its samples up, as its `reduction` says, and makes no mean of them.

    >>> is_sum(partial(F.mse_loss, reduction="sum")), is_sum(nn.MSELoss())
    (True, False)
    """
    while isinstance(loss, partial) and "reduction" not in loss.keywords:
        loss = loss.func
    if isinstance(loss, partial):
        return loss.keywords["reduction"] == "sum"
    if (said := getattr(loss, "reduction", None)) is not None:
        return said == "sum"
    asked = _reduction(loss)
    return asked is not None and asked.default == "sum"


def counted_by(loss: LossFunction, predictions: Any, targets: Any, weight: Tensor | None) -> Tensor | None:
    """What a cross-entropy divides by: targets that are not ignored, by the weight of their class and sample.

    >>> loss = nn.CrossEntropyLoss(ignore_index=0)
    >>> counted_by(loss, torch.zeros(3, 2), torch.tensor([0, 1, 1]), None)
    tensor(2.)

    None for every other loss, which is a mean over the samples.
    """
    if not isinstance(predictions, Tensor) or not _of_classes(loss, targets):
        return None
    shares = _class_shares(loss, targets, torch.float64 if predictions.dtype == torch.float64 else torch.float32)
    if weight is not None:
        shares = shares.reshape(len(weight), -1).sum(1) * weight
    return shares.sum()


def _unreduced(loss: LossFunction) -> LossFunction:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        if loss.reduction != "mean":
            raise InvalidArgument(f"sample weights need a loss with reduction='mean', got {loss.reduction!r}")
        plain = copy.copy(loss)  # shares weights with the user's own, which keeps its reduction
        object.__setattr__(plain, "reduction", "none")
        return plain
    reduction = _reduction(loss)
    if reduction is None or reduction.default != "mean":
        raise InvalidArgument(
            f"samples can't be weighed through {getattr(loss, '__name__', type(loss).__name__)}: it must be a mean "
            "over the batch that can be left out; use a loss with a reduction (nn.CrossEntropyLoss, F.mse_loss, …)"
        )
    return lambda predictions, targets: loss(predictions, targets, reduction="none")


def _reduction(loss: Any) -> inspect.Parameter | None:
    try:
        return inspect.signature(loss).parameters.get("reduction")
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _shares(loss: LossFunction, values: Tensor, targets: Any) -> Tensor:
    """What each value counts in the mean: 1, but for class weights and ignored targets."""
    if _of_classes(loss, targets) and targets.shape == values.shape:
        return _class_shares(loss, targets, values.dtype)
    return torch.ones_like(values)


def _of_classes(loss: LossFunction, targets: Any) -> bool:
    return _class_settings(loss) is not None and isinstance(targets, Tensor) and not targets.is_floating_point()


def _class_settings(loss: LossFunction) -> tuple[int, Tensor | None] | None:
    """The `ignore_index` and the class weights of a cross-entropy, a partial application of one included."""
    given: dict[str, Any] = {}
    while isinstance(loss, partial):
        given, loss = {**loss.keywords, **given}, loss.func
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.ignore_index, loss.weight
    if loss in (F.cross_entropy, F.nll_loss):
        return given.get("ignore_index", -100), given.get("weight")
    return None


def _class_shares(loss: LossFunction, targets: Tensor, dtype: torch.dtype) -> Tensor:
    ignored, weight = _class_settings(loss) or (-100, None)
    counted = targets != ignored
    return counted.to(dtype) if weight is None else weight[targets.where(counted, 0)] * counted
