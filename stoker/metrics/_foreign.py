"""Any `torchmetrics.Metric` as one of ours: its state is taken out of it, and passed in and given back."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import torch
from torch import Tensor

from stoker.errors import InvalidArgument, WrongType
from stoker.metrics._metric import Direction, Metric, State, Value, worded
from stoker.metrics._reading import read_raw

COUNT = "updates"


class Torchmetric(Metric):
    """A `torchmetrics.Metric` at work in our contract; `as_metric` makes it.

    It gets the scores and targets of an output as they are, of a `SequenceOutput` those that the mask lets through; it
    knows no weights. `update` runs outside of any graph, and `merge` does what the metric itself does across processes.
    """

    metric: Callable[..., Any] = field(kw_only=True)

    @property
    def direction(self) -> Direction | None:  # pyright: ignore[reportIncompatibleVariableOverride]  the metric's own
        """What the metric says is better."""
        better = getattr(self.metric, "higher_is_better", None)
        return None if better is None else "max" if better else "min"

    @property
    def static(self) -> bool:
        """Never: torchmetrics checks values on the host."""
        return False

    def init(self, device: torch.device) -> State:
        own: Any = self.metric
        own.to(device)
        own.reset()
        return {**_taken(own), COUNT: torch.zeros((), dtype=torch.int64)}

    def update(self, state: State, output: Any) -> State:
        own = self._lent(state)
        if any(_is_stacked(part, name) for _, part in _parts(own) for name in part.metric_state):
            raise InvalidArgument(
                f"{self.name} keeps the parts of several processes side by side once they are merged, and can't go on "
                "from there: go on with as many processes as before, or from an epoch's end"
            )
        own.update(*_given(self.name, own, output))
        return {**_taken(own), COUNT: state[COUNT] + 1}

    def merge(self, a: State, b: State) -> State:
        if not a[COUNT] or not b[COUNT]:
            return a if a[COUNT] else b
        other = copy.deepcopy(self._lent(b))
        own = self._lent(a)
        for (_, mine), (_, theirs) in zip(_parts(own), _parts(other), strict=True):
            for name, value in mine.metric_state.items():
                parts = [value, getattr(theirs, name)]
                setattr(mine, name, _merged(mine, name, parts, [int(a[COUNT]), int(b[COUNT])]))
        return {**_taken(own), COUNT: a[COUNT] + b[COUNT]}

    def compute(self, state: State) -> Value:
        if not state[COUNT]:
            return float("nan")
        return _plain(self._lent(state).compute())

    def _lent(self, state: State) -> Any:
        """The metric, holding this state. It works in place, so what it holds is a copy."""
        own: Any = self.metric
        for prefix, part in _parts(own):
            part.reset()
            part._update_count, part._computed = int(state[COUNT]), None
            for name, value in part.metric_state.items():
                if isinstance(value, list):
                    pieces = sorted(
                        (int(key.rsplit(".", 1)[1]), each)
                        for key, each in state.items()
                        if key.startswith(f"{prefix}{name}.")
                    )
                    setattr(part, name, [each.to(part.device) for _, each in pieces])
                else:  # states of other processes come on the host
                    setattr(part, name, state[prefix + name].to(part.device, copy=True))
        return own


def adapted(metric: Any) -> Torchmetric:
    """A torchmetrics metric, left as it is: the adapter works on a copy."""
    own = copy.deepcopy(metric)
    for _, part in _parts(own):
        part.distributed_available_fn = _never  # states are merged by us: its `compute` would gather them once more
    return Torchmetric(metric=own, name=worded(type(metric).__name__))


def _never() -> bool:
    return False


def _parts(metric: Any) -> Iterator[tuple[str, Any]]:
    """The metric and those inside it (of wrappers), with the start of their names."""
    for name, module in metric.named_modules():
        if hasattr(module, "metric_state"):
            yield (f"{name}." if name else ""), module


def _merged(part: Any, name: str, values: list[Any], counts: list[int]) -> Any:
    """One state of two processes, as torchmetrics reduces it over processes; its own `merge_state` refuses many."""
    from torchmetrics.utilities.data import dim_zero_cat, dim_zero_mean

    reduction = part._reductions[name]
    if isinstance(values[0], list):
        return values[0] + values[1]
    if reduction is dim_zero_cat:
        return torch.cat(values)
    if reduction is None:  # side by side: what the metric's compute expects
        plain = part._defaults[name].ndim
        return torch.cat([each.unsqueeze(0) if each.ndim == plain else each for each in values])
    if reduction is dim_zero_mean:
        return sum(each * count for each, count in zip(values, counts, strict=True)) / sum(counts)
    return reduction(torch.stack(values))


def _is_stacked(part: Any, name: str) -> bool:
    """Whether a state that has no sum holds those of several processes."""
    value = getattr(part, name)
    return part._reductions[name] is None and isinstance(value, Tensor) and value.ndim > part._defaults[name].ndim


def _taken(metric: Any) -> State:
    state: State = {}
    for prefix, part in _parts(metric):
        for name, value in part.metric_state.items():
            if isinstance(value, list):
                state.update({f"{prefix}{name}.{place}": each for place, each in enumerate(value)})
            else:
                state[prefix + name] = value
    return state


def _given(who: str, metric: Any, output: Any) -> tuple[Tensor, Tensor]:
    scores, targets = read_raw(output)
    if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
        raise WrongType(
            f"{who} needs scores (or predictions) and targets that are tensors; {type(output).__name__} has none: "
            "return a fitting output from train_step"
        )
    mask = getattr(output, "mask", None)
    if mask is not None:
        scores, targets = scores[mask], targets[mask]
    elif hasattr(output, "counted") and targets.shape == scores.shape[:-1] != output.logits.shape[:1]:
        scores, targets = scores.flatten(0, -2), targets.flatten()
    if scores.numel() == targets.numel():
        scores = scores.reshape(targets.shape)  # one score a sample, [n, 1] and [n]
    if type(metric).__module__.startswith("torchmetrics.classification") and targets.is_floating_point():
        targets = targets.long()  # a loss wants floats for yes and no, torchmetrics integers
    return scores, targets


def _plain(value: Any) -> Value:
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): float(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else float(value)
