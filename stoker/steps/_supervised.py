"""The supervised default: a batch is (inputs…, target), or a mapping whose names are `forward`'s arguments."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from stoker.errors import BadData, InvalidArgument
from stoker.steps._losses import LossFunction, is_sum, mean_divisor, weighted_mean
from stoker.steps._valid import unwrap


@dataclass(slots=True, eq=False)
class SupervisedOutput:
    """What a supervised step returns: the loss, the model's predictions and the batch's targets, unchanged."""

    loss: Tensor
    predictions: Any
    targets: Any
    weight: Tensor | None = None
    count: Tensor | None = None  # what the loss is a mean over, if that is not the samples (or their weight)


class Parts(NamedTuple):
    """A batch split into the arguments of `forward`, the targets of the loss, and the sample weights."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Any
    weight: Tensor | None = None


class Supervised:
    """Splits batches into the inputs of a model and targets, and computes the loss.

    >>> import torch
    >>> step = Supervised(nn.Linear(2, 1), nn.MSELoss())
    >>> args, kwargs, targets, weight = step.parts((torch.ones(4, 2), torch.ones(4, 1)))
    >>> len(args), targets.shape
    (1, torch.Size([4, 1]))

    In a mapping, `weight` are sample weights, unless it is an argument of `forward`.
    """

    __slots__ = ("_names", "_required", "loss", "sums")

    def __init__(self, model: nn.Module, loss: LossFunction | None) -> None:
        self.loss, self.sums = loss, is_sum(loss)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = list(inspect.signature(unwrap(model).forward).parameters.values())
        self._names = [each.name for each in parameters if each.kind in (*positional, inspect.Parameter.KEYWORD_ONLY)]
        self._required = sum(each.kind in positional and each.default is each.empty for each in parameters)

    def parts(self, batch: Any) -> Parts:
        """Splits a batch with a target."""
        if isinstance(batch, tuple | list) and len(batch) > 1:
            *inputs, targets = batch
            return Parts(tuple(inputs), {}, targets)
        if isinstance(batch, Mapping):
            return self._split_mapping(batch)
        if isinstance(batch, Tensor | tuple | list):
            return Parts((batch,) if isinstance(batch, Tensor) else tuple(batch), {}, None)
        raise BadData(
            f"a batch of type {type(batch).__name__} can't be split into inputs and a target: use tuples or mappings, "
            "or give the model a train_step(batch)"
        )

    def inputs(self, batch: Any) -> Parts:
        """Splits a batch for a prediction: the target is optional and ignored."""
        if isinstance(batch, tuple | list) and len(batch) > 1 and len(batch) - 1 < self._required:
            return Parts(tuple(batch), {}, None)
        return self.parts(batch)

    def score(self, predictions: Any, parts: Parts) -> SupervisedOutput:
        """Computes the loss of the predictions, and returns the output of the step."""
        if self.loss is None:
            raise InvalidArgument("there is no loss: pass Learner(loss=...), or give the model a train_step")
        if parts.targets is None:
            raise BadData(
                "the batch has no target for the loss: use (inputs, target), or a mapping with a key that is not an "
                "argument of forward"
            )
        if parts.weight is None:
            loss = self.loss(predictions, parts.targets)
        else:
            loss = weighted_mean(self.loss, predictions, parts.targets, parts.weight)
        count = mean_divisor(self.loss, predictions, parts.targets, parts.weight)
        return SupervisedOutput(loss, predictions, parts.targets, parts.weight, count)

    def _split_mapping(self, batch: Mapping[str, Any]) -> Parts:
        inputs = {name: value for name, value in batch.items() if name in self._names}
        rest = {name: value for name, value in batch.items() if name not in inputs}
        if not inputs:
            raise BadData(
                f"none of the batch's keys ({', '.join(map(repr, batch))}) is an argument of forward("
                f"{', '.join(self._names)}): rename one of them, or use tuples"
            )
        weight = rest.pop("weight", None) if len(rest) > 1 else None
        targets = None if not rest else next(iter(rest.values())) if len(rest) == 1 else rest
        return Parts((), inputs, targets, weight)
