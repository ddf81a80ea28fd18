"""Steps that compute the loss themselves: a function, a method of the model, or the model's own `forward`."""

import inspect
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stoker._text import pluralize
from stoker._tree import is_namedtuple
from stoker.errors import BadData, InvalidArgument, WrongType
from stoker.steps._loss_count import (
    TARGET_NAMES,
    CrossEntropyCall,
    LossCount,
    WatchCrossEntropies,
    has_integers,
)
from stoker.steps._losses import LossFunction, class_weight_of, is_traced
from stoker.steps._outputs import BareLoss, ForwardOutput, Output, named_parts, says_count
from stoker.steps._samples import count_samples, is_one_per_sample
from stoker.steps._supervised import Parts, Supervised
from stoker.steps._valid import unwrap

Function = Callable[[nn.Module, Any], Any]


class StepFunction:
    """A step that computes the loss: a function of (model, batch), or the method of the model with that name.

    >>> step = StepFunction(lambda model, batch: {"loss": model(batch).mean(), "size": 4.0}, "step")
    >>> output = step(nn.Linear(2, 1), torch.ones(3, 2))
    >>> output.loss.shape, output.size
    (torch.Size([]), 4.0)

    A call returns an output, or the generator of a step that yields objectives. `count` knows what the loss is a mean
    over, if the output does not say it.
    """

    def __init__(self, function: Function | str, name: str, warn: Callable[[str], None] = warnings.warn) -> None:
        self.name = name
        self.function = None if isinstance(function, str) else function  # of the user
        self._method = function if isinstance(function, str) else ""
        self.count = LossCount(name, warn)

    def yields(self, model: nn.Module) -> bool:
        """Whether it yields objectives."""
        return inspect.isgeneratorfunction(self.function or getattr(unwrap(model), self._method))

    def __call__(
        self, model: nn.Module, batch: Any, size: int | None = None, *, needs_loss: bool = True
    ) -> Output | Generator[Any, Any, Any]:
        """Calls the step; `size` is the number of samples in the batch, if the loader knows it."""
        answer, calls = self._run_and_watch(model, batch, size)
        if isinstance(answer, Generator):
            self.count.accept(batch)
            return answer
        output = self.as_output(answer, batch, needs_loss=needs_loss)
        if not self.count.knows(batch):
            if says_count(output):
                self.count.accept(batch)
            else:
                predictions = getattr(output, "predictions", None)
                self.count.observe(output.loss, batch, count_samples(batch, size), calls, predictions)
        self.count.follow(output.loss, batch, size)
        found = self.count.target_count(batch)
        if found is not None and isinstance(output, ForwardOutput) and "targets" not in named_parts(output.result):
            output.targets, output.shift = found.targets(batch), found.shift
            output.ignore_index, output.class_weight = found.ignore_index, found.class_weight
        return output

    def _run_and_watch(self, model: nn.Module, batch: Any, size: int | None) -> tuple[Any, Sequence[CrossEntropyCall]]:
        """What the step returns, and the cross-entropies in it that no graph will show."""
        if torch.is_grad_enabled() or is_traced() or self.count.knows(batch) or not has_integers(batch):
            return self.run(model, batch, size), ()
        with WatchCrossEntropies() as watched:
            answer = self.run(model, batch, size)
        return answer, watched.calls

    def run(self, model: nn.Module, batch: Any, size: int | None = None) -> Any:
        """What the function or method returns."""
        return getattr(model, self._method)(batch) if self.function is None else self.function(model, batch)

    def as_output(self, answer: Any, batch: Any, *, needs_loss: bool = True) -> Output:
        """What a step returned, as an output: anything with a loss, or the loss itself."""
        if isinstance(answer, Tensor):
            return BareLoss(answer)
        parts = named_parts(answer)
        if isinstance(parts.get("loss"), Tensor):
            return _forward_output(parts["loss"], answer, batch) if isinstance(answer, Mapping) else answer
        if isinstance(getattr(answer, "loss", None), Tensor):  # a property
            return answer
        # A validation by metrics alone: an answer for each sample, or an output that has predictions.
        if not needs_loss and (isinstance(answer, list) or {"predictions", "logits"} & {*named_parts(answer)}):
            return _forward_output(None, answer, batch)
        without_loss = "" if needs_loss else ', or without a loss a mapping with "predictions" and "targets"'
        raise WrongType(
            f"{self.name} returned {_describe(answer)}; expected a loss (a tensor), an output with a .loss (such as "
            f'stoker.ClassificationOutput), a mapping with "loss", or yielded objectives{without_loss}'
        )

    def as_last_output(self, answer: Any, batch: Any) -> Output:
        """What a step that yields objectives returned at its end: numbers, or what metrics read; it needs no loss."""
        parts = named_parts(answer)
        is_without_loss = bool(parts) and "loss" not in parts and not hasattr(answer, "loss")
        return _forward_output(None, answer, batch) if is_without_loss else self.as_output(answer, batch)


