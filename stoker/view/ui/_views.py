"""A run as the page gets it: a row of the list, and everything about one."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from stoker.errors import BadFile
from stoker.record import Event, Follower, asked, checkpoints, group_by_metric
from stoker.view.ui._json import plain

Row = dict[str, Any]
SAID = 1000  # notes, warnings and the like in one answer: the last ones
_KEPT = ("name", "update", "epoch", "reason", "bytes", "time")  # what is shown of a checkpoint


def row(name: str, run: Follower) -> Row:
    """A run in the list: how it stands, how far it came, its best and last numbers, and its config."""
    told, status = run.summary, run.status
    best = told.get("best")
    found = {
        "id": name,
        "name": run.name,
        "state": run.state,
        "reason": run.reason,
        "problem": run.problem,
        "began": told.get("started"),
        "seconds": status.seconds,
        "epoch": status.epoch,
        "epochs": status.epochs,
        "update": status.update,
        "fraction": status.fraction,
        "best": {part: best[part] for part in ("name", "value", "epoch")} if best else None,
        "last": dict(told.get("last") or {}),
        "config": asked(plain(run.config), plain(run.facts)),
        "device": told.get("device"),
        "model": told.get("model"),
    }
    return plain(found)  # rows are compared with each other, and no NaN is like another


def unread_row(name: str) -> Row:
    """A run in the list that nobody has read yet."""
    known = {"id": name, "name": name.rpartition("/")[2], "state": "unread", "reason": "its turn to be read comes soon"}
    numbers = dict.fromkeys(("began", "seconds", "epoch", "epochs", "update", "fraction", "best", "device", "model"))
    return {**known, **numbers, "problem": "", "last": {}, "config": {}}


def failed_row(name: str, error: Exception) -> Row:
    """A run in the list that could not be read, by a fault that is ours."""
    return {**unread_row(name), "state": "died", "reason": failure(error)}


def failure(error: Exception) -> str:
    """What is told of a fault that is ours."""
    return f"stoker ui failed with {type(error).__name__}; its terminal shows where"


def detail(name: str, run: Follower) -> dict[str, Any]:
    """One run with all that is known of it, but for the points of its curves."""
    begin = dict(run.begin.extra) if run.begin is not None else {}
    names = run.names
    return {
        "row": row(name, run),
        "status": status(run),
        "facts": dict(run.facts),
        "config": run.config,
        "plan": begin.get("plan") or run.facts.get("plan") or [],
        "begin": begin,
        "names": names,
        "groups": group_by_metric(names),
        "directions": {each: run.direction(each) for each in names},
        "units": {each: run.unit(each) for each in names},
        "said": said(run.said[-SAID:]),
        "log": run.log,
        "checkpoints": _checkpoints(run),
        "problem": run.problem,
        "system": [each for each in names if "/" not in each and run.unit(each)],  # a metric belongs to a set
        "behind": run.behind,
    }


def _checkpoints(run: Follower) -> list[dict[str, Any]]:
    """A line for each checkpoint, oldest first; none where they can't be read."""
    try:
        found = checkpoints(run.path, run.facts)
    except BadFile:
        return []
    return [{name: getattr(each, name) for name in _KEPT} for each in found]


def status(run: Follower) -> dict[str, Any]:
    """Where a run stands."""
    best = run.status.best
    return plain({**asdict(run.status), "best": best._asdict() if best is not None else None})


def said(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Notes, warnings and the like, as lines."""
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
