"""What the screen shows at one moment, as immutable values, and the thread that reads it from the disk."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple

import numpy as np

from stoker._text import escape_control, format_time
from stoker.errors import StokerError
from stoker.record import Action, Follower, Points, Status, flatten_config, group_by_metric, line_styles, use_log_scale
from stoker.view._chart import Line
from stoker.view._tables import DataSets, MetricRow, data_sets, metric_rows

Kind = Literal["history", "recent", "epochs"]
KINDS: tuple[Kind, ...] = ("history", "recent", "epochs")
SMOOTHING = (0.0, 0.01, 0.03, 0.1, 0.3)  # a smoothed point is the mean of this part of a line's points
# The colors of lines, the same in every chart of stoker; color-blind people can tell them apart.
TRAIN, VALID, *OTHERS = (style.color for style in line_styles(["train", "valid", *"abcde"]).values())
_MAX_POINTS = 2000  # of a line: more than a screen has dots
_RECENT_POINTS = 300  # about five minutes
_MAX_LINES = 12
_MAX_CHARTS = 6
_INTERVAL = 0.5  # seconds between two reads
_SLICE = 0.2  # seconds of reading before something is shown
_STALLED_AFTER = 3.0  # seconds without an answer of the disk


@dataclass(frozen=True, slots=True)
class View:
    """What the user wants to see: which metric, drawn how, of which run."""

    tab: str = ""  # an unknown tab means the first one
    kind: Kind = "history"
    smoothing: int = 0  # index into SMOOTHING
    log: bool | None = None  # None: decided by the values
    by: Literal["update", "time"] = "update"
    run: int = 0  # the run whose status, log and progress are shown


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
    plan: Sequence[str]
    settings: Sequence[tuple[str, str]]  # config and environment by dotted name
    sets: DataSets
    rows: Sequence[MetricRow]
    epochs: int  # complete ones
    warnings: int
    log: Sequence[str]


class ChartLines(NamedTuple):
    """The lines of one chart."""

    title: str
    lines: Sequence[Line]
    log: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Some runs at one moment, and the charts from the chosen one on; as many are drawn as fit."""

    view: View
    runs: Sequence[RunSnapshot]
    tabs: Sequence[str]
    tab: str
    charts: Sequence[ChartLines]

    @property
    def lines(self) -> Sequence[Line]:
        """The lines of the chosen chart."""
        return self.charts[0].lines if self.charts else ()

    @property
    def log(self) -> bool:
        """Whether the chosen chart has a logarithmic y axis."""
        return bool(self.charts) and self.charts[0].log

    @property
    def run(self) -> RunSnapshot:
        """The run whose status is shown."""
        return self.runs[self.view.run % len(self.runs)]


def take_snapshot(followers: Sequence[Follower], view: View) -> Snapshot:
    """The current state of the runs, with the chart of this view."""
    names = list(dict.fromkeys(name for follower in followers for name in follower.names))
    # One run has a chart per metric, several runs a chart per name.
    charts = {name: [name] for name in names} if len(followers) > 1 else group_by_metric(names)
    tab = view.tab if view.tab in charts else next(iter(charts), "")
    labels = _distinct_names([follower.path for follower in followers])
    titles = list(charts)
    first = titles.index(tab) if tab else 0
    shown = [*titles[first:], *titles[:first]][:_MAX_CHARTS]
    drawn = [_chart_lines(followers, title, charts[title][:_MAX_LINES], labels, view) for title in shown]
    runs = [_run_snapshot(follower, label) for follower, label in zip(followers, labels, strict=True)]
    return Snapshot(view, runs, titles, tab, drawn)


