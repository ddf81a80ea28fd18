"""What the user may give as a metric: metrics, meters, and any `torchmetrics.Metric` through an adapter."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from stoker._tree import map_tensors
from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.metrics._meters import Meter
from stoker.metrics._metric import Direction, Metric, State, Value, to_snake_case
from stoker.metrics._outputs import has_classes_last, read_pair

_CONTRACT = ("name", "direction", "unit", "on", "init", "update", "merge", "compute")


def as_metrics(given: Iterable[Any]) -> list[Metric | Meter]:
    """What `Learner(metrics=...)` takes: metrics, meters, and metrics of torchmetrics, also as a `MetricCollection`.

    >>> from stoker import metrics
    >>> [metric.name for metric in as_metrics([metrics.Accuracy(), metrics.Throughput()])]
    ['accuracy', 'samples_per_second']
    """
    if _is_collection(given):
        return [_adapt(metric, name=name) for name, metric in cast(Any, given).items()]
    return [metric for each in given for metric in (as_metrics(each) if _is_collection(each) else [as_metric(each)])]


def _is_collection(given: Any) -> bool:
    return type(given).__name__ == "MetricCollection" and type(given).__module__.startswith("torchmetrics")


def as_metric(
    given: Any,
    *,
    name: str | None = None,
    on: Literal["train", "valid", "both"] | None = None,
    of: str | None = None,
) -> Metric | Meter:
    """Returns a metric or meter as it is and a `torchmetrics.Metric` in an adapter; raises for anything else.

    `name`, `on` and `of` are those of `Metric`: `as_metric(torchmetrics.classification.BinaryF1Score(), of="even")`.

    >>> from stoker import metrics
    >>> as_metric(metrics.Accuracy).name
    Traceback (most recent call last):
    stoker.errors.WrongType: a metric is an object, but Accuracy is a class: write Accuracy()
    """
    if isinstance(given, type):
        raise WrongType(f"a metric is an object, but {given.__name__} is a class: write {given.__name__}()")
    fields: dict[str, Any] = {"name": name, "on": on, "of": of}
    fields = {key: value for key, value in fields.items() if value is not None}
    if any(each.__module__.startswith("torchmetrics") and each.__name__ == "Metric" for each in type(given).__mro__):
        return _adapt(given, **fields)
    if isinstance(given, Metric):
        return given.replace(**fields) if fields else given
    if fields:
        raise WrongType(f"as_metric sets {', '.join(fields)} of a Metric or a torchmetrics.Metric, got {given!r}")
    if isinstance(given, Meter):
        return given
    if _is_collection(given):
        raise WrongType("a MetricCollection is several metrics: write metrics=collection, or use as_metrics")
    if isinstance(given, str):
        from stoker import metrics  # it imports this module

        known = {name.lower(): f"metrics.{name}()" for name in metrics.__all__ if name[0].isupper()}
        advice = f": write {known[given.lower()]}" if given.lower() in known else did_you_mean(given, known)
        raise WrongType(f"a metric is an object, not the name {given!r}{advice}")
    missing = [name for name in _CONTRACT if not hasattr(given, name)]
    if not missing:
        if given.on not in ("train", "valid", "both"):
            raise InvalidArgument(f'{given.name}.on is {given.on!r}; expected "train", "valid" or "both"')
        return cast(Metric, given)
    if inspect.isroutine(given):
        raise WrongType(f"a function is not a metric: write metrics.of({getattr(given, '__name__', 'fn')})")
    raise WrongType(
        f"{type(given).__name__} is not a metric: it has no {', '.join(missing)} (see stoker.metrics.Metric)"
    )


_COUNT = "updates"  # the number of updates in a state


class Torchmetric(Metric):
    """Adapts a `torchmetrics.Metric` to the contract of `Metric`; `as_metric` makes it.

    The metric gets the scores and targets of an output, without masked tokens in a `SequenceOutput`; it does not know
    weights. If they are not tensors (but lists of strings, or of one dict per image), it gets them as they are. `merge`
    does what the metric itself does across processes.
    """

    metric: Callable[..., Any] = field(kw_only=True)

    def default_name(self) -> str:
        return to_snake_case(type(self.metric).__name__)

    @property
    def direction(self) -> Direction | None:  # pyright: ignore[reportIncompatibleVariableOverride]  the metric's own
        """The direction that the metric declares."""
        better = getattr(self.metric, "higher_is_better", None)
        return None if better is None else "max" if better else "min"

    @property
    def static(self) -> bool:
        """Never: torchmetrics reads values on the host."""
        return False

    def init(self, device: torch.device) -> State:
        own: Any = self.metric
        own.reset()  # before: what it has stored need not be tensors
        own.to(device)
        return {**_extract_state(own), _COUNT: torch.zeros((), dtype=torch.int64)}

    def update(self, state: State, output: Any) -> State:
        own = self._load(state)
        states = [(part, name, value) for _, part in _parts(own) for name, value in part.metric_state.items()]
        if any(
            part._reductions[name] is None and _ndim(value) > _ndim(part._defaults[name])
            for part, name, value in states
        ):
            raise InvalidArgument(
                f"{self.name} stores the parts of several processes side by side once they are merged, and cannot be "
                "updated then: resume with as many processes as before, or from the end of an epoch"
            )
        predictions, targets = _read_arguments(self.name, own, output)
        try:
            own.update(predictions, targets)
        except Exception as error:
            if isinstance(predictions, Mapping) and predictions:
                parts = ", ".join(map(repr, predictions))
                error.add_note(
                    f"the predictions have the parts {parts}: choose one with metrics.as_metric(..., of=...)"
                )
            raise
        return {**_extract_state(own), _COUNT: state[_COUNT] + 1}

    def merge(self, a: State, b: State) -> State:
        if not a[_COUNT] or not b[_COUNT]:
            return a if a[_COUNT] else b
        other = copy.deepcopy(self._load(b, move=True))
        own = self._load(a, move=True)
        for (_, mine), (_, theirs) in zip(_parts(own), _parts(other), strict=True):
            for name, value in mine.metric_state.items():
                values = [value, getattr(theirs, name)]
                setattr(mine, name, _reduce(mine, name, values, [int(a[_COUNT]), int(b[_COUNT])]))
        return {**_extract_state(own), _COUNT: a[_COUNT] + b[_COUNT]}

    def compute(self, state: State) -> Value:
        if not state[_COUNT]:
            return float("nan")
        return _to_plain(self._load(state).compute())

    def _load(self, state: State, *, move: bool = False) -> Any:
        """The torchmetrics object with this state; `move`: from the host, where states of other processes are."""
        own: Any = self.metric
        for prefix, part in _parts(own):
            part.reset()
            part._update_count, part._computed = int(state[_COUNT]), None
            for name in part._defaults:
                value = state[prefix + name]
                if move:
                    value = map_tensors(lambda tensor, to=part.device: tensor.to(to), value)
                # The metric works in place, so it gets a copy; it only appends to a list.
                setattr(part, name, list(value) if isinstance(value, list) else value.clone())
        return own


def _adapt(metric: Any, **fields: Any) -> Torchmetric:
    """Wraps a copy, so that the user's metric stays unchanged."""
    own = copy.deepcopy(metric)
    for _, part in _parts(own):
        part.distributed_available_fn = _return_false  # stoker merges the states; `compute` must not gather them again
    return Torchmetric(metric=own, **fields)


