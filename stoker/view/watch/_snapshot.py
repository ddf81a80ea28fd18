"""What the screen shows at one moment: immutable values, read in the reader's thread and drawn in the screen's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stoker._text import escape_control, format_time
from stoker.record import Best, Follower, Points, Status, flatten_config, group_by_metric, line_styles, use_log_scale
from stoker.view.console import Line

Kind = Literal["history", "recent", "epochs"]
KINDS: tuple[Kind, ...] = ("history", "recent", "epochs")
SMOOTHING = (0.0, 0.01, 0.03, 0.1, 0.3)  # a smoothed point is the mean of this part of a line's points
# The colors of lines, the same in every chart of stoker; color-blind people can tell them apart.
TRAIN, VALID, *OTHERS = (style.color for style in line_styles(["train", "valid", *"abcde"]).values())
_MAX_POINTS = 2000  # of a line: more than a screen has dots
_RECENT_POINTS = 300  # about five minutes
_MAX_LINES = 12


@dataclass(frozen=True, slots=True)
class View:
    """What the user wants to see: which metric, drawn how, of which run."""

    tab: str = ""  # an unknown tab means the first one
    kind: Kind = "history"
    smoothing: int = 0  # index into SMOOTHING
    log: bool | None = None  # None: decided by the values
    by: Literal["update", "time"] = "update"
    run: int = 0  # the run whose status, log and progress are shown

    def with_tab(self, tab: str) -> "View":
        return replace(self, tab=tab, log=None)

    def move_tab(self, by: int, tabs: Sequence[str]) -> "View":
        if not tabs:
            return self
        return self.with_tab(tabs[((tabs.index(self.tab) if self.tab in tabs else 0) + by) % len(tabs)])

    def move_kind(self, by: int) -> "View":
        return replace(self, kind=KINDS[(KINDS.index(self.kind) + by) % len(KINDS)])

    def change_smoothing(self, by: int) -> "View":
        return replace(self, smoothing=min(max(0, self.smoothing + by), len(SMOOTHING) - 1))

    def toggle_x_axis(self) -> "View":
        return replace(self, by="time" if self.by == "update" else "update")


@dataclass(frozen=True, slots=True)
class Row:
    """A metric's latest values by data set and its best value; a value that belongs to no set has the key ""."""

    name: str
    values: Mapping[str, float]
    best: Best | None
    unit: str


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """One run at one moment."""

    name: str
    path: str
    state: str
    reason: str
    problem: str
    behind: bool  # the file is large and not read to its end yet
    status: Status
    title: str
    plan: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]  # config and environment by dotted name
    sets: tuple[str, ...]
    rows: tuple[Row, ...]
    warnings: int
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Some runs at one moment, and the lines of the chart that the view asks for."""

    view: View
    runs: tuple[RunSnapshot, ...]
    tabs: tuple[str, ...]
    tab: str
    lines: tuple[Line, ...]
    log: bool

    @property
    def run(self) -> RunSnapshot:
        """The run whose status is shown."""
        return self.runs[self.view.run % len(self.runs)]

    def keep_speeds(self, before: "Snapshot | None") -> "Snapshot":
        """Fills in the previous samples per second for runs that don't report it, as between two epochs."""
        if before is None:
            return self
        runs = []
        for run, old in zip(self.runs, before.runs, strict=True):
            if run.state == "running" and run.status.samples_per_second is None:
                run = replace(run, status=replace(run.status, samples_per_second=old.status.samples_per_second))
            runs.append(run)
        return replace(self, runs=tuple(runs))


def take_snapshot(followers: Sequence[Follower], view: View) -> Snapshot:
    """The current state of the runs, with the chart of this view."""
    charts = _charts(followers)
    tab = view.tab if view.tab in charts else next(iter(charts), "")
    names, labels = charts.get(tab, []), _labels(followers)
    lines = _lines(followers, names, labels, view)
    log = view.log
    if log is None:
        falls = any(follower.direction(name) == "min" for follower in followers for name in names)
        log = falls and use_log_scale(value for line in lines for value in line.y.tolist())
    runs = tuple(_run_snapshot(follower, label) for follower, label in zip(followers, labels, strict=True))
    return Snapshot(view, runs, tuple(charts), tab, tuple(lines), log)


def _run_snapshot(follower: Follower, label: str) -> RunSnapshot:
    begin: Mapping[str, Any] = follower.begin.extra if follower.begin is not None else {}
    parameters, device, latest = begin.get("parameters"), begin.get("device"), follower.status.latest
    count = f"{parameters:,} parameters" if isinstance(parameters, int) and parameters else ""
    sets = _sets(latest)
    return RunSnapshot(
        name=label,
        path=str(follower.path),
        state=follower.state,
        reason=follower.reason,
        problem=follower.problem,
        behind=follower.has_unread,
        status=follower.status,
        title=", ".join(filter(None, [str(begin.get("model") or ""), count, f"on {device}" if device else ""])),
        plan=tuple(map(str, begin.get("plan") or ())),
        settings=tuple(_settings(follower)),
        sets=sets,
        rows=tuple(_rows(follower, latest, sets)),
        warnings=sum(event.kind == "warning" for event in follower.messages),
        log=tuple(follower.log),
    )


