"""A run in a few plain values."""

from collections.abc import Sequence
from typing import Any, Protocol

from stoker.record._event import Event
from stoker.record._numbers import Best, Direction


class Story(Protocol):
    """What a summary asks of a record; one that was read in columns can answer it too."""

    @property
    def events(self) -> Sequence[Event]: ...
    @property
    def columns(self) -> list[str]: ...
    def events_of(self, kind: str) -> list[Event]: ...
    def last(self, name: str) -> float | None: ...
    def best(self, name: str) -> Best | None: ...
    def direction(self, name: str) -> Direction | None: ...


def summarize(record: Story) -> dict[str, Any]:
    """How a run stands or ended, how far it came, and its best and last numbers; see `Record.summary`."""
    begin = _last(record, "begin")
    state, reason = _state(record)
    events = record.events
    first, latest = (events[0], events[-1]) if events else (None, None)
    watched = monitor(record)
    best = record.best(watched) if watched is not None else None
    return {
        "state": state,
        "reason": reason,
        "epochs": max((event.epoch for event in record.events_of("epoch")), default=0),  # with one that was cut short
        "part": _part(record),
        "epochs_planned": begin.extra.get("epochs") if begin is not None else None,
        "updates": max((event.update for event in events), default=0),
        "seconds": sum(_seconds(part) for part in _parts(record)),
        "started": first.time if first is not None else None,
        "last_event": latest.time if latest is not None else None,
        "monitor": watched,
        "best": dict(best._asdict()) if best is not None else None,
        "last": {name: record.last(name) for name in record.columns},
        "warnings": len(record.events_of("warning")),
        **{name: begin.extra.get(name) if begin is not None else None for name in ("model", "parameters", "device")},
    }


def monitor(record: Story) -> str | None:
    """The number by which epochs are judged: what the run declared, else a loss, else what has a direction."""
    begin = _last(record, "begin")
    declared = begin.extra.get("monitor") if begin is not None else None
    columns = record.columns
    directed = [name for name in columns if record.direction(name) is not None]
    known = [name for name in (declared, "valid/loss", "train/loss", *directed) if name in columns]
    return next((name for name in known if record.direction(name) is not None), None)


def _state(record: Story) -> tuple[str, str]:
    """Running, finished, stopped or died, and why, by the latest event that says so."""
    state, reason = "running", ""
    for event in record.events:
        if event.kind in ("begin", "resume"):
            state, reason = "running", ""
        elif event.kind == "stop":
            reason = event.text
        elif event.kind == "error":
            state, reason = "died", event.text
        elif event.kind == "end" and state != "died":
            state = "stopped" if reason and not _as_planned(record, event) else "finished"
    return state, reason


def _as_planned(record: Story, end: Event) -> bool:
    """Whether a run came as far as it was meant to; its reason to stop is then that it is complete."""
    begin = _last(record, "begin")
    plan = begin.extra if begin is not None else {}
    done = {"epochs": end.epoch or end.extra.get("epochs", 0), "updates": end.update}
    done["minutes"] = sum(_seconds(part) for part in _parts_of_the_last_fit(record)) / 60
    return any(plan.get(limit) is not None and done[limit] >= plan[limit] for limit in done)


def _part(record: Story) -> list[int] | None:
    """How many batches of how many were done of an epoch that a stop cut short; `None` for one that is whole."""
    begin = _last(record, "begin")
    batches = begin.extra.get("batches") if begin is not None else None
    end = next((event for event in reversed(record.events) if event.kind in ("begin", "resume", "end")), None)
    if end is None or end.kind != "end" or not isinstance(batches, int) or not 0 < end.batch < batches:
        return None
    return [end.batch, batches] if any(event.epoch == end.epoch for event in record.events_of("epoch")) else None


def _parts(record: Story) -> list[list[Event]]:
    """What each process, and each fit of it, has done; between two of them nobody trained."""
    parts: list[list[Event]] = [[]]
    kinds: set[str] = set()  # of the latest part
    for event in record.events:
        if event.kind == "resume" or (event.kind == "begin" and kinds & {"begin", "end"}):
            parts.append([])
            kinds = set()
        parts[-1].append(event)
        kinds.add(event.kind)
    return [part for part in parts if part]


def _parts_of_the_last_fit(record: Story) -> list[list[Event]]:
    """Those from the last fit that was no resumed one."""
    parts = _parts(record)
    first = max((place for place, part in enumerate(parts) if part[0].kind != "resume"), default=0)
    return parts[first:]


def _seconds(part: list[Event]) -> float:
    """How long a part took: as its end says, else from its first event to its last."""
    span = max(0.0, part[-1].time - part[0].time)
    return next((event.extra.get("seconds", span) for event in reversed(part) if event.kind == "end"), span)


def _last(record: Story, kind: str) -> Event | None:
    events = record.events_of(kind)
    return events[-1] if events else None