def _return_false() -> bool:
    return False


def _parts(metric: Any) -> list[tuple[str, Any]]:
    """The metric and those inside it (of wrappers), with a prefix for their states."""
    found: dict[int, tuple[str, Any]] = {}  # by id: `named_modules` would hash all tensors that a metric has stored

    def visit(module: Any, prefix: str) -> None:
        if id(module) not in found:
            found[id(module)] = prefix, module
            for name, child in module._modules.items():
                visit(child, f"{prefix}{name}.")

    visit(metric, "")
    return [(prefix, module) for prefix, module in found.values() if hasattr(module, "metric_state")]


def _reduce(part: Any, name: str, values: list[Any], counts: list[int]) -> Any:
    """One state of two processes, as torchmetrics reduces it; its own `merge_state` raises for many metrics."""
    from torchmetrics.utilities.data import dim_zero_cat, dim_zero_mean

    reduction = part._reductions[name]
    if isinstance(values[0], list):
        return values[0] + values[1]
    if reduction is dim_zero_cat:
        return torch.cat(values)
    if reduction is None:  # side by side, as the metric's `compute` expects
        ndim = part._defaults[name].ndim
        return torch.cat([each.unsqueeze(0) if each.ndim == ndim else each for each in values])
    if reduction is dim_zero_mean:
        return sum(each * count for each, count in zip(values, counts, strict=True)) / sum(counts)
    return reduction(torch.stack(values))


