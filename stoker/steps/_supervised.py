"""The supervised default: a batch is (inputs…, target), or a mapping whose names are `forward`'s arguments."""

import copy
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stoker._text import pluralize
from stoker._tree import first_tensor, map_tensors
from stoker.errors import BadData, InvalidArgument, NotDifferentiable, WrongType
from stoker.steps._loss_count import TARGET_NAMES, LossCount
from stoker.steps._losses import (
    FirstCall,
    LossFunction,
    check_total_weight,
    is_traced,
    mixed_mean,
    name_of,
    weigh_samples,
)
from stoker.steps._outputs import named_parts
from stoker.steps._samples import count_samples
from stoker.steps._trials import Findings, try_loss
from stoker.steps._valid import unwrap

_MOST_ATTEMPTS = 8  # to try a loss: one that is the same for all samples, or not finite, shows nothing
_LOST_TERMS = "of targets whose class weights are all 0 it is not finite, and they count as nothing"
_UNLIKE_PARTS = "it is neither the sum nor such a mean of the losses of two parts of a batch"


@dataclass(slots=True, eq=False)
class SupervisedOutput:
    """What a supervised step returns: the loss, the model's predictions and the batch's targets, unchanged."""

    loss: Tensor
    predictions: Any
    targets: Any
    weight: Tensor | None = None
    count: Tensor | None = None  # what the loss is a mean over, if that is not the samples (or their weight)
    loss_function: LossFunction | None = None  # tells metrics whether predictions are probabilities, and what to ignore


