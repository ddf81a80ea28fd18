"""The numbers of one phase: the losses, weighed by samples, and the metrics; on the device until somebody asks."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stoker.data import RowSelection
from stoker.errors import StateMismatch
from stoker.metrics import Metric, flatten_value, weight_of
from stoker.steps import Output

HOST = torch.device("cpu")


class Mark(NamedTuple):
    """What a tally has added up at some moment."""

    states: list[Any]
    sums: dict[str, float | Tensor]
    weights: dict[str, float | Tensor]
    samples: int


class Later:
    """Losses that were asked for, and can be read once the device has come to them."""

    __slots__ = ("_event", "_names", "_values")

    def __init__(self, phase: str, sums: Mapping[str, float | Tensor], weights: Mapping[str, float | Tensor]) -> None:
        self._names = [f"{phase}/{name}" for name in sums]
        pairs = [(total, weights[name]) for name, total in sums.items()]
        away = any(isinstance(each, Tensor) and each.device.type == "cuda" for pair in pairs for each in pair)
        self._event = torch.cuda.Event() if away else None
        self._values = [(_sent(total), _sent(weight)) for total, weight in pairs]
        if self._event is not None:
            self._event.record()

    def is_here(self) -> bool:
        """Whether the numbers have arrived."""
        return self._event is None or self._event.query()

    def values(self) -> dict[str, float]:
        """The numbers, as `phase/name`."""
        return {name: _mean(*pair) for name, pair in zip(self._names, self._values, strict=True)}


def _counts(metric: Metric) -> Any:
    return getattr(metric, "counts", None)  # anything that has a metric's other names is one


def _sent(value: float | Tensor) -> float | Tensor:
    if not isinstance(value, Tensor) or value.device.type != "cuda":
        return value.item() if isinstance(value, Tensor) else value
    return value.to("cpu", non_blocking=True)  # into pinned memory of torch's own


class Tally:
    """Adds up what the batches of a phase gave."""

    __slots__ = ("_device", "_held", "_metrics", "_states", "_sums", "_weights", "_where", "samples", "since")

    def __init__(self, metrics: Sequence[Metric], device: torch.device, where: Callable[[], str] = lambda: "") -> None:
        self._metrics, self._device, self._where = metrics, device, where
        self._held = False  # its tensors belong to a program, which changes them in place
        self.clear()

    def clear(self) -> None:
        """Starts anew, for another epoch."""
        self._held, self._states = False, list[Any]()
        made: dict[Any, Any] = {}  # one state for all that count the same
        for place, metric in enumerate(self._metrics):
            by = place if _counts(metric) is None else (_counts(metric),)
            if by not in made:
                made[by] = metric.init(self._device)
            self._states.append(made[by])
        self._sums: dict[str, float | Tensor] = {}
        self._weights: dict[str, float | Tensor] = {}
        self.samples, self.since = 0, time.monotonic()

    def add_loss(
        self, name: str, loss: Tensor, weight: float | Tensor, *, is_sum: bool = False, read: bool = True
    ) -> None:
        """A loss that is a mean over so much, or the sum of it, which is told as a mean all the same."""
        if is_sum:
            loss = loss / weight
        total: float | Tensor
        if read and loss.device.type == "cpu":  # nothing to wait for, and Python adds up in float64 as well
            share = float(weight)
            total = loss.item() * share if share else 0.0  # a loss over nothing is NaN, and counts for nothing
        else:
            wide = torch.float32 if loss.device.type == "mps" else torch.float64
            share, value = weight.to(wide) if isinstance(weight, Tensor) else weight, loss.detach().to(wide)
            total = value * share
            if isinstance(share, Tensor):
                total.masked_fill_(share <= 0, 0)
        own = self._sums.get(name), self._weights.get(name)
        if self._held and isinstance(own[0], Tensor) and isinstance(own[1], Tensor):
            own[0].add_(total)  # a program's own: a new one would have to be copied there
            own[1].add_(share)
            return
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._weights[name] = self._weights.get(name, 0.0) + share

    @torch.no_grad()
    def add(self, output: Output, *, static: bool | None = None) -> None:
        """What the metrics make of an output: all of them, or those whose state keeps its shapes, or the others."""
        done: dict[Any, Any] = {}  # of those that count the same from the same state on
        for place, metric in enumerate(self._metrics):
            if static is not None and is_static(metric) is not static:
                continue
            state, by = self._states[place], _counts(metric)
            if by is not None and (by, id(state)) in done:
                self._states[place] = done[by, id(state)][1]
                continue
            try:
                self._states[place] = metric.update(state, output)
            except Exception as error:
                error.add_note(f"in the metric {metric.name!r}{self._where()}")
                raise
            if by is not None:
                done[by, id(state)] = state, self._states[place]  # the old one too: its id stays its own

    def empty(self) -> "Tally":
        """Another one of the same metrics, that has counted nothing."""
        return Tally(self._metrics, self._device, self._where)

    @property
    def metrics(self) -> Sequence[Metric]:
        """What it counts beside the losses."""
        return self._metrics

    @property
    def losses(self) -> list[str]:
        """The names of the losses so far: "loss", or those of the objectives."""
        return list(self._sums)

    def values(self, phase: str, *, losses_only: bool = False) -> dict[str, float]:
        """The numbers so far, as `phase/name`; waits for the device."""
        found = {f"{phase}/{name}": _mean(total, self._weights[name]) for name, total in self._sums.items()}
        if not losses_only:
            for metric, state in zip(self._metrics, self._states, strict=True):
                found.update(flatten_value(f"{phase}/{metric.name}", metric.compute(state)))
        return found

    def later(self, phase: str) -> "Later":
        """The losses so far, on their way to the host; nothing waits for them."""
        return Later(phase, self._sums, self._weights)

    def mark(self) -> Mark:
        """What was added up so far; nothing in it changes later, and nothing waits for the device."""
        mark = Mark(list(self._states), dict(self._sums), dict(self._weights), self.samples)
        return Mark._make(_cloned(tuple(mark))) if self._held else mark

    def kept(self) -> dict[str, Any]:
        """What a step replaces: the sums, and the states of the metrics that keep their shapes."""
        states = zip(self._metrics, self._states, strict=True)
        return {
            "sums": self._sums,
            "weights": self._weights,
            "states": {metric.name: state for metric, state in states if is_static(metric)},
        }

    def hold(self, kept: Mapping[str, Any], *, own: bool = True) -> None:
        """Puts what `kept` gave in the place of what is there: a program's own tensors, which change in place."""
        self._sums, self._weights, self._held = dict(kept["sums"]), dict(kept["weights"]), own
        states = kept["states"]
        self._states = [
            states.get(metric.name, state) for metric, state in zip(self._metrics, self._states, strict=True)
        ]

    def as_tensors(self, names: Collection[str]) -> None:
        """The sums as tensors on the device, and zeros for the losses that are still to come."""
        for sums in (self._sums, self._weights):
            for name in (*sums, *(each for each in names if each not in sums)):
                value = sums.get(name, 0.0)
                if not isinstance(value, Tensor):  # filled there: a copy from the host would be waited for
                    sums[name] = torch.full((), value, dtype=torch.float64, device=self._device)
                elif value.device != self._device or value.dtype != torch.float64:
                    sums[name] = value.to(self._device, torch.float64)

    def state_dict(self, mark: Mark | None = None) -> dict[str, Any]:
        """What was added up so far, or up to a mark, as tensors and plain values that are no copies."""
        here = self.mark() if mark is None else mark
        states = dict(zip((metric.name for metric in self._metrics), here.states, strict=True))
        for name, state in states.items():
            if (odd := _odd(state)) is not None:
                raise StateMismatch(
                    f"the metric {name!r} keeps a {odd} in its state, which can't be saved; a state is made of tensors "
                    "and plain values, in mappings, lists and tuples"
                )
        return {
            "metrics": states,
            # Of a state on another device, what stays on the host all the same: a count that is looked at, say.
            "on_host": {} if self._device == HOST else {name: _on_host(state) for name, state in states.items()},
            "sums": here.sums,
            "weights": here.weights,
            "samples": here.samples,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken, with metrics of the same names; else it changes nothing."""
        expected, own = {"metrics", "on_host", "sums", "weights", "samples"}, [metric.name for metric in self._metrics]
        if not isinstance(state, Mapping) or set(state) != expected:
            raise StateMismatch(f"this is no state of a Tally, which has {', '.join(sorted(expected))}")
        if set(state["metrics"]) != set(own):
            saved = ", ".join(state["metrics"]) or "none"
            raise StateMismatch(f"the metrics have changed: {saved} in the state, {', '.join(own) or 'none'} here")
        self.clear()
        on_host = state["on_host"]
        self._states = [_copied(state["metrics"][name], self._device, on_host.get(name, ())) for name in own]
        self._sums, self._weights = _copied(state["sums"], self._device), _copied(state["weights"], self._device)
        self.samples = state["samples"]


def is_static(metric: Metric) -> bool:
    """Whether a metric's state keeps its shapes, so that it can be brought up to date inside of a program."""
    return bool(getattr(metric, "static", False))


def _cloned(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Mapping):
        return {name: _cloned(each) for name, each in value.items()}
    return type(value)(_cloned(each) for each in value) if isinstance(value, list | tuple) else value


def _odd(value: Any) -> str | None:
    """What in a state is neither a tensor nor a plain value, by its type."""
    if value is None or isinstance(value, Tensor | bool | int | float | str | bytes):
        return None
    if isinstance(value, Mapping) or type(value) in (list, tuple):
        parts = value.values() if isinstance(value, Mapping) else value
        return next((odd for each in parts if (odd := _odd(each)) is not None), None)
    return type(value).__name__


def _on_host(state: Any) -> list[str]:
    if not isinstance(state, Mapping):
        return []
    return [name for name, each in state.items() if (found := _first(each)) is not None and found.device == HOST]


def _copied(value: Any, device: torch.device, on_host: Collection[str] = ()) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, Mapping):
        return {name: _copied(each, HOST if name in on_host else device) for name, each in value.items()}
    return type(value)(_copied(each, device) for each in value) if isinstance(value, list | tuple) else value


def _mean(total: float | Tensor, weight: float | Tensor) -> float:
    whole = float(weight)
    return float(total) / whole if whole else float("nan")


def weight_in(output: Output, batch: Any, *, read: bool = True) -> float | Tensor:
    """How much a loss stands for: what the output says, or else the samples in the batch."""
    if not hasattr(output, "count") and not hasattr(output, "targets"):
        return samples_in(batch)
    weight = weight_of(output)
    # On the CPU there is nothing to wait for, and with a plain number the Accumulator has less to do.
    return weight.item() if read and isinstance(weight, Tensor) and weight.device.type == "cpu" else weight


def samples_in(batch: Any) -> int:
    """The length of the first tensor in a batch; 1 where there is none."""
    if isinstance(batch, RowSelection):
        return len(batch)
    found = _first(batch)
    return len(found) if found is not None and found.dim() else 1


def _first(batch: Any) -> Tensor | None:
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, tuple | list):
        parts = batch
    elif is_dataclass(batch):
        parts = [getattr(batch, field.name) for field in fields(batch)]
    else:
        return None
    return next((found for part in parts if (found := _first(part)) is not None), None)
