"""What a loss function is a mean or a sum over: needed for sample weights, exact means and accumulation."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from stoker._dispatch import WatchingMode
from stoker.errors import InvalidArgument

LossFunction = Callable[..., Tensor]
Reduction = Literal["mean", "sum", "other"]

_REDUCTIONS: dict[Any, Reduction] = {1: "mean", 2: "sum"}  # as numbered by torch's operators
_SAME = ("neg", "clone", "detach", "alias", "view", "_unsafe_view", "squeeze", "unsqueeze", "_to_copy", "expand")


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
    values, divisors = per_sample(loss, predictions, targets)
    if weight.shape != values.shape:
        raise InvalidArgument(f"expected one weight for each of {len(values)} samples, got shape {list(weight.shape)}")
    return (values * weight).sum() / (divisors * weight).sum()


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


# --- the reduction of a loss


def declared_reduction(loss: LossFunction | None) -> Reduction | None:
    """The `reduction` that a loss has as an attribute, argument or default; None if it does not say.

    >>> declared_reduction(partial(F.mse_loss, reduction="sum")), declared_reduction(nn.MSELoss())
    ('sum', 'mean')
    """
    while isinstance(loss, partial) and "reduction" not in loss.keywords:
        loss = loss.func
    if isinstance(loss, partial):
        reduction = loss.keywords["reduction"]
    elif (reduction := getattr(loss, "reduction", None)) is None:
        parameter = _reduction_parameter(loss)
        reduction = None if parameter is None else parameter.default
    return reduction if reduction in (None, "mean", "sum") else "other"


def is_of_torch(loss: LossFunction) -> bool:
    """Whether a loss is one of torch's: a mean over the samples, unless it is a cross-entropy.

    >>> is_of_torch(nn.MSELoss()), is_of_torch(partial(F.l1_loss, reduction="sum")), is_of_torch(lambda p, t: p.mean())
    (True, True, False)
    """
    while isinstance(loss, partial):
        loss = loss.func
    return _class_settings(loss) is not None or str(getattr(loss, "__module__", "")).startswith("torch.")


class LossObserver(WatchingMode):
    """Watches the operations of one call of a loss function, to see whether it adds up over the samples.

    >>> x, observer = torch.ones(4, 2), LossObserver(4)
    >>> with observer:
    ...     loss = 0.5 * x.square().sum(1).sum()
    >>> observer.reduction_of(loss)
    'sum'

    `compares_all_pairs` is True if a result has a row and a column for each sample, as when predictions [n, 1] and
    targets [n] are subtracted. It changes no operation.
    """

    def __init__(self, samples: int) -> None:
        super().__init__()
        self._samples = samples
        self._reductions: Any = WeakTensorKeyDictionary()  # of tensors that were reduced over the samples
        self._rearranged: Any = WeakTensorKeyDictionary()  # tensors that hold the samples, but not as their rows
        self.compares_all_pairs = False

    def reduction_of(self, loss: Tensor) -> Reduction:
        return self._reductions.get(loss, "other")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        result = results[0] if isinstance(results, tuple | list) and results else results
        if isinstance(result, Tensor):
            n = self._samples
            self.compares_all_pairs = self.compares_all_pairs or (n > 1 and result.shape == (n, n))
            reduction = self._find_reduction(func, args, kwargs or {}, result)
            if reduction is not None:
                self._reductions[result] = reduction
        return results

    def _find_reduction(self, func: Any, args: Any, kwargs: Any, result: Tensor) -> Reduction | None:
        """How a result was reduced over the samples; None if it was not."""
        name = func.overloadpacket.__name__
        tensors = [value for value in args if isinstance(value, Tensor)]
        known = {reduction for tensor in tensors if (reduction := self._reductions.get(tensor)) is not None}
        if known:
            return self._combine(name, known, args, tensors)
        has_rows = any(map(self._has_rows, tensors))
        if self._has_rows(result) or not (has_rows or any(tensor in self._rearranged for tensor in tensors)):
            return None
        names = [argument.name for argument in func._schema.arguments]
        place = names.index("reduction") if "reduction" in names else None
        if name in ("sum", "mean") and (has_rows or not result.dim()):
            return name
        if place is not None and not result.dim():
            return _REDUCTIONS.get(kwargs.get("reduction", args[place] if place < len(args) else 1), "other")
        if not result.dim():
            return "other"
        self._rearranged[result] = True  # flattened, transposed, masked, …
        return None

    def _has_rows(self, tensor: Tensor) -> bool:
        return tensor.dim() > 0 and len(tensor) == self._samples

    def _combine(self, name: str, known: set[Reduction], args: Any, tensors: list[Tensor]) -> Reduction:
        """The reduction of a value that is computed from reduced ones."""
        if len(known) > 1:
            return "other"
        (reduction,) = known
        if reduction != "sum" or name in ("add", "sub", "sum", "mean", *_SAME):
            return reduction
        numbers = [value for value in args if isinstance(value, int | float)]
        if name == "mul" and len(numbers) == 1 and numbers[0]:
            return "other" if _is_multiple(1 / numbers[0], self._samples) else "sum"
        if name == "div" and len(numbers) == 1 and isinstance(args[0], Tensor):
            # An integer may be the number of samples that are not masked.
            return "other" if numbers[0] > 2 and _is_multiple(numbers[0], 1) else "sum"
        return "other"


def _is_multiple(number: float, of: int) -> bool:
    times = number / of
    return times >= 1 and abs(times - round(times)) < 1e-6 * times


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


def _class_divisors(loss: LossFunction, targets: Tensor, dtype: torch.dtype) -> Tensor:
    ignore_index, weight = _class_settings(loss) or (-100, None)
    is_counted = targets != ignore_index
    return is_counted.to(dtype) if weight is None else weight[targets.where(is_counted, 0)] * is_counted