def _ndim(value: Any) -> int:
    return value.ndim if isinstance(value, Tensor) else 0


def _extract_state(metric: Any) -> dict[str, Any]:
    return {
        prefix + name: list(value) if isinstance(value, list) else value  # the metric empties its list for the next
        for prefix, part in _parts(metric)
        for name, value in part.metric_state.items()
    }


def _read_arguments(name: str, metric: Any, output: Any) -> tuple[Any, Any]:
    """Scores and targets in the layout that torchmetrics expects; as they are if they are not tensors."""
    scores, targets = read_pair(output)
    if scores is None or targets is None:
        raise WrongType(
            f"{name} needs scores (or predictions) and targets, which {type(output).__name__} does not have: return "
            'them from the step, or measure it in validation only: metrics.as_metric(..., on="valid")'
        )
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
        return scores, targets
    mask = getattr(output, "mask", None)
    if mask is None and getattr(output, "ignore_index", None) is not None:
        mask = targets != output.ignore_index
    if mask is not None:
        if scores.ndim > targets.ndim and not has_classes_last(output, scores, targets):
            scores = scores.movedim(1, -1)
        scores, targets = scores[mask], targets[mask]
    elif targets.ndim > 1 and has_classes_last(output, scores, targets):
        scores, targets = scores.flatten(0, -2), targets.flatten()
    if scores.numel() == targets.numel():
        scores = scores.reshape(targets.shape)  # one score per sample: [n, 1] and [n]
    if type(metric).__module__.startswith("torchmetrics.classification") and targets.is_floating_point():
        targets = targets.long()  # losses take floats for yes and no, torchmetrics integers
    if type(metric).__module__ == "torchmetrics.text.perplexity" and scores.ndim == 2:
        return scores[None], targets[None]  # it takes sequences: all tokens as one
    return scores, targets


def _to_plain(value: Any) -> Value:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return _name_classes(
            {str(name): _to_plain(each) for name, each in value.items() if _can_be_recorded(name, each)}
        )
    return [_to_plain(each) for each in value] if isinstance(value, tuple | list) else float(value)


def _can_be_recorded(name: Any, value: Any) -> bool:
    """Whether an entry of a dict holds numbers to record; not the details of `extended_summary` in a detection."""
    return isinstance(name, str) and (not isinstance(value, Tensor) or value.ndim <= 2)


def _name_classes(values: dict[str, Any]) -> dict[str, Any]:
    """Names the values per class by the classes that are listed beside them: another evaluation may find others."""
    if "classes" not in values:
        return values
    classes = np.atleast_1d(np.asarray(values.pop("classes"), dtype=int)).tolist()
    for name in [name for name in values if name.endswith("per_class")]:
        found = np.atleast_1d(values.pop(name)).tolist()  # torchmetrics makes a number of a single entry
        if len(found) == len(classes) and found != [-1]:  # a single -1: they were not computed
            values[name] = {str(number): each for number, each in zip(classes, found, strict=True)}
    return values
