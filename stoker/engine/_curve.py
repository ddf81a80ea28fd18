"""The curves of a fit: means of the losses over windows of updates, and the learning rates."""

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from stoker.engine._totals import RunningTotals, TotalsReading

_POINTS = 100  # updates that are a point each; after them, a window has 1/100 of the updates so far
_PENDING = 64  # readings that may be in flight from the device


class Curve:
    """Collects points of the training: where it was, the mean losses since the point before, and the learning rates.

    A window is the updates between two points; it is not an accumulation window. Where points are depends on the number
    of updates only, so a resumed fit has the same ones. A window may reach over the end of an epoch, where the totals
    start again: `_offset` plus the totals is the sum and the weight of each loss in the open window.
    """

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}  # the values of the newest point
        self._update = 0  # of the newest point
        self._offset: dict[str, tuple[float, float]] = {}
        self._pending: deque[tuple[int, float, dict[str, float], TotalsReading]] = deque()
        self._points: list[tuple[int, float, dict[str, float]]] = []

    def add_if_due(self, totals: RunningTotals, update: int, lr: Any) -> None:
        """Adds a point after an update if its window is long enough; does not wait for the device."""
        if update >= self.next_point and self._has_room():
            self._update = update
            self._pending.append((update, time.time(), _rates(lr), TotalsReading(totals)))

    @property
    def next_point(self) -> int:
        """The update after which the next point is due."""
        return self._update + max(1, self._update // _POINTS)

    def _has_room(self) -> bool:
        """Whether another reading may be in flight; if the device is far behind, the window gets longer."""
        if len(self._pending) >= _PENDING:
            self._collect(wait=False)
        return len(self._pending) < _PENDING

    def take(self, *, wait: bool = False) -> dict[str, Any]:
        """Returns the points that are new as columns for the record; with `wait`, also those still on the device."""
        self._collect(wait=wait)
        points, self._points = self._points, []
        if not points:
            return {}
        names = dict.fromkeys(name for _, _, values in points for name in values)
        return {
            "update": [update for update, _, _ in points],
            "time": [round(at, 3) for _, at, _ in points],
            "values": {name: [values.get(name, float("nan")) for _, _, values in points] for name in names},
        }

    def _collect(self, *, wait: bool) -> None:
        while self._pending and (wait or self._pending[0][3].has_arrived()):
            update, at, rates, reading = self._pending.popleft()
            sums = reading.sums()
            values = self._means(sums)
            self._offset = {name: (-total, -weight) for name, (total, weight) in sums.items()}
            self.latest = {**values, **rates}
            self._points.append((update, at, self.latest))

    def end_epoch(self, totals: RunningTotals) -> None:
        """Before the totals start again: the open window continues in the next epoch."""
        self._collect(wait=True)
        ends = TotalsReading(totals).sums()
        known = {name: self._offset.get(name, (0.0, 0.0)) for name in {**self._offset, **ends}}
        self._offset = {name: _add(pair, ends.get(name, (0.0, 0.0))) for name, pair in known.items()}

    def end(self, update: int, lr: Any) -> None:
        """At the end of the fit, after `end_epoch`: the open window becomes a point, however short it is."""
        self._collect(wait=False)
        values = self._means({})
        if update > self._update and values and not self._pending:
            self._update, self.latest = update, {**values, **_rates(lr)}
            self._points.append((update, time.time(), self.latest))
            self._offset = {}

    def state(self) -> dict[str, Any]:
        """The open window, in plain values: a resumed fit restores it, and the totals from the checkpoint."""
        return {"update": self._update, "offset": {name: list(pair) for name, pair in self._offset.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state`."""
        self._update = int(state["update"])
        self._offset = {name: (float(total), float(weight)) for name, (total, weight) in state["offset"].items()}

    def begin_window(self, totals: RunningTotals, update: int) -> None:
        """Begins a window after this update, if no `state` is known."""
        self._update = update
        self._offset = {name: (-total, -weight) for name, (total, weight) in TotalsReading(totals).sums().items()}

    def _means(self, sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
        """The means over the open window, given the totals now."""
        window = {
            name: _add(sums.get(name, (0.0, 0.0)), self._offset.get(name, (0.0, 0.0)))
            for name in {**self._offset, **sums}
        }
        return {f"train/{name}": total / weight for name, (total, weight) in window.items() if weight > 0}


def _add(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return a[0] + b[0], a[1] + b[1]


def _rates(lr: Any) -> dict[str, float]:
    """The learning rates by name, as the `LearningRate` meter names them."""
    rates = {f"lr/{pattern}": rate for pattern, rate in lr.items()} if isinstance(lr, Mapping) else {"lr": lr}
    return {name: float(rate) for name, rate in rates.items() if isinstance(rate, int | float)}