def _settings(follower: Follower) -> Iterator[tuple[str, str]]:
    yield from ((name, str(value)) for name, value in flatten_config(follower.config, "config") if value is not None)
    for name, value in flatten_config(follower.facts):
        if name == "command" and isinstance(value, list):
            yield name, " ".join(map(str, value))
        elif name in ("started", "imported.time"):
            yield name, format_time(value) or str(value)
        elif name != "plan" and value is not None:  # the plan is shown in its own pane
            yield name, str(value)


def _sets(latest: Mapping[str, float]) -> tuple[str, ...]:
    """The data sets with a loss, "train" first; without any loss, all groups of names."""
    groups = dict.fromkeys(name.partition("/")[0] for name in latest if "/" in name)
    with_loss = [group for group in groups if f"{group}/loss" in latest]
    return tuple(sorted(with_loss or groups, key=lambda group: group != "train"))


def _rows(follower: Follower, latest: Mapping[str, float], sets: Sequence[str]) -> Iterator[Row]:
    """A row per metric (per-class metrics left out), then a row per value that belongs to no data set."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in latest.items():
        group, _, metric = name.partition("/")
        if group not in sets or not metric:
            rows.setdefault(name, {})[""] = value
        elif "/" not in metric:
            rows.setdefault(metric, {})[group] = value
    for metric, values in sorted(rows.items(), key=lambda item: "" in item[1]):
        group = next(group for group in (*sets[1:], *sets[:1], "") if group in values)
        name = f"{group}/{metric}" if group else metric
        yield Row(metric, values, follower.best(name), follower.unit(name))


def _charts(followers: Sequence[Follower]) -> dict[str, list[str]]:
    """The charts and the names in each: for one run a chart per metric, for several runs a chart per name."""
    names = list(dict.fromkeys(name for follower in followers for name in follower.names))
    return {name: [name] for name in names} if len(followers) > 1 else group_by_metric(names)


def _labels(followers: Sequence[Follower]) -> list[str]:
    """The name of each run, or its path if another run has the same name."""
    names = [follower.name for follower in followers]
    return [name if names.count(name) == 1 else str(each.path) for name, each in zip(names, followers, strict=True)]


def _lines(followers: Sequence[Follower], names: Sequence[str], labels: Sequence[str], view: View) -> list[Line]:
    """The thinned lines of a chart; if they are smoothed, the original ones are a faint background without names."""
    lines: list[Line] = []
    styles = line_styles(names)
    for place, (follower, label) in enumerate(zip(followers, labels, strict=True)):
        for name in names[:_MAX_LINES]:
            points = _points(follower, name, view)
            if len(points):
                style = styles[name].color if place == 0 else OTHERS[(place - 1) % len(OTHERS)]
                text = escape_control(label if len(followers) > 1 else name)
                lines.append(Line(text, _x_values(follower, points, view), points.value, style))
    if view.kind == "recent":
        lines = _keep_recent(lines)
    part = SMOOTHING[view.smoothing]
    if part and view.kind != "epochs":
        background = [Line("", line.x, line.y, _mix_with_grey(line.style)) for line in lines]
        lines = [*background, *(Line(line.name, line.x, _smooth(line.y, part), line.style) for line in lines)]
    return [_thin(line) for line in lines]


def _points(follower: Follower, name: str, view: View) -> Points:
    if view.kind == "epochs":
        return follower.points(name, source="epochs")
    points, status = follower.points(name), follower.status
    if status.phase == "valid" and name.startswith(f"{status.set_name}/"):
        return points.select(points.update < status.update)  # a running validation has seen only a part of its set
    return points


def _x_values(follower: Follower, points: Points, view: View) -> NDArray[np.float64]:
    if view.kind == "epochs":
        return points.epoch
    if view.by == "time":
        return points.time - (follower.begin.time if follower.begin else points.time[0])
    return points.update


def _keep_recent(lines: list[Line]) -> list[Line]:
    """The part of all lines from where the longest has its last points."""
    since = min((float(line.x[-_RECENT_POINTS:][0]) for line in lines if len(line.x) > _RECENT_POINTS), default=-np.inf)
    return [Line(line.name, line.x[line.x >= since], line.y[line.x >= since], line.style) for line in lines]


def _smooth(values: NDArray[np.float64], part: float) -> NDArray[np.float64]:
    """The mean of the finite values around each value, over `part` of all; values that are not finite stay.

    >>> _smooth(np.array([0.0, 3.0, 0.0, 3.0, np.nan, 3.0]), 0.5).tolist()
    [1.5, 1.0, 2.0, 1.5, nan, 3.0]
    """
    half = max(1, round(part * len(values))) // 2
    known = np.isfinite(values)
    places = np.arange(len(values))
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
        counts = np.concatenate([[0], np.cumsum(known)])
        means = (sums[last] - sums[first]) / np.maximum(counts[last] - counts[first], 1)
    return np.where(known, means, values)


def _thin(line: Line) -> Line:
    points = Points(line.x, line.x, line.x, line.y).downsample(_MAX_POINTS)
    return Line(line.name, points.update, points.value, line.style)


def _mix_with_grey(color: str) -> str:
    """A color half way to grey, for the background.

    >>> _mix_with_grey("#0072B2")
    '#407999'
    """
    return "#" + "".join(f"{(int(color[at : at + 2], 16) + 128) // 2:02x}" for at in (1, 3, 5))
