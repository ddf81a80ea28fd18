"""The values of a loss for each sample, and what its mean divides by: needed for sample weights and exact means."""

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
    """For each sample its part of the loss's sum, and its part of the divisor that turns the sum into the mean.

    >>> values, divisors = per_sample(nn.MSELoss(), torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1))
    >>> values.tolist(), divisors.tolist()
    ([1.0, 9.0], [1.0, 1.0])

    Class weights and `ignore_index` count as in `cross_entropy`. The loss must support `reduction="none"`: a module
    with a `reduction`, or a function that takes `reduction=`.
    """
    values = _without_reduction(loss)(predictions, targets)
    if not values.dim():
        raise InvalidArgument(f"{type(loss).__name__} returns one number for the batch even with reduction='none'")
    divisors = _divisors(loss, values, targets)
    rows = values.shape[0]
    return values.reshape(rows, -1).sum(1), divisors.reshape(rows, -1).sum(1)


def weighted_mean(loss: LossFunction, predictions: Any, targets: Any, weight: Tensor) -> Tensor:
    """The loss with every sample counting `weight` times.

    >>> weighted_mean(nn.MSELoss(), torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1), torch.tensor([3.0, 1.0]))
    tensor(3.)
    """
    values, divisors = per_sample(loss, predictions, targets)
    if weight.shape != values.shape:
        raise InvalidArgument(f"expected one weight for each of {len(values)} samples, got shape {list(weight.shape)}")
    return (values * weight).sum() / (divisors * weight).sum()


def is_sum(loss: LossFunction | None) -> bool:
    """Whether a loss is a sum over samples, not a mean, by its `reduction`.

    >>> is_sum(partial(F.mse_loss, reduction="sum")), is_sum(nn.MSELoss())
    (True, False)
    """
    while isinstance(loss, partial) and "reduction" not in loss.keywords:
        loss = loss.func
    if isinstance(loss, partial):
        return loss.keywords["reduction"] == "sum"
    if (reduction := getattr(loss, "reduction", None)) is not None:
        return reduction == "sum"
    parameter = _reduction_parameter(loss)
    return parameter is not None and parameter.default == "sum"


def mean_divisor(loss: LossFunction, predictions: Any, targets: Any, weight: Tensor | None) -> Tensor | None:
    """What the mean of a cross-entropy divides by: the targets that are not ignored, times class and sample weights.

    >>> loss = nn.CrossEntropyLoss(ignore_index=0)
    >>> mean_divisor(loss, torch.zeros(3, 2), torch.tensor([0, 1, 1]), None)
    tensor(2.)

    None for every other loss, which is a mean over the samples.
    """
    if not isinstance(predictions, Tensor) or not _has_class_targets(loss, targets):
        return None
    divisors = _class_divisors(loss, targets, torch.float64 if predictions.dtype == torch.float64 else torch.float32)
    if weight is not None:
        divisors = divisors.reshape(len(weight), -1).sum(1) * weight
    return divisors.sum()


def _without_reduction(loss: LossFunction) -> LossFunction:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        if loss.reduction != "mean":
            raise InvalidArgument(f"sample weights need a loss with reduction='mean', got {loss.reduction!r}")
        plain = copy.copy(loss)  # shares class weights with the user's loss, which keeps its reduction
        object.__setattr__(plain, "reduction", "none")
        return plain
    parameter = _reduction_parameter(loss)
    if parameter is None or parameter.default != "mean":
        raise InvalidArgument(
            f"{getattr(loss, '__name__', type(loss).__name__)} does not support sample weights: it needs a reduction "
            "argument with the default 'mean', like nn.CrossEntropyLoss and F.mse_loss"
        )
    return lambda predictions, targets: loss(predictions, targets, reduction="none")


def _reduction_parameter(loss: Any) -> inspect.Parameter | None:
    try:
        return inspect.signature(loss).parameters.get("reduction")
    except (TypeError, ValueError):  # a builtin without a signature
        return None


def _divisors(loss: LossFunction, values: Tensor, targets: Any) -> Tensor:
    """What each value adds to the divisor of the mean: 1, except with class weights and ignored targets."""
    if _has_class_targets(loss, targets) and targets.shape == values.shape:
        return _class_divisors(loss, targets, values.dtype)
    return torch.ones_like(values)


def _has_class_targets(loss: LossFunction, targets: Any) -> bool:
    return _class_settings(loss) is not None and isinstance(targets, Tensor) and not targets.is_floating_point()


def _class_settings(loss: LossFunction) -> tuple[int, Tensor | None] | None:
    """The `ignore_index` and the class weights of a cross-entropy, also of a `functools.partial` of one."""
    keywords: dict[str, Any] = {}
    while isinstance(loss, partial):
        keywords, loss = {**loss.keywords, **keywords}, loss.func
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.ignore_index, loss.weight
    if loss in (F.cross_entropy, F.nll_loss):
        return keywords.get("ignore_index", -100), keywords.get("weight")
    return None


def _class_divisors(loss: LossFunction, targets: Tensor, dtype: torch.dtype) -> Tensor:
    ignore_index, weight = _class_settings(loss) or (-100, None)
    is_counted = targets != ignore_index
    return is_counted.to(dtype) if weight is None else weight[targets.where(is_counted, 0)] * is_counted
