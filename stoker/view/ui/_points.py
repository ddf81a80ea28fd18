"""The points of a run's curves, no more of them than a screen can show."""

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from stoker.record import Points
from stoker.view.ui._json import text

Source = Literal["all", "epochs", "running"]
NONE = Points(*np.empty((4, 0)))


class Curves(Protocol):
    """What has curves: a run, or what is kept of one."""

    @property
    def names(self) -> list[str]: ...
    def points(self, name: str, *, source: Source = "all") -> Points: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """Which curves, over what, from where to where, and of how many points at most."""

    names: tuple[str, ...]
    most: int = 1000
    source: Source = "all"
    by: Literal["update", "epoch", "time"] = "update"
    start: float = -np.inf
    end: float = np.inf

    @property
    def is_whole(self) -> bool:
        """Whether it is for curves from their beginning to their end."""
        return self.start == -np.inf and self.end == np.inf


def series(run: Curves, wish: Wish) -> dict[str, dict[str, list[Any]]]:
    """The curves that were wished for, each as `x` (ascending) and `y` (None breaks the line)."""
    known = {text(name): name for name in run.names}
    return {name: _curve(run.points(known.get(name, name), source=wish.source), wish) for name in wish.names}


def _curve(points: Points, wish: Wish) -> dict[str, list[Any]]:
    points = ascending(points, wish.by)
    points = within(points, wish.by, wish.start, wish.end).downsample(wish.most)
    return {"x": _listed(getattr(points, wish.by)), "y": _listed(points.value)}


def ascending(points: Points, by: str) -> Points:
    """The points in order: the clock of a machine can be set back, and a curve over the time must not turn."""
    x = getattr(points, by)
    if bool(np.all(x[1:] >= x[:-1])):
        return points
    return points.select(np.argsort(x, kind="stable"))


def within(points: Points, by: str, start: float, end: float) -> Points:
    """The points from `start` to `end`, and the next one on either side, so that the line goes on to the edge."""
    x = getattr(points, by)
    first, last = int(np.searchsorted(x, start, "left")), int(np.searchsorted(x, end, "right"))
    if first == 0 and last == len(x):
        return points
    return points.select(np.arange(max(first - 1, 0), min(last + 1, len(x))))


def _listed(values: np.ndarray) -> list[Any]:
    """Plain numbers; whole ones without a fraction, which halves what is sent of them."""
    finite = np.isfinite(values)
    if not finite.all():
        return [value if fine else None for value, fine in zip(values.tolist(), finite.tolist(), strict=True)]
    whole = values.astype(np.int64) if bool(np.all(np.abs(values) < 2**53)) else None
    return whole.tolist() if whole is not None and bool(np.all(whole == values)) else values.tolist()
