"""A run's numbers as a table in plain columns: a column for each number, or a row for each point."""

from collections.abc import Mapping
from typing import Any, Literal

from stoker.record._follow import Follower
from stoker.record._points import Points

Source = Literal["epochs", "all", "running"]
Columns = dict[str, list[Any]]  # of one length; None where a row has nothing

_PLACE = ("epoch", "update", "time")


def by_row(follower: Follower, source: Source) -> Columns:
    """A row for each epoch, or for each update that has numbers, and a column for each number."""
    series = _series(follower, source)
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for name, points in series.items():
        seen: dict[int, int] = {}  # a number that comes twice at one update has a second row there
        for update, epoch, time, value in _each(points):
            at = epoch if source == "epochs" else update
            seen[at] = seen.get(at, -1) + 1
            row = rows.setdefault((at, seen[at]), {"epoch": 0, "update": 0, "time": 0.0})
            row.update(epoch=max(row["epoch"], epoch), update=max(row["update"], update), time=max(row["time"], time))
            row[_column(name)] = value
    ordered = [rows[at] for at in sorted(rows)]
    return {name: [row.get(name) for row in ordered] for name in [*_PLACE, *map(_column, series)]}


def by_point(follower: Follower, source: Source) -> Columns:
    """A row for each point of each number."""
    columns: Columns = {name: [] for name in ("name", *_PLACE, "value")}
    for name, points in _series(follower, source).items():
        for update, epoch, time, value in _each(points):
            for column, each in zip(columns.values(), (name, epoch, update, time, value), strict=True):
                column.append(each)
    return columns


def _series(follower: Follower, source: Source) -> Mapping[str, Points]:
    found = {name: follower.points(name, source=source) for name in follower.names}
    return {name: points for name, points in found.items() if len(points)}


def _each(points: Points) -> Any:
    whole = (points.update.astype(int).tolist(), points.epoch.astype(int).tolist())
    return zip(*whole, points.time.tolist(), points.value.tolist(), strict=True)


def _column(name: str) -> str:
    return f"number/{name}" if name in _PLACE else name
