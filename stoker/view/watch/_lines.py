"""The lines of one picture: a number of one run by its sets, or of several runs side by side."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.record import Follower, Points, group_by_metric, line_styles
from stoker.view.console import Line, visible
from stoker.view.watch._colours import OTHERS, faint
from stoker.view.watch._view import SMOOTHING, View

_MOST = 2000  # points of a line: more than there are dots on a screen
_RECENT = 300  # points: about five minutes
_LINES = 12  # more in one picture are left out


def tabs_of(followers: Sequence[Follower]) -> dict[str, list[str]]:
    """The pictures there are, each with the names of its numbers.

    Of one run, a metric is a picture with all its sets and classes; of several, each number is, with a line a run.
    """
    names = list(dict.fromkeys(name for follower in followers for name in follower.names))
    if len(followers) > 1:
        return {name: [name] for name in names}
    return group_by_metric(names)


def labels_of(followers: Sequence[Follower]) -> list[str]:
    """What to call each run: its name, or its path where two have one name."""
    names = [follower.name for follower in followers]
    return [name if names.count(name) == 1 else str(each.path) for name, each in zip(names, followers, strict=True)]


def lines_of(followers: Sequence[Follower], names: Sequence[str], view: View) -> list[Line]:
    """The lines to draw, thinned; where they are smoothed, the true ones lie faint and nameless below."""
    found: list[Line] = []
    styles, labels = line_styles(names), labels_of(followers)
    for place, follower in enumerate(followers):
        for name in names[:_LINES]:
            style = styles[name].color if place == 0 else OTHERS[(place - 1) % len(OTHERS)]
            points = _points(follower, name, view)
            if len(points):
                label = visible(labels[place] if len(followers) > 1 else name)
                found.append(Line(label, _across(follower, points, view), points.value, style))
    if view.kind == "recent":
        found = _recent(found)
    share = SMOOTHING[view.smoothing]
    if not share or view.kind == "epochs":
        return [_thinned(line) for line in found]
    below = [_thinned(Line("", line.x, line.y, faint(line.style))) for line in found]
    return [*below, *(_thinned(Line(line.name, line.x, smoothed(line.y, share), line.style)) for line in found)]


def smoothed(values: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """The mean of the values around each one, so many as are `share` of all; what is not finite stays as it is.

    >>> smoothed(np.array([0.0, 3.0, 0.0, 3.0, np.nan, 3.0]), 0.5).tolist()
    [1.5, 1.0, 2.0, 1.5, nan, 3.0]
    """
    half = max(1, round(share * len(values))) // 2
    known = np.isfinite(values)
    places = np.arange(len(values))
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
        counts = np.concatenate([[0], np.cumsum(known)])
        means = (sums[last] - sums[first]) / np.maximum(counts[last] - counts[first], 1)
    return np.where(known, means, values)


def _points(follower: Follower, name: str, view: View) -> Points:
    if view.kind == "epochs":
        return follower.points(name, source="epochs")
    points, status = follower.points(name), follower.status
    if status.phase == "valid" and name.startswith(f"{status.set_name}/"):
        return points.at(points.update < status.update)  # what a validation says on the way is of a part of its set
    return points


def _across(follower: Follower, points: Points, view: View) -> NDArray[np.float64]:
    if view.kind == "epochs":
        return points.epoch
    if view.by == "time":
        return points.time - (follower.begin.time if follower.begin else points.time[0])
    return points.update


def _recent(lines: list[Line]) -> list[Line]:
    """The latest part of all lines, from where the longest has its last points."""
    since = min((float(line.x[-_RECENT:][0]) for line in lines if len(line.x) > _RECENT), default=-np.inf)
    if not np.isfinite(since):
        return lines
    return [Line(line.name, line.x[line.x >= since], line.y[line.x >= since], line.style) for line in lines]


def _thinned(line: Line) -> Line:
    points = Points(line.x, line.x, line.x, line.y).thinned(_MOST)
    return Line(line.name, points.update, points.value, line.style)
