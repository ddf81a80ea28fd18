"""The numbers of one phase: the losses, weighed by samples, and the metrics; on the device until somebody asks."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from stoker.metrics import Metric, named, weight_of
from stoker.step import Output


class Tally:
    """Adds up what the batches of a phase gave."""

    __slots__ = ("_device", "_metrics", "_states", "_sums", "_weights", "_where", "samples", "since")

    def __init__(self, metrics: Sequence[Metric], device: torch.device, where: Callable[[], str] = lambda: "") -> None:
        self._metrics, self._device, self._where = metrics, device, where
        self.clear()

    def clear(self) -> None:
        """Starts anew, for another epoch."""
        self._states = [metric.init(self._device) for metric in self._metrics]
        self._sums: dict[str, float | Tensor] = {}
        self._weights: dict[str, float | Tensor] = {}
        self.samples, self.since = 0, time.monotonic()

    def add_loss(self, name: str, loss: Tensor, weight: float | Tensor, *, is_sum: bool = False) -> None:
        """A loss that is a mean over so much, or the sum of it, which is told as a mean all the same."""
        if is_sum:
            loss = loss / weight
        total: float | Tensor
        if loss.device.type == "cpu":  # nothing to wait for, and Python adds up in float64 as well
            share = float(weight)
            total = loss.item() * share if share else 0.0  # a loss over nothing is NaN, and counts for nothing
        else:
            share, value = weight, loss.detach().to(torch.float32 if loss.device.type == "mps" else torch.float64)
            total = torch.where(share > 0, value * share, 0) if isinstance(share, Tensor) else value * share
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._weights[name] = self._weights.get(name, 0.0) + share

    @torch.no_grad()
    def add(self, output: Output) -> None:
        """What the metrics make of an output."""
        for place, metric in enumerate(self._metrics):
            try:
                self._states[place] = metric.update(self._states[place], output)
            except Exception as error:
                error.add_note(f"in the metric {metric.name!r}{self._where()}")
                raise

    @property
    def losses(self) -> list[str]:
        """The names of the losses so far: "loss", or those of the objectives."""
        return list(self._sums)

    def values(self, phase: str, *, losses_only: bool = False) -> dict[str, float]:
        """The numbers so far, as `phase/name`; waits for the device."""
        found = {f"{phase}/{name}": _mean(total, self._weights[name]) for name, total in self._sums.items()}
        if not losses_only:
            for metric, state in zip(self._metrics, self._states, strict=True):
                found.update(named(f"{phase}/{metric.name}", metric.compute(state)))
        return found


def _mean(total: float | Tensor, weight: float | Tensor) -> float:
    whole = float(weight)
    return float(total) / whole if whole else float("nan")


def weight_in(output: Output, batch: Any) -> float | Tensor:
    """How much a loss stands for: what the output says, or else the samples in the batch."""
    if not hasattr(output, "count") and not hasattr(output, "targets"):
        return samples_in(batch)
    weight = weight_of(output)
    # On the CPU there is nothing to wait for, and with a plain number the Accumulator has less to do.
    return weight.item() if isinstance(weight, Tensor) and weight.device.type == "cpu" else weight


def samples_in(batch: Any) -> int:
    """The length of the first tensor in a batch; 1 where there is none."""
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