class OwnForward(StepFunction):
    """The step of a model whose `forward` computes the loss.

    >>> class Net(nn.Linear):
    ...     def forward(self, x, y):
    ...         return {"loss": nn.functional.mse_loss(super().forward(x), y)}
    >>> net = Net(2, 1)
    >>> OwnForward(net)(net, {"x": torch.ones(4, 2), "y": torch.ones(4, 1)}).loss.shape
    torch.Size([])

    A mapping is passed by name, a tuple by place, and anything else as the only argument. A list is passed by place if
    it holds columns, as those of `DataLoader` do, and as the only argument if it holds samples.
    """

    def __init__(self, model: nn.Module, warn: Callable[[str], None] = warnings.warn) -> None:
        super().__init__("forward", f"{type(unwrap(model)).__name__}.forward", warn)
        self._signature = inspect.signature(unwrap(model).forward)
        kinds = [parameter.kind for parameter in self._signature.parameters.values()]
        self._takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
        self._warn = warn
        self._layouts: dict[Any, str] = {}  # how batches with these keys, or of this length, are passed
        self._lists_hold_samples: bool | None = None  # None: no list was passed yet
        self._losses: set[Any] | None = None  # the names of the losses that were added up in training

    def run(self, model: nn.Module, batch: Any, size: int | None = None) -> Any:
        """What `forward` returns for a batch."""
        args, kwargs = self.arguments(batch, size)
        return model(*args, **kwargs)

    def predict(self, model: nn.Module, batch: Any, size: int | None) -> Any:
        """What `forward` returns for a batch with or without targets; in a tuple, without the loss."""
        is_list = isinstance(batch, list)  # of the inputs alone, one for each sample
        if is_list and (is_one_per_sample(batch, size) or not self._can_bind(*batch)) and self._can_bind(batch):
            result = model(batch)
        else:
            result = self.run(model, batch, size)
        if type(result) is not tuple:
            return result
        loss = _find_loss(result)
        return tuple(None if part is loss else part for part in result)

    def arguments(self, batch: Any, size: int | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A batch of `size` samples as the arguments of `forward`."""
        if isinstance(batch, Mapping):
            columns = self._name_columns(batch)
            layout: Any = tuple(columns)
        else:
            columns, layout = {}, (type(batch), len(batch)) if isinstance(batch, tuple | list) else type(batch)
        how = self._layouts.get(layout)
        if how is None:
            how = self._layouts[layout] = self._find_layout(batch, columns, size)
        if how == "by name":
            names = self._signature.parameters
            return (), {name: part for name, part in columns.items() if self._takes_any_name or name in names}
        return tuple(batch) if how == "by place" else (batch,), {}

    def _name_columns(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a batch; `label`, as datasets call it, is named as `forward` calls it."""
        names = self._signature.parameters
        is_renamed = "labels" in names and "label" not in names and "labels" not in batch
        return {"labels" if name == "label" and is_renamed else name: part for name, part in batch.items()}

    def _find_layout(
        self, batch: Any, columns: Mapping[str, Any], size: int | None
    ) -> Literal["by name", "by place", "as one"]:
        """How batches like this one are passed to `forward`."""
        if isinstance(batch, list) and self._can_bind(batch):
            if self._lists_hold_samples is None or not (self._lists_hold_samples or self._can_bind(*batch)):
                self._lists_hold_samples = self._holds_samples(batch, size)
            if self._lists_hold_samples:
                return "as one"
        is_parts = isinstance(batch, tuple | list) and not is_one_per_sample(batch)
        unused = [name for name in columns if not self._takes_any_name and name not in self._signature.parameters]
        if isinstance(batch, tuple | list) and self._can_bind(*batch):
            return "by place"
        if len(unused) < len(columns) and self._can_bind(**{name: 0 for name in columns if name not in unused}):
            if unused:
                self._warn(f"{self.name} does not take {', '.join(map(repr, unused))} of the batch, which is not used")
            return "by name"
        if not is_parts and self._can_bind(batch) and (not columns or self._takes_mapping):
            return "as one"
        given = f"with {', '.join(map(repr, columns))}" if columns else f"of type {type(batch).__name__}"
        given = f"of {pluralize(len(batch), 'part')}" if is_parts else given
        raise InvalidArgument(
            f"a batch {given} can't be passed to "
            f"{self.name}{self._signature}, which has to compute the loss, since there is no other: give "
            "Learner(loss=nn.MSELoss()) or any other function of (predictions, targets), Learner(step=fn) with a "
            "function fn(model, batch) that returns the loss, or the model a train_step(batch)"
        )

    def _holds_samples(self, batch: list[Any], size: int | None) -> bool:
        """Whether a list that `forward` takes as one argument holds samples; otherwise it holds columns."""
        if is_one_per_sample(batch, size) or (batch and all(isinstance(entry, Mapping) for entry in batch)):
            return True
        if not self._can_bind(*batch):
            return False
        if len(batch) == size == 1 and isinstance(batch[0], Tensor):
            raise BadData(
                f"a list of one tensor {list(batch[0].shape)} as a batch may hold one sample, or a column of one row, "
                f"and {self.name} takes both: return a tuple (x,) from collate_fn to pass a column, or a mapping "
                "with the name of the argument to pass a list"
            )
        return False

    @property
    def _takes_mapping(self) -> bool:
        """Whether the first argument may be a mapping, by its annotation."""
        return next(iter(self._signature.parameters.values())).annotation not in (Tensor, "Tensor", "torch.Tensor")

    def _can_bind(self, *args: Any, **kwargs: Any) -> bool:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True

    def as_output(self, answer: Any, batch: Any, *, needs_loss: bool = True) -> Output:
        """What `forward` returned, as an output."""
        loss = _find_loss(answer)
        if loss is not None and isinstance(answer, Mapping) and "loss" not in answer:
            if torch.is_grad_enabled():
                self._losses = {*answer}
            elif self._losses is not None and {*answer} != self._losses:
                loss = None  # other numbers, such as scores
        is_labels_missing = loss is None and getattr(answer, "loss", 0) is None
        if is_labels_missing and (needs_loss or isinstance(answer, Mapping)):
            given = f" (it has {', '.join(map(repr, batch))})" if isinstance(batch, Mapping) else ""
            raise BadData(
                f"{self.name} returned a {type(answer).__name__} whose loss is None: models of Transformers compute a "
                f"loss if the batch has labels{given}. Rename the column of the targets, or give Learner(loss=...)"
            )
        if loss is not None or not needs_loss:
            return _forward_output(loss, answer, batch)
        raise WrongType(
            f"{self.name} returned {_describe(answer)}, which has no loss; expected an output with a .loss, a mapping "
            'with "loss" or with losses only, one number, or a tuple whose first number is the loss, the only one with '
            "a gradient. Give Learner(loss=...) a function of (predictions, "
            "targets), or Learner(step=fn), where fn(model, batch) returns the loss"
        )


def _forward_output(loss: Tensor | None, result: Any, batch: Any) -> ForwardOutput:
    parts = named_parts(result)
    names = [name for name in ("logits", "predictions") if parts.get(name) is not None]
    if names:
        predictions = parts[names[0]]
    elif isinstance(result, tuple) and not is_namedtuple(result):
        predictions = next((part for part in result if isinstance(part, Tensor) and part.dim()), None)
    else:
        predictions = result if loss is None else None
    targets = parts.get("targets")
    return ForwardOutput(loss, predictions, _targets_by_name(batch) if targets is None else targets, result)


def _targets_by_name(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        columns = dict(batch.items())
        return next((columns[name] for name in TARGET_NAMES if name in columns), None)
    return batch[-1] if isinstance(batch, tuple | list) and len(batch) > 1 else None


def _find_loss(result: Any) -> Tensor | None:
    """The loss in what a model returned: a number, the first of a tuple, "loss", or the sum of a mapping of losses."""
    if isinstance(result, Tensor):
        return result if _is_loss(result) else None
    parts = named_parts(result)
    if "loss" in parts:
        loss = parts["loss"]
        return loss if isinstance(loss, Tensor) else None
    if isinstance(result, Mapping):
        has_losses = bool(parts) and all(_is_loss(part) for part in parts.values())
        return reduce(add, parts.values()) if has_losses else None
    if isinstance(result, tuple):
        # Without gradients nothing but the order shows which is the loss, so that the order holds with them, too.
        first, *others = [part for part in result if _is_number(part)] or [None]
        is_clear = _is_loss(first) and not (torch.is_grad_enabled() and any(map(_is_loss, others)))
        return first if is_clear else None
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dim() and value.is_floating_point()


def _is_loss(value: Any) -> bool:
    return _is_number(value) and (value.requires_grad or not torch.is_grad_enabled())


def _describe(answer: Any) -> str:
    if isinstance(answer, Tensor):
        return f"a tensor of shape {list(answer.shape)}"
    if isinstance(answer, Mapping):
        return f"{type(answer).__name__} with {', '.join(map(repr, answer.keys())) or 'no keys'}"
    if isinstance(answer, tuple | list):
        return f"a {type(answer).__name__} of {', '.join(type(part).__name__ for part in answer[:4]) or 'nothing'}"
    return type(answer).__name__


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Steps:
    """How a fit calls its model in training, validation and prediction.

    `train`, `valid` and `predict` are None where there is no such step. Then the loss is a function of predictions and
    targets, validation computes the same as training, and a prediction is the output of the model for its inputs.
    """

    split: Supervised  # splits batches into inputs and targets; with the loss function, if there is one
    train: StepFunction | None = None
    valid: StepFunction | None = None
    predict: StepFunction | None = None

    @property
    def supervised(self) -> Supervised | None:
        """What computes the loss of the training; None if a step does."""
        return self.split if self.train is None else None

    @property
    def evaluate(self) -> StepFunction | None:
        """The step of a validation; None if a loss function computes the loss."""
        return self.train if self.valid is None else self.valid

    def with_loss(self, loss: LossFunction) -> "Steps":
        """The same with another loss function."""
        return replace(self, split=self.split.with_loss(loss))

    @property
    def loss_count(self) -> LossCount | None:
        """The `LossCount` of the training's loss; None for a loss of torch, which says what it is a mean over."""
        return self.split.count if self.train is None else self.train.count

    def note_split(self) -> None:
        """Notes that batches are computed in parts: what is unclear about a loss matters from the first batch on."""
        for count in (self.split.count, *(step.count for step in (self.train, self.valid) if step is not None)):
            if count is not None:
                count.is_split = True

    def load_loss_count(self, saved: list[Any] | None, device: torch.device, *, is_sum: bool | None) -> None:
        """Restores what an earlier process knew about the loss of the training."""
        if self.loss_count is not None:
            self.loss_count.load(saved, device, class_weight=class_weight_of(self.split.loss))
        if self.train is None and self.split.sums is None:
            self.split.sums = is_sum

    def parts(self, batch: Any) -> Parts:
        """A batch split into inputs and targets; without targets if the model predicts the next token of its inputs."""
        if not isinstance(self.train, OwnForward):
            return self.split.parts(batch)
        args, kwargs = self.train.arguments(batch)
        known = self.train.count.target_count(batch)
        if known is None:
            return Parts(args, kwargs, _targets_by_name(batch))
        return Parts(args, kwargs, None if known.shift else known.targets(batch))

    def predict_batch(self, model: nn.Module, batch: Any, size: int | None = None) -> Any:
        """The prediction of a model for a batch of `size` samples, which may have targets."""
        if self.predict is not None:
            return self.predict.run(model, batch)
        if isinstance(self.train, OwnForward):
            return self.train.predict(model, batch, size)
        parts = self.split.inputs(batch)
        return model(*parts.args, **parts.kwargs)
