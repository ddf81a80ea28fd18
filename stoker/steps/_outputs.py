"""What a step returns: the loss, and what metrics need. Anything that has a `.loss` is an output.

Construction checks types and shapes only. It reads no values, so it does not wait for the device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType


@runtime_checkable
class Output(Protocol):
    """Anything with a loss: one of the outputs here, or the user's own.

    >>> from types import SimpleNamespace
    >>> isinstance(SimpleNamespace(loss=torch.tensor(0.5), tree=None), Output)
    True
    """

    @property
    def loss(self) -> Tensor:
        """What training differentiates and validation averages."""
        ...


class _Counted:
    """What the outputs below have in common: they know what their loss is a mean over.

    The sum of `loss * count` over batches, divided by the sum of `count`, is a mean over samples, not batches.
    """

    __slots__ = ()
    targets: Tensor
    weight: Tensor | None

    def __post_init__(self) -> None:
        for name, value in _tensors(self).items():
            if not isinstance(value, Tensor):
                kind = type(self).__name__
                raise WrongType(f"{name} of a {kind} must be a torch.Tensor; got {type(value).__name__}")
        self._check_shapes()
        weight, shape = self.weight, self.weights_shape
        if weight is not None and weight.shape not in (shape, shape[:1]):
            shapes = " or ".join(str(list(option)) for option in dict.fromkeys((shape[:1], shape)))
            raise InvalidArgument(f"weight must have the shape {shapes}; got {_shape(weight)}")

    def _check_shapes(self) -> None:
        raise NotImplementedError

    @property
    def weights_shape(self) -> torch.Size:
        """The shape of `weights`: of the samples, or of the positions in them."""
        raise NotImplementedError

    @property
    def weights(self) -> Tensor:
        """How much each sample (or position) counts: `weight`, or ones. On the device, in at least float32."""
        return _expand_weight(self.weight, self.weights_shape, like=self.targets)

    @property
    def count(self) -> Tensor:
        """What the loss is a mean over: the sum of `weights`, as a scalar on the device."""
        return self.weights.sum()

    def detach(self) -> Self:
        """The same output without its graph."""
        tensors = {name: value.detach() for name, value in _tensors(self).items()}
        return replace(self, **tensors)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def __repr__(self) -> str:  # shapes only: printing values would wait for the device
        shapes = ", ".join(f"{name}={_shape(value)}" for name, value in _tensors(self).items())
        return f"{type(self).__name__}({shapes})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClassificationOutput(_Counted):
    """One of several classes for each sample, or for each position in it (such as pixels).

    >>> logits, targets = torch.randn(8, 10), torch.randint(10, (8,))
    >>> output = ClassificationOutput(torch.nn.functional.cross_entropy(logits, targets), logits, targets)
    >>> output
    ClassificationOutput(loss=[], logits=[8, 10], targets=[8])
    >>> output.predictions.shape, output.count
    (torch.Size([8]), tensor(8.))

    Shapes are those of `cross_entropy`: dimension 1 of `logits` are the classes; `targets` are class numbers, or
    probabilities in the shape of the logits. A `weight` has one number per sample, or one per target.
    """

    loss: Tensor
    logits: Tensor
    targets: Tensor
    weight: Tensor | None = None

    def _check_shapes(self) -> None:
        logits, targets = self.logits, self.targets
        if logits.ndim < 2:
            raise InvalidArgument(
                f"logits need a dimension for the classes, [samples, classes, ...]; got {_shape(logits)} "
                "(for one binary logit per sample use MultiLabelOutput)"
            )
        if targets.shape != self.weights_shape and not (targets.shape == logits.shape and targets.is_floating_point()):
            raise InvalidArgument(
                f"logits of shape {_shape(logits)} need targets of shape {list(self.weights_shape)} (class numbers) or "
                f"{_shape(logits)} (probabilities, floating point); got {_shape(targets)} of {targets.dtype}"
            )

    @property
    def weights_shape(self) -> torch.Size:
        return self.logits.shape[:1] + self.logits.shape[2:]

    @property
    def predictions(self) -> Tensor:
        """The class with the largest logit."""
        return self.logits.argmax(1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MultiLabelOutput(_Counted):
    """Whether each label applies to each sample; with a single label, a binary classification.

    >>> logits, targets = torch.tensor([[0.3, -2.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    >>> MultiLabelOutput(loss, logits, targets).predictions.tolist()
    [[True, False], [True, True]]

    Logits and targets have the same shape, samples first. A `weight` has one number per sample.
    """

    loss: Tensor
    logits: Tensor
    targets: Tensor
    weight: Tensor | None = None

    def _check_shapes(self) -> None:
        _check_same("logits", self.logits, self.targets)

    @property
    def weights_shape(self) -> torch.Size:
        return self.logits.shape[:1]

    @property
    def predictions(self) -> Tensor:
        """Whether a label is more likely than not: its logit is positive."""
        return self.logits > 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RegressionOutput(_Counted):
    """Numbers for each sample.

    >>> predictions, targets, weight = torch.zeros(4, 2), torch.ones(4, 2), torch.tensor([1.0, 1.0, 2.0, 0.5])
    >>> loss = ((predictions - targets).square().mean(1) * weight).sum() / weight.sum()
    >>> RegressionOutput(loss, predictions, targets, weight).count
    tensor(4.5000)

    Predictions and targets have the same shape, samples first. A `weight` has one number per sample.
    """

    loss: Tensor
    predictions: Tensor
    targets: Tensor
    weight: Tensor | None = None

    def _check_shapes(self) -> None:
        _check_same("predictions", self.predictions, self.targets)

    @property
    def weights_shape(self) -> torch.Size:
        return self.predictions.shape[:1]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SequenceOutput(_Counted):
    """A token for each position of each sequence; `mask` is True where a position counts and False at padding.

    >>> logits, targets = torch.randn(2, 5, 100), torch.tensor([[7, 8, 9, 0, 0], [4, 5, 6, 7, 8]])
    >>> mask = targets != 0
    >>> output = SequenceOutput(torch.nn.functional.cross_entropy(logits[mask], targets[mask]), logits, targets, mask)
    >>> output.predictions.shape, output.count
    (torch.Size([2, 5]), tensor(8.))

    The vocabulary is the last dimension of `logits`. A `weight` has one number per sequence, or one per token; it is
    ignored where the mask is False.
    """

    loss: Tensor
    logits: Tensor
    targets: Tensor
    mask: Tensor | None = None
    weight: Tensor | None = None

    def _check_shapes(self) -> None:
        if self.logits.ndim < 2 or self.targets.shape != self.weights_shape:
            raise InvalidArgument(
                f"logits are [..., tokens, vocabulary] and targets [..., tokens]; got logits {_shape(self.logits)} "
                f"and targets {_shape(self.targets)}"
            )
        if self.mask is not None and (self.mask.shape != self.weights_shape or self.mask.dtype != torch.bool):
            raise InvalidArgument(
                f"a mask has the shape of the targets, {list(self.weights_shape)}, and the dtype torch.bool, True "
                f"where a token counts; got {_shape(self.mask)} of {self.mask.dtype}"
            )

    @property
    def weights_shape(self) -> torch.Size:
        return self.logits.shape[:-1]

    @property
    def weights(self) -> Tensor:
        """How much each token counts: `weight` or one where the mask is True, else zero."""
        weights = _expand_weight(self.weight, self.weights_shape, like=self.targets)
        return weights if self.mask is None else weights.where(self.mask, 0)

    @property
    def predictions(self) -> Tensor:
        """The token with the largest logit."""
        return self.logits.argmax(-1)


def _tensors(output: _Counted) -> dict[str, Tensor]:
    given = {field.name: getattr(output, field.name) for field in fields(output)}  # pyright: ignore[reportArgumentType]
    return {name: value for name, value in given.items() if value is not None}


def _shape(value: Tensor) -> list[int]:
    return list(value.shape)


def _check_same(name: str, given: Tensor, targets: Tensor) -> None:
    if given.shape != targets.shape:
        raise InvalidArgument(
            f"{name} and targets must have the same shape; got {name} {_shape(given)} and targets {_shape(targets)}, "
            "which would be broadcast, or not match at all; reshape one of them"
        )


def _expand_weight(weight: Tensor | None, counted: torch.Size, *, like: Tensor) -> Tensor:
    if weight is None:
        return torch.ones(counted, dtype=torch.float32, device=like.device)
    wide = weight if weight.dtype == torch.float64 else weight.float()  # half precision is exact only up to 2048
    return wide.reshape(wide.shape + (1,) * (len(counted) - wide.ndim)).expand(counted)


@dataclass(frozen=True, slots=True, eq=False)
class Objective:
    """A loss for a part of the model. A `train_step` yields objectives; each is differentiated and its part updated.

    >>> Objective("critic", torch.tensor(0.3)).name
    'critic'

    `name` selects the part (a name with everything below it, or a glob), and is the name of the loss in the history.
    The step continues after the update, so that a later objective sees the new weights.
    """

    name: str
    loss: Tensor


@dataclass(slots=True, eq=False)
class BareLoss:
    """The output of a step that returned nothing but a loss."""

    loss: Tensor


@dataclass(slots=True, eq=False)
class ForwardOutput:
    """The output of a model that computes its loss in `forward`, and of a step that returned a mapping.

    >>> output = ForwardOutput(torch.tensor(0.5), result={"loss": torch.tensor(0.5), "kl": torch.tensor(0.1)})
    >>> output.kl
    tensor(0.1000)

    Everything that the model returned can be read as an attribute, too.
    """

    loss: Any  # a tensor; None if the model gives none in evaluation mode
    predictions: Any = None
    targets: Any = None  # of the batch, as they are
    result: Any = None  # what was returned
    shift: int = 0  # 1 if position t of the predictions belongs to position t + 1 of the targets
    ignore_index: int | None = None  # of the cross-entropy that is the loss
    class_weight: Tensor | None = None  # of the same

    def __getattr__(self, name: str) -> Any:
        parts = {} if name.startswith("__") else named_parts(self.result)
        if name in parts:
            return parts[name]
        raise AttributeError(f"the model returned {type(self.result).__name__}, which has no {name!r}")


def count_targets(targets: Tensor, shift: int, ignore_index: int, class_weight: Tensor | None = None) -> Tensor:
    """The number of targets that a cross-entropy does not ignore, or the sum of their class weights, on the device.

    `shift` is 1 if the first target of every row does not count: the model predicts the next token.

    >>> count_targets(torch.tensor([[4, 5, -100]]), shift=1, ignore_index=-100)
    tensor(1.)
    """
    is_counted = targets[..., shift:] != ignore_index
    if class_weight is None:
        return is_counted.sum(dtype=torch.float32)
    numbers = targets[..., shift:].long().where(is_counted, 0)
    wide = torch.promote_types(class_weight.dtype, torch.float32)
    return (class_weight.detach().to(targets.device)[numbers] * is_counted).sum(dtype=wide)


def says_count(output: Any) -> bool:
    """Whether an output says what its loss is a mean over: by its `count`, or by the targets of its class."""
    if not isinstance(output, ForwardOutput) and hasattr(output, "targets"):
        return True
    return isinstance(getattr(output, "count", None), Tensor | int | float)  # not the method of a tuple


def named_parts(result: Any) -> dict[str, Any]:
    """The parts of a mapping, dataclass, named tuple or namespace, by name.

    >>> from types import SimpleNamespace
    >>> named_parts(SimpleNamespace(loss=1.0, kl=2.0))
    {'loss': 1.0, 'kl': 2.0}
    """
    if isinstance(result, Mapping):
        return {str(name): part for name, part in result.items()}
    if is_dataclass(result):
        names = [field.name for field in fields(result)]
    else:
        names = list(getattr(result, "_fields", None) or getattr(result, "__dict__", ()))
    return {name: getattr(result, name, None) for name in names}


# What metrics and the engine read.
KNOWN_PARTS = frozenset({"loss", "predictions", "logits", "targets", "mask", "weight", "count"})


def extra_numbers(output: Any) -> dict[str, Tensor | float]:
    """The numbers of an output that stoker does not know: fields of its own that hold one number.

    >>> from types import SimpleNamespace
    >>> extra_numbers(SimpleNamespace(loss=torch.tensor(0.5), kl=torch.tensor(0.1), beta=2.0, codes=torch.zeros(3)))
    {'kl': tensor(0.1000), 'beta': 2.0}
    """
    parts = named_parts(output.result if isinstance(output, ForwardOutput) else output)
    return {
        name: value
        for name, value in parts.items()
        if name not in KNOWN_PARTS and not name.startswith("_") and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0 and not value.is_complex() and value.dtype != torch.bool
    return isinstance(value, int | float) and not isinstance(value, bool)
