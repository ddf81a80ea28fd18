"""JSON for the browser: what a run's files hold, its row in the list, its details, and its curves."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal, NamedTuple

import numpy as np
from starlette.responses import Response

from stoker._text import escape_surrogates
from stoker.errors import BadFile, MissingFile
from stoker.record import (
    Annotations,
    Event,
    Follower,
    Points,
    Source,
    group_by_metric,
    list_checkpoints,
    read_annotations,
    run_settings,
)

MAX_MESSAGES = 1000  # in one answer: the last ones
_MAX_DEPTH = 64  # of nested mappings and lists
_CHECKPOINT_FIELDS = ("name", "update", "epoch", "reason", "bytes", "time")


class Row(dict[str, Any]):
    """A run in the list, of types that JSON has: `to_json` does not look into it again."""


def to_json(data: object) -> bytes:
    r"""A value as ASCII JSON that any browser reads.

    >>> to_json({"loss": [0.5, float("nan")], "name": "é"})
    b'{"loss":[0.5,null],"name":"\\u00e9"}'
    """
    return json.dumps(to_plain(data), separators=(",", ":"), allow_nan=False).encode()


def to_plain(value: Any, *, depth: int = 0) -> Any:
    """A value of types that JSON has; NaN and infinities become `None`."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | Row):
        return value
    if depth > _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {escape_surrogates(str(key)): to_plain(inner, depth=depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(inner, depth=depth + 1) for inner in value]
    return escape_surrogates(str(value))


class JsonResponse(Response):
    """A JSON answer that browsers don't cache."""

    media_type = "application/json"

    def __init__(self, content: Any = None, status_code: int = 200) -> None:
        super().__init__(content, status_code, headers={"cache-control": "no-store"})

    def render(self, content: Any) -> bytes:
        """Encodes the content."""
        return to_json(content)


def make_row(run_id: str, run: Follower) -> Row:
    """A run in the list: state, position, best and last values, settings.

    `directed` says of each number in `bests` whether less or more is better. `early` are numbers of an epoch that has
    not ended; they have curves, but no last value.
    """
    summary, status = run.summary, run.status
    best = summary.get("best")
    last = dict(summary.get("last") or {})
    found = {name: each for name in last if (each := run.best(name)) is not None}
    row = {
        "id": run_id,
        "name": run.name,
        **_make_annotations(run),
        "state": run.state,
        "reason": run.reason,
        "problem": run.problem,
        "began": summary.get("started"),
        "seconds": status.seconds,
        "epoch": summary["epochs"],
        "epochs": status.epochs,
        "update": status.update,
        "fraction": status.fraction,
        "best": {part: best[part] for part in ("name", "value", "epoch")} if best else None,
        "last": last,
        "bests": {name: each.value for name, each in found.items()},
        "directed": {name: run.direction(name) for name in found},
        "early": [name for name in run.names if name not in last],
        "config": run_settings(to_plain(run.config), to_plain(run.facts)),
        "device": summary.get("device"),
        "model": summary.get("model"),
    }
    return Row(to_plain(row))  # rows are compared with each other, and NaN is not equal to itself


def _make_annotations(run: Follower) -> dict[str, Any]:
    try:
        found = read_annotations(run.path)
    except (BadFile, OSError):  # a damaged file hides nothing else
        found = Annotations()
    return {"title": found.title or "", "tags": list(found.tags), "note": found.note, "archived": found.archived}


def make_unread_row(run_id: str, *, state: str = "unread", reason: str = "not read yet") -> Row:
    """The row of a run that was not read yet, or can't be read."""
    unknown = dict.fromkeys(("began", "seconds", "epoch", "epochs", "update", "fraction", "best", "device", "model"))
    known = {"id": run_id, "name": run_id.rpartition("/")[2], "state": state, "reason": reason, "problem": ""}
    known |= {"title": "", "tags": [], "note": "", "archived": False}
    return Row({**known, **unknown, "last": {}, "bests": {}, "directed": {}, "early": [], "config": {}})


def make_details(run_id: str, run: Follower) -> dict[str, Any]:
    """Everything about a run except the points of its curves."""
    begin = dict(run.begin.extra) if run.begin is not None else {}
    names = run.names
    return {
        "row": make_row(run_id, run),
        "status": make_status(run),
        "facts": dict(run.facts),
        "config": run.config,
        "plan": begin.get("plan") or run.facts.get("plan") or [],
        "begin": begin,
        "names": names,
        "groups": group_by_metric(names),
        "matrices": {name: run.matrix_epochs(name) for name in run.matrices},
        "media": [_make_media(event) for event in run.media],
        "directions": {name: run.direction(name) for name in names},
        "units": {name: run.unit(name) for name in names},
        "messages": make_messages(run.messages[-MAX_MESSAGES:]),
        "log": run.log,
        "path": str(run.path),
        "checkpoints": _make_checkpoints(run),
        "problem": run.problem,
        "system": [name for name in names if _is_system(run, name)],
        "behind": run.has_unread,
    }


def _is_system(run: Follower, name: str) -> bool:
    """Whether a number is about the machine; metrics have the prefix of a data set."""
    return name.startswith("system/") or ("/" not in name and bool(run.unit(name)))


def _make_media(event: Event) -> dict[str, Any]:
    return {**event.extra, "epoch": event.epoch, "update": event.update, "time": event.time}


def make_matrix(run: Follower, name: str, epoch: int | None) -> dict[str, Any]:
    """A matrix in an epoch, by default the best one, with the epochs that have it."""
    originals = {escape_surrogates(each): each for each in run.matrices}
    matrix = run.matrix(originals.get(name, name), epoch)
    if matrix is None:
        where = f" in epoch {epoch}" if epoch is not None else ""
        raise MissingFile(f"the run {run.name!r} has no matrix {name[:200]!r}{where}")
    found = {"name": name, "values": matrix.values.tolist(), "labels": list(matrix.labels)}
    return {**found, "epoch": matrix.epoch, "update": matrix.update, "epochs": run.matrix_epochs(matrix.name)}


def make_status(run: Follower) -> dict[str, Any]:
    """The run's current position and pace."""
    best = run.status.best
    return to_plain({**asdict(run.status), "best": best._asdict() if best is not None else None})


class RunReport(NamedTuple):
    """A run for the pages that show it; `counts` are the numbers of points of its curves and of matrices."""

    version: int
    row: Row
    status: dict[str, Any]
    messages: list[dict[str, Any]]
    counts: dict[str, int]
    media: int
    problem: str
    behind: bool


def make_report(run_id: str, run: Follower, version: int) -> RunReport:
    """The present state of a run."""
    counts = {name: run.count(name) for name in run.names}
    counts |= {name: len(run.matrix_epochs(name)) for name in run.matrices}
    row, status = make_row(run_id, run), make_status(run)
    messages, media = make_messages(run.messages), len(run.media)
    return RunReport(version, row, status, messages, counts, media, run.problem, run.has_unread)


def make_messages(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Notes, warnings, errors, stops, resumes and checkpoints."""
    return [
        {
            "kind": event.kind,
            "time": event.time,
            "epoch": event.epoch,
            "update": event.update,
            "text": event.text or str(event.extra.get("reason", "")),
        }
        for event in events
    ]


def _make_checkpoints(run: Follower) -> list[dict[str, Any]]:
    """The checkpoints, oldest first, with the best by the run's monitor marked; empty if they can't be read."""
    try:
        checkpoints = list_checkpoints(run.path, run.facts)
    except BadFile:
        return []
    monitor = run.summary["monitor"]
    measured = {
        each.name: each.values[monitor] for each in checkpoints if math.isfinite(each.values.get(monitor, math.nan))
    }
    choose = max if monitor is not None and run.direction(monitor) == "max" else min
    best = choose(measured, key=measured.__getitem__) if measured else None
    return [
        {
            **{name: getattr(checkpoint, name) for name in _CHECKPOINT_FIELDS},
            "path": str(run.path / "checkpoints" / checkpoint.name),
            "value": measured.get(checkpoint.name),
            "best": checkpoint.name == best,
        }
        for checkpoint in checkpoints
    ]


class CurveQuery(NamedTuple):
    """Which curves, over what, in which range, with how many points at most."""

    names: tuple[str, ...]
    most: int
    source: Source | Literal["auto"]  # "auto": "epochs" by epoch, where there are any; else "all"
    by: Literal["update", "epoch", "time", "elapsed"]  # "elapsed": seconds since the run began
    start: float
    end: float


def make_curves(run: Follower, query: CurveQuery) -> dict[str, dict[str, list[Any]]]:
    """The curves of a query, each as `x` (ascending) and `y` (`None` interrupts the line)."""
    originals = {escape_surrogates(name): name for name in run.names}
    return {name: _curve(run, _points(run, originals.get(name, name), query), query) for name in query.names}


def _points(run: Follower, name: str, query: CurveQuery) -> Points:
    if query.source != "auto":
        return run.points(name, source=query.source)
    # Points within an epoch have no position on an axis of epochs.
    points = run.points(name, source="epochs") if query.by == "epoch" else None
    return points if points is not None and len(points) else run.points(name)


def _curve(run: Follower, points: Points, query: CurveQuery) -> dict[str, list[Any]]:
    x = _positions(run, points, query)
    if not np.all(x[1:] >= x[:-1]):  # a machine's clock can be set back
        points = points.select(np.argsort(x, kind="stable"))
        x = np.sort(x, kind="stable")
    # The range, and one more point on either side, so that the line continues to the edge of the chart.
    first = max(int(np.searchsorted(x, query.start, "left")) - 1, 0)
    last = min(int(np.searchsorted(x, query.end, "right")) + 1, len(x))
    points = points.select(np.arange(first, last)).downsample(query.most)
    return {"x": _to_list(_positions(run, points, query)), "y": _to_list(points.value)}


def _positions(run: Follower, points: Points, query: CurveQuery) -> np.ndarray:
    return points.time - (run.summary["started"] or 0.0) if query.by == "elapsed" else getattr(points, query.by)


def _to_list(values: np.ndarray) -> list[Any]:
    """Plain numbers; whole ones as integers, which take half the space."""
    finite = np.isfinite(values)
    if not finite.all():
        return [value if known else None for value, known in zip(values.tolist(), finite.tolist(), strict=True)]
    if np.all(np.abs(values) < 2**53) and np.all(values == np.rint(values)):
        return values.astype(np.int64).tolist()
    return values.tolist()
