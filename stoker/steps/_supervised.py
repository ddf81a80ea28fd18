"""The supervised default: a batch is (inputs…, target), or a mapping whose names are `forward`'s arguments."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from stoker._select import WRAPPERS
from stoker.errors import BadData, InvalidArgument
from stoker.steps._loss import LossFunction, counted_by, is_sum, weighted_mean


@dataclass(slots=True, eq=False)
class SupervisedOutput:
    """What a supervised step gives: the loss, and what the model and the batch said, as they said it."""

    loss: Tensor
    predictions: Any
    targets: Any
    weight: Tensor | None = None
    count: Tensor | None = None  # what the loss is a mean over, where that is not the samples (or their weight)


class Parts(NamedTuple):
    """A batch taken apart: what `forward` gets, what the loss compares with, and how much each sample counts."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Any
    weight: Tensor | None = None


class Supervised:
    """Takes batches apart for a model and judges its predictions with a loss.

    >>> import torch
    >>> step = Supervised(nn.Linear(2, 1), nn.MSELoss())
    >>> args, kwargs, targets, weight = step.parts((torch.ones(4, 2), torch.ones(4, 1)))
    >>> len(args), targets.shape
    (1, torch.Size([4, 1]))

    In a mapping, `weight` is the samples' weight where `forward` does not ask for it.
    """

    __slots__ = ("_names", "_required", "loss", "sums")

    def __init__(self, model: nn.Module, loss: LossFunction | None) -> None:
        self.loss, self.sums = loss, is_sum(loss)
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = list(inspect.signature(_inner(model).forward).parameters.values())
        self._names = [each.name for each in parameters if each.kind in (*positional, inspect.Parameter.KEYWORD_ONLY)]
        self._required = sum(each.kind in positional and each.default is each.empty for each in parameters)

    def parts(self, batch: Any) -> Parts:
        """The batch with its target."""
        if isinstance(batch, tuple | list) and len(batch) > 1:
            *inputs, targets = batch
            return Parts(tuple(inputs), {}, targets)
        if isinstance(batch, Mapping):
            return self._named(batch)
        if isinstance(batch, Tensor | tuple | list):
            return Parts((batch,) if isinstance(batch, Tensor) else tuple(batch), {}, None)
        raise BadData(
            f"a batch of type {type(batch).__name__} can't be taken apart into inputs and a target: give tuples or "
            "mappings, or give the model a train_step(batch) of its own"
        )

    def inputs(self, batch: Any) -> Parts:
        """The batch for a prediction: a target is left out where there is one, and may be missing."""
        if isinstance(batch, tuple | list) and len(batch) > 1 and len(batch) - 1 < self._required:
            return Parts(tuple(batch), {}, None)
        return self.parts(batch)

    def judge(self, predictions: Any, parts: Parts, loss: Tensor | None = None) -> SupervisedOutput:
        """The loss of the predictions, which may have been computed already: a user's traceback is a frame shorter."""
        if self.loss is None:
            raise InvalidArgument("there is no loss: give Learner(loss=...), or give the model a train_step")
        if parts.targets is None:
            raise BadData(
                "the batch has inputs only, and the loss needs a target: give (inputs, target), or a mapping with a "
                "name that forward does not take"
            )
        if parts.weight is None:
            loss = self.loss(predictions, parts.targets) if loss is None else loss
        else:
            loss = weighted_mean(self.loss, predictions, parts.targets, parts.weight)
        count = counted_by(self.loss, predictions, parts.targets, parts.weight)
        return SupervisedOutput(loss, predictions, parts.targets, parts.weight, count)

    def _named(self, batch: Mapping[str, Any]) -> Parts:
        inputs = {name: value for name, value in batch.items() if name in self._names}
        rest = {name: value for name, value in batch.items() if name not in inputs}
        if not inputs:
            raise BadData(
                f"none of the batch's names ({', '.join(map(repr, batch))}) is an argument of forward("
                f"{', '.join(self._names)}): rename one side, or give tuples"
            )
        weight = rest.pop("weight", None) if len(rest) > 1 else None
        targets = None if not rest else next(iter(rest.values())) if len(rest) == 1 else rest
        return Parts((), inputs, targets, weight)


def _inner(model: nn.Module) -> nn.Module:
    while (name := WRAPPERS.get(type(model).__name__)) is not None:
        model = getattr(model, name)
    return model