def _distinct_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that tell them apart.

    >>> _distinct_names([Path("runs/a/x"), Path("runs/b/x"), Path("runs/y")])
    ['a/x', 'b/x', 'y']
    """
    names = [path.name for path in paths]
    for count in range(2, max((len(path.parts) for path in paths), default=0) + 1):
        taken = [names.count(name) > 1 for name in names]
        names = [
            str(Path(*path.parts[-count:])) if again else name
            for path, name, again in zip(paths, names, taken, strict=True)
        ]
    return names


def _chart_lines(
    followers: Sequence[Follower], title: str, names: Sequence[str], labels: Sequence[str], view: View
) -> ChartLines:
    lines, log = _lines(followers, names, labels, view), view.log if title == view.tab or not view.tab else None
    if log is None:
        falls = any(follower.direction(name) == "min" for follower in followers for name in names)
        log = falls and use_log_scale(value for line in lines for value in line.y.tolist())
    return ChartLines(title, lines, log)


def _run_snapshot(follower: Follower, label: str) -> RunSnapshot:
    begin: Mapping[str, Any] = follower.begin.extra if follower.begin is not None else {}
    parameters, device, status = begin.get("parameters"), begin.get("device"), follower.status
    count = f"{parameters:,} parameters" if isinstance(parameters, int) and parameters else ""
    sets = data_sets(status.latest, begin.get("monitor"), begin.get("valid"))
    return RunSnapshot(
        name=label,
        path=str(follower.path),
        state=follower.state,
        reason=follower.reason,
        problem=follower.problem,
        behind=follower.has_unread,
        status=status,
        title=", ".join(filter(None, [str(begin.get("model") or ""), count, f"on {device}" if device else ""])),
        plan=[str(line) for line in begin.get("plan") or ()],
        settings=list(_settings(follower)),
        sets=sets,
        rows=metric_rows(follower, status.latest, sets, status.current),
        epochs=follower.summary["epochs"],
        warnings=follower.summary["warnings"],
        log=follower.log,
    )


def _settings(follower: Follower) -> Iterator[tuple[str, str]]:
    yield from ((name, str(value)) for name, value in flatten_config(follower.config, "config") if value is not None)
    for name, value in flatten_config(follower.facts):
        if name == "command" and isinstance(value, list):
            yield name, " ".join(map(str, value))
        elif name == "started":
            yield name, format_time(value) or str(value)
        elif name != "plan" and value is not None:  # the plan is shown in its own pane
            yield name, str(value)


def _lines(followers: Sequence[Follower], names: Sequence[str], labels: Sequence[str], view: View) -> list[Line]:
    """The thinned lines of a chart; if they are smoothed, the original ones are a faint background without names."""
    lines: list[Line] = []
    styles = line_styles(names)
    for number, (follower, label) in enumerate(zip(followers, labels, strict=True)):
        for name in names:
            points = _points(follower, name, view)
            if not len(points):
                continue
            x = points.epoch if view.kind == "epochs" else points.update
            if view.kind != "epochs" and view.by == "time":
                x = points.time - (follower.begin.time if follower.begin else points.time[0])
            style = styles[name].color if number == 0 else OTHERS[(number - 1) % len(OTHERS)]
            lines.append(Line(escape_control(label if len(followers) > 1 else name), x, points.value, style))
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


def _keep_recent(lines: list[Line]) -> list[Line]:
    """The part of all lines from where the longest has its last points."""
    since = min((float(line.x[-_RECENT_POINTS:][0]) for line in lines if len(line.x) > _RECENT_POINTS), default=-np.inf)
    return [Line(line.name, line.x[line.x >= since], line.y[line.x >= since], line.style) for line in lines]


def _smooth(values: np.ndarray, part: float) -> np.ndarray:
    """The mean of the finite values around each value, over `part` of all; values that are not finite stay.

    >>> _smooth(np.array([0.0, 3.0, 0.0, 3.0, np.nan, 3.0]), 0.5).tolist()
    [1.5, 1.0, 2.0, 1.5, nan, 3.0]
    """
    half = max(1, round(part * len(values))) // 2
    known = np.isfinite(values)
    index = np.arange(len(values))
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
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


class Answer(NamedTuple):
    """What happened to a request."""

    text: str
    is_error: bool


class Reader:
    """A daemon thread that follows runs.

    It calls `report` with a snapshot whenever something changed, with an answer after a request to a run, and with an
    exception if reading fails unexpectedly.
    """

    def __init__(
        self, followers: Sequence[Follower], report: Callable[[Snapshot | Answer | BaseException], object]
    ) -> None:
        self.followers = followers
        self._report = report
        self._view = View()
        self._reading_since: float | None = None  # monotonic time
        self._requests: SimpleQueue[tuple[int, Action]] = SimpleQueue()
        self._wake_up = threading.Event()
        self._closed = False
        # A daemon instead of one of Textual's workers: those are joined at exit, and a dead disk would block `q`.
        self._thread = threading.Thread(target=self._run, name="stoker watch", daemon=True)

    def start(self) -> None:
        """Starts reading."""
        self._thread.start()

    def set_view(self, view: View) -> None:
        """Takes the following snapshots in this view."""
        self._view = view
        self._wake_up.set()

    def request(self, run: int, action: Action) -> None:
        """Asks a run to stop or to save; the answer is reported when the disk has taken the request."""
        self._requests.put((run, action))
        self._wake_up.set()

    def close(self) -> None:
        """Ends the thread without waiting for it."""
        self._closed = True
        self._wake_up.set()

    @property
    def seconds_stalled(self) -> float:
        """The seconds that the disk has not answered; 0 if that is not unusually long."""
        since = self._reading_since
        waited = time.monotonic() - since if since is not None else 0.0
        return waited if waited > _STALLED_AFTER else 0.0

    def _run(self) -> None:
        shown: View | None = None
        try:
            while not self._closed:
                self._wake_up.clear()
                self._reading_since = time.monotonic()
                self._send_requests()
                changed = [follower.refresh(seconds=_SLICE) for follower in self.followers]
                view = self._view
                snapshot = take_snapshot(self.followers, view) if any(changed) or view != shown else None
                self._reading_since = None
                if snapshot is not None:
                    shown = view
                    self._report(snapshot)
                if not any(follower.has_unread for follower in self.followers):
                    self._wake_up.wait(_INTERVAL)
        except BaseException as error:
            self._report(error)

    def _send_requests(self) -> None:
        while not self._requests.empty():
            run, action = self._requests.get()
            follower = self.followers[run]
            try:
                follower.request(action, by="watch")
                self._report(Answer(f"asked {follower.name} to {action} after the current update", is_error=False))
            except (StokerError, OSError) as error:
                self._report(Answer(str(error), is_error=True))
