"""What the user may give as a metric: metrics, meters, and any `torchmetrics.Metric` through an adapter."""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, cast

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType, did_you_mean
from stoker.metrics._meters import Meter
from stoker.metrics._metric import Direction, Metric, State, Value, to_snake_case
from stoker.metrics._outputs import read_pair

_CONTRACT = ("name", "direction", "unit", "on", "init", "update", "merge", "compute")


def as_metric(given: Any) -> Metric | Meter:
    """Returns a metric or meter as it is and a `torchmetrics.Metric` in an adapter; raises for anything else.

    >>> from stoker import metrics
    >>> as_metric(metrics.Accuracy).name
    Traceback (most recent call last):
    stoker.errors.WrongType: a metric is an object, but Accuracy is a class: write Accuracy()
    """
    if isinstance(given, type):
        raise WrongType(f"a metric is an object, but {given.__name__} is a class: write {given.__name__}()")
    if isinstance(given, Metric | Meter):
        return given
    if any(each.__module__.startswith("torchmetrics") and each.__name__ == "Metric" for each in type(given).__mro__):
        return _adapt(given)
    if type(given).__name__ == "MetricCollection":
        raise WrongType("expected single metrics, got a MetricCollection: write metrics=[*collection.values()]")
    if isinstance(given, str):
        from stoker import metrics  # it imports this module

        known = {name.lower(): f"metrics.{name}()" for name in metrics.__all__ if name[0].isupper()}
        advice = f": write {known[given.lower()]}" if given.lower() in known else did_you_mean(given, known)
        raise WrongType(f"a metric is an object, not the name {given!r}{advice}")
    missing = [name for name in _CONTRACT if not hasattr(given, name)]
    if not missing:
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
    weights. `merge` does what the metric itself does across processes.
    """

    metric: Callable[..., Any] = field(kw_only=True)

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
        own.to(device)
        own.reset()
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
        own.update(*_read_arguments(self.name, own, output))
        return {**_extract_state(own), _COUNT: state[_COUNT] + 1}

    def merge(self, a: State, b: State) -> State:
        if not a[_COUNT] or not b[_COUNT]:
            return a if a[_COUNT] else b
        other = copy.deepcopy(self._load(b))
        own = self._load(a)
        for (_, mine), (_, theirs) in zip(_parts(own), _parts(other), strict=True):
            for name, value in mine.metric_state.items():
                values = [value, getattr(theirs, name)]
                setattr(mine, name, _reduce(mine, name, values, [int(a[_COUNT]), int(b[_COUNT])]))
        return {**_extract_state(own), _COUNT: a[_COUNT] + b[_COUNT]}

    def compute(self, state: State) -> Value:
        if not state[_COUNT]:
            return float("nan")
        return _to_plain(self._load(state).compute())

    def _load(self, state: State) -> Any:
        """The torchmetrics object with this state. It works in place, so it gets copies."""
        own: Any = self.metric
        for prefix, part in _parts(own):
            part.reset()
            part._update_count, part._computed = int(state[_COUNT]), None
            for name, value in part.metric_state.items():
                if isinstance(value, list):
                    start = f"{prefix}{name}."
                    indices = sorted(int(key.removeprefix(start)) for key in state if key.startswith(start))
                    setattr(part, name, [state[f"{start}{index}"].to(part.device) for index in indices])
                else:  # states of other processes are on the host
                    setattr(part, name, state[prefix + name].to(part.device, copy=True))
        return own


def _adapt(metric: Any) -> Torchmetric:
    """Wraps a copy, so that the user's metric stays unchanged."""
    own = copy.deepcopy(metric)
    for _, part in _parts(own):
        part.distributed_available_fn = _return_false  # stoker merges the states; `compute` must not gather them again
    return Torchmetric(metric=own, name=to_snake_case(type(metric).__name__))


def _return_false() -> bool:
    return False


def _parts(metric: Any) -> Iterator[tuple[str, Any]]:
    """The metric and those inside it (of wrappers), with a prefix for their states."""
    for name, module in metric.named_modules():
        if hasattr(module, "metric_state"):
            yield (f"{name}." if name else ""), module


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


def _extract_state(metric: Any) -> State:
    state: State = {}
    for prefix, part in _parts(metric):
        for name, value in part.metric_state.items():
            if isinstance(value, list):
                state.update({f"{prefix}{name}.{index}": each for index, each in enumerate(value)})
            else:
                state[prefix + name] = value
    return state


def _read_arguments(name: str, metric: Any, output: Any) -> tuple[Tensor, Tensor]:
    """Scores and targets in the layout that torchmetrics expects."""
    scores, targets = read_pair(output)
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
        raise WrongType(
            f"{name} needs scores (or predictions) and targets that are tensors, which {type(output).__name__} does "
            "not have: return an output that has them from train_step"
        )
    mask = getattr(output, "mask", None)
    if mask is not None:
        scores, targets = scores[mask], targets[mask]
    elif hasattr(output, "weights_shape") and targets.shape == scores.shape[:-1] != output.logits.shape[:1]:
        scores, targets = scores.flatten(0, -2), targets.flatten()
    if scores.numel() == targets.numel():
        scores = scores.reshape(targets.shape)  # one score per sample: [n, 1] and [n]
    if type(metric).__module__.startswith("torchmetrics.classification") and targets.is_floating_point():
        targets = targets.long()  # losses take floats for yes and no, torchmetrics integers
    return scores, targets


def _to_plain(value: Any) -> Value:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): float(each) for name, each in value.items()}
    return [_to_plain(each) for each in value] if isinstance(value, tuple | list) else float(value)