class Parts(NamedTuple):
    """A batch split into the arguments of `forward`, the targets of the loss, and the sample weights."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Any
    weight: Tensor | None = None


Columns = str | int | Sequence[str | int]  # names of a mapping's columns, or places in a tuple


class Supervised:
    """Splits batches into the inputs of a model and targets, and computes the loss.

    >>> import torch
    >>> step = Supervised(nn.Linear(2, 1), nn.MSELoss())
    >>> args, kwargs, targets, weight = step.parts((torch.ones(4, 2), torch.ones(4, 1)))
    >>> len(args), targets.shape
    (1, torch.Size([4, 1]))

    In a mapping, `weight` are sample weights, unless it is an argument of `forward`. `inputs`, `target` and `weight`
    name the columns of a batch instead, by key or by place: inputs are passed to `forward` in this order.

    `sums` is True for a loss that adds up over the samples, and None until that is known. `count` knows what another
    loss is a mean over. Both are found out with a few rows of the first batch (`steps/_trials.py`); `warn` gets a text
    if they do not show it.
    """

    __slots__ = (
        "_attempts",
        "_columns",
        "_input_count",
        "_most",
        "_names",
        "_required",
        "_takes_any_name",
        "_weighs_samples",
        "count",
        "is_observed",
        "loss",
        "sums",
    )

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction | None,
        *,
        inputs: Columns | None = None,
        target: Columns | None = None,
        weight: str | int | None = None,
        warn: Callable[[str], None] = warnings.warn,
    ) -> None:
        self.loss = loss
        self.count = None if loss is None else LossCount(name_of(loss), warn)
        self.sums: bool | None = None if loss is not None else False
        self.is_observed = False  # whether the first call of the loss was looked at
        self._attempts = 0  # trials that have shown nothing
        self._weighs_samples = False  # batches have sample weights or mixed targets, which make a mean of any loss
        self._columns = None if inputs is target is weight is None else (inputs, target, weight)
        self._input_count: int | None = None  # of the tuples that were split so far
        kinds = inspect.Parameter
        positional = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        parameters = list(inspect.signature(unwrap(model).forward).parameters.values())
        self._names = [
            parameter.name for parameter in parameters if parameter.kind in (*positional, kinds.KEYWORD_ONLY)
        ]
        self._required = sum(
            parameter.kind in positional and parameter.default is parameter.empty for parameter in parameters
        )
        takes_any_number = any(parameter.kind is kinds.VAR_POSITIONAL for parameter in parameters)
        self._most = math.inf if takes_any_number else sum(parameter.kind in positional for parameter in parameters)
        self._takes_any_name = any(parameter.kind is kinds.VAR_KEYWORD for parameter in parameters)

    def with_loss(self, loss: LossFunction) -> "Supervised":
        """The same with another loss."""
        other = copy.copy(self)
        other.loss, other.count = loss, copy.copy(self.count)
        return other

    @property
    def is_loss_known(self) -> bool:
        """Whether it is known what the loss is a mean or a sum over."""
        if self._weighs_samples or self.count is None:
            return True
        return self.sums is not None and (self.sums or self.count.is_known)

    def parts(self, batch: Any) -> Parts:
        """Splits a batch with a target."""
        return self._split(batch) if self._columns is None else self._named_parts(batch, needs_target=True)

    def inputs(self, batch: Any) -> Parts:
        """Splits a batch for a prediction: the target is optional and ignored.

        A tuple has as many inputs as those that were split with `parts`, if there were any.
        """
        return self._split_inputs(batch) if self._columns is None else self._named_parts(batch, needs_target=False)

    def _split(self, batch: Any) -> Parts:
        if isinstance(batch, (tuple, list)) and len(batch) > 1:
            *inputs, targets = batch
            if self._input_count != len(inputs):
                self._remember_layout(len(inputs))
            return Parts(tuple(inputs), {}, targets)
        if isinstance(batch, Mapping):
            return self._split_mapping(batch)
        if isinstance(batch, Tensor | tuple | list):
            return Parts((batch,) if isinstance(batch, Tensor) else tuple(batch), {}, None)
        if _is_graphs(batch):
            return self._split_graphs(batch)
        raise BadData(
            f"a batch of type {type(batch).__name__} can't be split into inputs and a target: use tuples or mappings, "
            "Learner(step=fn) with a function fn(model, batch), or a model with a train_step(batch)"
        )

    def _split_graphs(self, batch: Any) -> Parts:
        """A batch of PyTorch Geometric: `forward` takes its parts by name, or else the whole; `y` is the target."""
        columns = batch.to_dict()
        targets = columns.pop("y", None)
        if self._names[: self._required] and {*self._names[: self._required]} <= {*columns}:
            return Parts((), {name: columns[name] for name in self._names if name in columns}, targets)
        return Parts((batch,), {}, targets)

    def _split_inputs(self, batch: Any) -> Parts:
        if not isinstance(batch, Tensor | tuple | list):
            return self._split(batch) if isinstance(batch, Mapping) or _is_graphs(batch) else Parts((batch,), {}, None)
        values = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        given = len(values)
        if self._input_count is not None:
            counts = {self._input_count}
        else:
            counts = {count for count in (given, given - 1) if self._required <= count <= self._most}
            if not counts:
                return Parts(values, {}, None)  # the call of `forward` says what is missing
        possible = counts & {given, given - 1}
        if len(possible) == 1:
            return Parts(values[: possible.pop()], {}, None)
        if self._input_count is not None:
            known = f"the batches of the fit had {_describe_inputs(self._input_count)}"
        else:
            known = f"forward({', '.join(self._names)}) may take all of them, or the last one may be a target"
        raise BadData(
            f"it is not clear which of the {pluralize(given, 'part')} of a batch are inputs: {known}; pass "
            "exactly the inputs, or name them: in a mapping whose keys are arguments of forward, or with "
            "Learner(inputs=..., target=...)"
        )

    def _remember_layout(self, inputs: int) -> None:
        if self._input_count is not None:
            raise BadData(
                f"a batch has {_describe_inputs(inputs)}, but those before had {_describe_inputs(self._input_count)}: "
                "all batches need the same parts, also in validation and evaluation"
            )
        self._input_count = inputs

    def score(self, predictions: Any, parts: Parts, size: int | None = None) -> SupervisedOutput:
        """Computes the loss of the predictions, and returns the output of the step.

        `size` is the number of samples that the loader put into the batch, if it is known.
        """
        if self.loss is None:
            raise InvalidArgument("there is no loss: pass Learner(loss=...), or give the model a train_step")
        if parts.targets is None:
            raise BadData(
                "the batch has no target for the loss: use (inputs, target), a mapping with a key that is not an "
                "argument of forward, or Learner(target=...) with the name of the target"
            )
        if parts.weight is not None:
            self.sums, self._weighs_samples = False, True
        if is_traced() or (self.is_observed and (parts.weight is not None or self._knows(parts.targets))):
            loss, count = self._compute(predictions, parts)
        else:
            loss, count = self._observe(predictions, parts, size)
        if not isinstance(loss, Tensor):
            raise WrongType(_describe_answer(self.loss, loss))
        if loss.dim() and loss.numel() != 1:
            raise NotDifferentiable(
                f"the loss must be one number, got shape {list(loss.shape)}; reduce it with .mean() or .sum()"
            )
        if parts.weight is None and self.count is not None and not self.sums:
            count = self.count(parts.targets)
            self.count.follow(None, parts.targets, size, (parts.targets, predictions))
        if parts.weight is not None:
            total = check_total_weight(parts.weight)
            count = total if count is None else count
            if total.device.type != "cpu":
                loss = torch.where(total.isnan(), total.to(loss.dtype), loss)
        return SupervisedOutput(loss, predictions, parts.targets, parts.weight, count, self.loss)

    def score_mixed(self, predictions: Any, parts: Parts, other: Any, share: Tensor) -> SupervisedOutput:
        """The same where sample i has its target with `share[i]`, and the other one with `1 - share[i]`."""
        assert self.loss is not None
        self.sums, self._weighs_samples = False, True
        loss, count = mixed_mean(self.loss, predictions, parts.targets, other, share, parts.weight)
        return SupervisedOutput(loss, predictions, parts.targets, parts.weight, count, self.loss)

    def _knows(self, targets: Any) -> bool:
        """Whether it is known what the loss of batches with targets like these is a mean or a sum over."""
        return self.sums is not None and (self.sums or self.count is None or self.count.knows(targets))

    def _compute(self, predictions: Any, parts: Parts) -> tuple[Tensor, Tensor | None]:
        """The loss; with sample weights also what the mean of a cross-entropy divides by."""
        assert self.loss is not None
        try:
            if parts.weight is None:
                return self.loss(predictions, parts.targets), None
            return weigh_samples(self.loss, predictions, parts.targets, parts.weight)
        except Exception as error:
            error.add_note(
                f"{name_of(self.loss)} was called with predictions {_describe_value(predictions)} and targets "
                f"{_describe_value(parts.targets)}"
            )
            names = [] if isinstance(predictions, Tensor) else [*named_parts(predictions)]
            if names:
                error.add_note(
                    f"the model returns {', '.join(map(repr, names))}: give a loss that reads its part, such as lambda "
                    f"output, target: {name_of(self.loss)}(output[{names[0]!r}], target). If the model computes its "
                    "loss itself, leave out the loss"
                )
            raise

    def _observe(self, predictions: Any, parts: Parts, size: int | None) -> tuple[Tensor, Tensor | None]:
        """Computes the loss of a first batch, checks its shapes, and finds out what it is a mean over."""
        if not torch.is_grad_enabled() and self.count is not None:  # an evaluation: the loss alone gets a graph
            with torch.enable_grad():
                loss, count = self._observe(map_tensors(_start_graph, predictions), parts, size)
            return loss.detach() if isinstance(loss, Tensor) else loss, count
        shapes = [list(value.shape) for value in (predictions, parts.targets) if isinstance(value, Tensor)]
        may_broadcast = sorted(map(len, shapes)) == [1, 2] and max(shapes, key=len)[1] == 1  # [n, 1] and [n]
        has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        first = first_tensor(predictions)
        watch = FirstCall(len(first) if first is not None and first.dim() else 1)
        with watch if may_broadcast or has_ranks else nullcontext():
            loss, count = self._compute(predictions, parts)
        if may_broadcast and watch.compares_all_pairs:
            raise InvalidArgument(
                f"predictions have the shape {shapes[0]} and targets {shapes[1]}, and {name_of(self.loss)} compares "
                "every prediction with every target: give both the same shape, with targets.unsqueeze(1) in the data "
                "or predictions.squeeze(1) in the model"
            )
        self.is_observed = True
        is_number = isinstance(loss, Tensor) and loss.numel() == 1
        if is_number and parts.weight is None and self.count is not None and not self._knows(parts.targets):
            samples = count_samples((parts.targets, predictions), size)
            # Processes would have to run the same trials.
            found = None if watch.communicates else self._try(predictions, parts.targets, samples)
            self._accept(self.count, found, loss, predictions, parts.targets, samples)
        return loss, count

    def _try(self, predictions: Any, targets: Any, samples: int) -> Findings:
        assert self.loss is not None
        return try_loss(self.loss, predictions, targets, samples)

    def _accept(
        self, count: LossCount, found: Findings | None, loss: Tensor, predictions: Any, targets: Any, samples: int
    ) -> None:
        """Remembers what trials of the loss function have shown; if it can't be tried, what its graph shows."""
        if found is None or not found.can_be_tried:
            self.sums = False
            count.observe(loss, targets, samples, (), predictions, reads_predictions_only=True)
            return
        counts = found.targets[0] if found.targets else None
        self._attempts += 1
        if not found.is_conclusive and self._attempts < _MOST_ATTEMPTS:
            count.accept(targets, counts, is_known=False)
            return
        means = [each for each in found.holds if not isinstance(each, str)]
        self.sums = "sum" in found.holds
        if not self.sums and list(found.holds) == ["samples"]:
            count.accept(targets)
            if reason := count.find_doubts(loss, predictions, samples):
                count.note_problem(reason, None)
        elif not self.sums:
            has_both = bool(means) and len(means) < len(found.holds)
            certain = count.show_certainly(loss, targets, samples) if has_both else None
            counts = certain or (means[0] if means else counts)
            count.accept(targets, counts)
            if found.loses_terms:
                count.note_problem(_LOST_TERMS, counts)
            elif certain is None and len(found.holds) != 1:
                agrees = counts is not None and "samples" in found.holds_unless_ignored
                count.note_problem(_UNLIKE_PARTS, counts, unless_complete=agrees)

    def _split_mapping(self, batch: Mapping[str, Any]) -> Parts:
        takes_all = self._takes_any_name and not self._names  # forward(*args, **kwargs)
        inputs = {name: value for name, value in batch.items() if takes_all or name in self._names}
        if self.loss is not None and not batch.keys() - {*inputs, "weight"}:
            # Models of Transformers take the labels too, and compute a loss of their own from them.
            required = self._names[: self._required]
            target = next((name for name in TARGET_NAMES if name in inputs and name not in required), None)
            inputs.pop(target or "", None)
        if takes_all:
            inputs.pop("weight", None)
        rest = {name: value for name, value in batch.items() if name not in inputs}
        if not inputs:
            raise BadData(
                f"none of the batch's keys ({', '.join(map(repr, batch))}) is an argument of forward("
                f"{', '.join(self._names)}): rename one of them, or use tuples"
            )
        weight = rest.pop("weight", None) if len(rest) > 1 else None
        return Parts((), inputs, _alone_or_all(rest), weight)

    def _named_parts(self, batch: Any, *, needs_target: bool) -> Parts:
        """Splits a batch by the columns that the user named; for a prediction it may lack target and weight."""
        assert self._columns is not None
        if not isinstance(batch, Mapping | tuple | list):
            raise BadData(f"the Learner names columns of a batch, but a batch is a {type(batch).__name__}")
        inputs, target, weight = self._columns
        columns: dict[Any, Any] = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch))
        names = list(columns)

        def take(key: Any, *, is_needed: bool = True) -> Any:
            place = key + len(names) if isinstance(key, int) and key < 0 else key
            if is_needed and place not in columns:
                raise BadData(f"the batch has no column {key!r}, which the Learner names; its columns are {names}")
            return columns.pop(place, None)

        weights = None if weight is None else take(weight, is_needed=needs_target)
        targets = {key: take(key, is_needed=needs_target) for key in _as_list(target)}
        if inputs is not None:
            args, kwargs = tuple([take(key) for key in _as_list(inputs)]), {}
        elif target is None:  # only the weight is named
            rest = columns if isinstance(batch, Mapping) else tuple(columns.values())
            return (self._split(rest) if needs_target else self._split_inputs(rest))._replace(weight=weights)
        elif isinstance(batch, Mapping):
            args, kwargs = (), {key: columns[key] for key in columns if self._takes_any_name or key in self._names}
        else:
            args, kwargs = tuple(columns.values()), {}
        return Parts(args, kwargs, _alone_or_all(columns if target is None else targets), weights)


def _is_graphs(batch: Any) -> bool:
    return any(base.__module__.startswith("torch_geometric.") for base in type(batch).__mro__)


def _start_graph(tensor: Tensor) -> Tensor:
    """A copy whose graph begins here."""
    return tensor.detach().requires_grad_().clone() if tensor.is_floating_point() else tensor


def _as_list(columns: Columns | None) -> list[Any]:
    if columns is None:
        return []
    return [columns] if isinstance(columns, str | int) else list(columns)


def _alone_or_all(targets: Mapping[Any, Any]) -> Any:
    return None if not targets else next(iter(targets.values())) if len(targets) == 1 else dict(targets)


def _describe_inputs(inputs: int) -> str:
    return f"{pluralize(inputs, 'input')} and a target"


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"of shape {list(value.shape)} and {value.dtype}"
    return f"of type {type(value).__name__}"


def _describe_answer(loss: Any, answer: Any) -> str:
    if isinstance(answer, int | float):
        advice = "leave out .item() or float(), which cut the graph"
    else:
        advice = "return the loss alone; a train_step of the model can return more, in an output with a .loss"
    return f"the loss function {name_of(loss)} returned {type(answer).__name__}; expected one tensor: {advice}"
