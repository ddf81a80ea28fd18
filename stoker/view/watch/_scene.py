"""All that a screen shows at a moment, read off the runs: values that no reading can change under the drawing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.record import Best, Follower, Status, flat, use_log_scale, when
from stoker.view.console import Line
from stoker.view.watch._lines import labels_of, lines_of, tabs_of
from stoker.view.watch._view import View


@dataclass(frozen=True, slots=True)
class Row:
    """A metric's latest numbers by set, and the best that it had; a number of no set stands under ""."""

    name: str
    values: Mapping[str, float]
    best: Best | None
    unit: str


@dataclass(frozen=True, slots=True)
class Glance:
    """One run at a moment."""

    name: str
    path: str
    state: str
    reason: str
    problem: str
    behind: bool
    status: Status
    title: str
    plan: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]  # of the config and of what ran, by dotted name
    sets: tuple[str, ...]
    rows: tuple[Row, ...]
    warnings: int
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """Some runs at a moment, with the lines of the picture that was asked for."""

    view: View
    runs: tuple[Glance, ...]
    tabs: tuple[str, ...]
    tab: str
    lines: tuple[Line, ...]
    log: bool

    @property
    def run(self) -> Glance:
        """The run whose status is shown."""
        return self.runs[self.view.run % len(self.runs)]

    def after(self, before: "Scene | None") -> "Scene":
        """With the speeds of the scene before in the place of those that nobody says just now: between two epochs."""
        if before is None:
            return self
        pairs = zip(self.runs, before.runs, strict=True)
        return replace(self, runs=tuple(_at_speed(run, known.status.samples_per_second) for run, known in pairs))


def scene_of(followers: Sequence[Follower], view: View) -> Scene:
    """What these runs look like now, in this view."""
    tabs = tabs_of(followers)
    tab = view.tab if view.tab in tabs else next(iter(tabs), "")
    names = tabs.get(tab, [])
    lines = lines_of(followers, names, view)
    log = _calls_for_log(followers, names, lines) if view.log is None else view.log
    labels = labels_of(followers)
    runs = tuple(glance(follower, label) for follower, label in zip(followers, labels, strict=True))
    return Scene(view, runs, tuple(tabs), tab, tuple(lines), log)


def glance(follower: Follower, label: str) -> Glance:
    """One run as it stands."""
    latest = follower.status.latest
    return Glance(
        name=label,
        path=str(follower.path),
        state=follower.state,
        reason=follower.reason,
        problem=follower.problem,
        behind=follower.behind,
        status=follower.status,
        title=_title(follower),
        plan=tuple(map(str, _begun(follower).get("plan") or ())),
        settings=tuple(_settings(follower)),
        sets=_sets(latest),
        rows=tuple(_rows(follower, latest)),
        warnings=sum(event.kind == "warning" for event in follower.said),
        log=tuple(follower.log),
    )


def _at_speed(run: Glance, known: float | None) -> Glance:
    if run.state != "running" or run.status.samples_per_second is not None:
        return run
    return replace(run, status=replace(run.status, samples_per_second=known))


def _begun(follower: Follower) -> Mapping[str, Any]:
    return follower.begin.extra if follower.begin is not None else {}


def _title(follower: Follower) -> str:
    """What is trained, and where: `Net, 1,234 parameters, on cpu`."""
    begun = _begun(follower)
    parameters = begun.get("parameters")
    count = f"{parameters:,} parameters" if isinstance(parameters, int) and parameters else ""
    device = f"on {begun['device']}" if begun.get("device") else ""
    return ", ".join(filter(None, [str(begun.get("model") or ""), count, device]))


def _settings(follower: Follower) -> Iterator[tuple[str, str]]:
    yield from ((name, str(value)) for name, value in flat(follower.config, "config") if value is not None)
    for name, value in flat(follower.facts):
        if name == "command" and isinstance(value, list):
            yield name, " ".join(map(str, value))
        elif name in ("started", "imported.time"):
            yield name, when(value) or str(value)
        elif name != "plan" and value is not None:  # the plan has a place of its own
            yield name, str(value)


def _sets(latest: Mapping[str, float]) -> tuple[str, ...]:
    """The sets that have a loss, "train" first; else those that have any number."""
    groups = dict.fromkeys(name.partition("/")[0] for name in latest if "/" in name)
    judged = [group for group in groups if f"{group}/loss" in latest]
    return tuple(sorted(judged or groups, key=lambda group: group != "train"))


def _rows(follower: Follower, latest: Mapping[str, float]) -> Iterator[Row]:
    """A row a metric, without those that hold one number a class, and then a row for each number of no set."""
    sets = _sets(latest)
    found: dict[str, dict[str, float]] = {}
    for name, value in latest.items():
        group, _, metric = name.partition("/")
        if group in sets and metric:
            if "/" not in metric:
                found.setdefault(metric, {})[group] = value
        else:
            found.setdefault(name, {})[""] = value
    for metric, values in sorted(found.items(), key=lambda item: "" in item[1]):
        judged = [f"{group}/{metric}" if group else metric for group in (*sets[1:], *sets[:1], "") if group in values]
        yield Row(metric, values, follower.best(judged[0]), follower.unit(judged[0]))


def _calls_for_log(followers: Sequence[Follower], names: Sequence[str], lines: Sequence[Line]) -> bool:
    """Whether numbers that should fall span more than a line can show: a loss from 9 down to 0.01."""
    falls = any(follower.direction(name) == "min" for follower in followers for name in names)
    return falls and use_log_scale(value for line in lines for value in line.y.tolist())
