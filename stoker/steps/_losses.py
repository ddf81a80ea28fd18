"""What a loss function is a mean or a sum over: needed for sample weights, exact means and accumulation."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stoker._dispatch import WatchingMode
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
    if _has_class_targets(loss, targets) and targets.shape == values.shape:
        divisors = _class_divisors(loss, targets, values.dtype)
    else:
        divisors = torch.ones_like(values)
    rows = values.shape[0]
    return values.reshape(rows, -1).sum(1), divisors.reshape(rows, -1).sum(1)


def weighted_mean(loss: LossFunction, predictions: Any, targets: Any, weight: Tensor) -> Tensor:
    """The loss with every sample counting `weight` times.

    >>> weighted_mean(nn.MSELoss(), torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1), torch.tensor([3.0, 1.0]))
    tensor(3.)
    """
    return weigh_samples(loss, predictions, targets, weight)[0]


def weigh_samples(loss: LossFunction, predictions: Any, targets: Any, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """The loss with weights, and what the mean of a cross-entropy then divides by; None for every other loss."""
    values, divisors = per_sample(loss, predictions, targets)
    if weight.shape != values.shape:
        raise InvalidArgument(f"expected one weight for each of {len(values)} samples, got shape {list(weight.shape)}")
    total = (divisors * weight).sum()
    return (values * weight).sum() / total, total if _has_class_targets(loss, targets) else None


def mixed_mean(
    loss: LossFunction, predictions: Any, targets: Any, other: Any, share: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """The loss in which sample i has its target with `share[i]`, and the other one with `1 - share[i]`; and its count.

    The count is what the mean of a cross-entropy divides by, and None for a loss that is a mean over the samples.
    """
    values, divisors = per_sample(loss, predictions, targets)
    other_values, other_divisors = per_sample(loss, predictions, other)
    # [B] everywhere: a weight of shape [B, 1] would broadcast over all pairs of samples.
    for name, given in (("weight", share), ("sample_weight", weight)):
        if given is not None and given.shape != values.shape:
            raise InvalidArgument(
                f"mixed_loss takes a {name} with one number for each of the {len(values)} samples; "
                f"got shape {list(given.shape)}"
            )
    own, rest = share, 1 - share
    if weight is not None:
        own, rest = own * weight, rest * weight
    total = (divisors * own + other_divisors * rest).sum()
    mean = (values * own + other_values * rest).sum() / total
    return mean, total if _has_class_targets(loss, targets) else None


def check_total_weight(weight: Tensor) -> Tensor:
    """The sum of sample weights; an error if negative weights leave nothing to divide by, or NaN on a GPU.

    Weights that are all 0 are fine: such a batch does not count.
    """
    total = weight.sum(dtype=weight.dtype if weight.dtype == torch.float64 else torch.float32)
    if weight.device.type == "cpu" and not is_traced():
        if total <= 0 and bool(weight.any()):
            raise InvalidArgument(
                f"the sample weights of a batch add up to {total:.4g} (they are between {weight.min():.4g} and "
                f"{weight.max():.4g}), and the loss is divided by that sum: use weights of at least 0, or batches in "
                "which the positive ones prevail"
            )
        return total
    return torch.where((total <= 0) & weight.any(), float("nan"), total)  # which the finite check reports


def is_traced() -> bool:
    """Whether operations are recorded for a compiled program, so that no value can be read."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


class FirstCall(WatchingMode):
    """Watches the first call of a loss function; it changes no operation.

    `compares_all_pairs` is True if a result has a row and a column for each sample, as when predictions [n, 1] and
    targets [n] are subtracted; `communicates`, if processes exchange something.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self._samples, self.compares_all_pairs, self.communicates = samples, False, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, n = func(*args, **(kwargs or {})), self._samples
        if isinstance(result, Tensor) and n > 1 and result.shape == (n, n):
            self.compares_all_pairs = True
        if "c10d" in func.namespace:
            self.communicates = True
        return result


# --- losses without their reduction


def _reduction_parameter(loss: Any) -> inspect.Parameter | None:
    try:
        return inspect.signature(loss).parameters.get("reduction")
    except (TypeError, ValueError):  # a builtin without a signature
        return None


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
            f"{name_of(loss)} does not support sample weights: it needs a reduction argument with the default 'mean', "
            "like nn.CrossEntropyLoss and F.mse_loss"
        )
    return lambda predictions, targets: loss(predictions, targets, reduction="none")


def name_of(loss: Any) -> str:
    """The name of a loss function, for messages."""
    while isinstance(loss, partial):
        loss = loss.func
    return getattr(loss, "__name__", type(loss).__name__)


# --- cross-entropy


def _has_class_targets(loss: LossFunction, targets: Any) -> bool:
    return isinstance(targets, Tensor) and not targets.is_floating_point() and _class_settings(loss) is not None


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


def class_weight_of(loss: LossFunction | None) -> Tensor | None:
    """The class weights that a cross-entropy of torch has, which a callback may change."""
    settings = None if loss is None else _class_settings(loss)
    return None if settings is None else settings[1]


def _class_divisors(loss: LossFunction, targets: Tensor, dtype: torch.dtype) -> Tensor:
    ignore_index, weight = _class_settings(loss) or (-100, None)
    is_counted = targets != ignore_index
    return is_counted.to(dtype) if weight is None else weight[targets.where(is_counted, 0)] * is_counted
