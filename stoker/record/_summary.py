"""How a run is doing: its summary in a few plain values, and its status for a progress display."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np

from stoker.record._columns import EPOCH, MESSAGE, OTHER, PROGRESS, SYSTEM, VALID, Best, Columns
from stoker.record._event import Event, drop_unexpected

DIED = "the process ended without finishing the run"
_RATE_EPOCHS = 5  # the time left follows from so many last epochs
_RATE_SECONDS = 60.0  # the time over which updates per second are measured


def summarize(columns: Columns, *, alive: bool = True) -> dict[str, Any]:
    """State, progress, and the best and last numbers of a run; see `Record.summary`.

    Without an end, a run that is not `alive` has died.
    """
    plan = columns.plan
    state, reason = _state(columns)
    if state == "running" and not alive:
        state, reason = "died", DIED
    epochs = np.array(columns.epochs)[np.array(columns.kinds) == EPOCH]
    monitor = columns.find_monitor()
    part, unvalidated = _find_cut_epoch(columns, epochs)
    best = columns.best(monitor) if monitor is not None else None
    is_empty = len(columns) == columns.damaged
    return {
        "state": state,
        "reason": reason,
        "epochs": int(epochs.max(initial=0)) - bool(part or unvalidated),  # complete ones
        "part": part,
        "epochs_planned": plan.get("epochs"),
        "updates": int(np.array(columns.updates).max(initial=0)),
        "seconds": sum(_seconds(columns, *rows) for rows in _sessions(columns)),
        "started": None if is_empty else columns.times[0],
        "last_event": None if is_empty else columns.times[-1],
        "monitor": monitor,
        "best": dict(best._asdict()) if best is not None else None,
        "last": columns.last_row(without=unvalidated),
        "warnings": sum(event.kind == "warning" for _, event in columns.events),
        **{key: plan.get(key) for key in ("model", "parameters", "device")},
    }


def _state(columns: Columns) -> tuple[str, str]:
    """The state and the reason for it: see `Record.summary`; a run without an end is "running" here."""
    state, reason = "running", ""
    for _, event in columns.events:
        if event.kind in ("begin", "resume"):
            state, reason = "running", ""
        elif event.kind == "stop":
            reason = event.text
        elif event.kind == "error":
            state, reason = "failed", event.text
        elif event.kind == "end" and state != "failed":
            state = "stopped" if event.extra.get("interrupted") else "finished"
    return state, reason


def _find_cut_epoch(columns: Columns, epochs: np.ndarray) -> tuple[list[int] | None, int]:
    """`[batches done, batches]` of an epoch that a stop cut short; and the epoch, if a signal left out its validation.

    A signal after the last batch of an epoch cuts it short too.
    """
    kinds = ("begin", "resume", "end")
    last = next((event for _, event in reversed(columns.events) if event.kind in kinds), None)
    planned, sets = columns.plan.get("batches"), columns.plan.get("valid")
    if last is None or last.kind != "end" or last.batch <= 0 or last.epoch not in epochs:
        return None, 0
    batches = planned if isinstance(planned, int) else 0  # 0: unknown
    unvalidated = 0
    if last.extra.get("interrupted") and isinstance(sets, list) and columns.plan.get("validate_every") == "epoch":
        validations = np.array(columns.epochs)[np.array(columns.kinds) == VALID]
        unvalidated = last.epoch if np.count_nonzero(validations == last.epoch) < len(sets) else 0
    is_cut = last.batch < batches or (unvalidated and last.batch == batches)
    return [last.batch, batches] if is_cut else None, unvalidated


def _sessions(columns: Columns) -> list[tuple[int, int]]:
    """The rows (first, last + 1) of each process and of each fit; the time between them does not count."""
    starts = [0]
    kinds: set[str] = set()
    for row, event in columns.events:
        if event.kind == "resume" or (event.kind == "begin" and kinds & {"begin", "end"}):
            starts.append(row)
            kinds = set()
        kinds.add(event.kind)
    return [(first, end) for first, end in pairwise([*starts, len(columns)]) if first < end]


def _seconds(columns: Columns, first: int, end: int) -> float:
    """The duration of a session: as its "end" event says, else from its first event to its last."""
    span = max(0.0, columns.times[end - 1] - columns.times[first])
    ends = [event for row, event in columns.events if first <= row < end and event.kind == "end"]
    return ends[-1].extra.get("seconds", span) if ends else span


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a run, for a display; durations in seconds, `None` for what is unknown.

    `phase_fraction` is the progress of the current phase and `fraction` that of the whole plan, from 0 to 1;
    `seconds_left` extrapolates the rest. `seconds` counts training time, earlier parts of a resumed run included.
    `time` is the time of the newest event, in seconds since 1970. `latest` has the newest value of every number,
    whatever its epoch. `current` has the numbers of one epoch only: of the current one, as far as they are known
    (means so far of what it is computing), or between two epochs of the last. `previous` has those of the last
    complete epoch.
    """

    phase: str  # "starting", "train", "valid" or "over"
    set_name: str
    epoch: int
    epochs: int | None
    batch: int
    batches: int | None
    update: int
    updates: int | None
    phase_fraction: float | None
    fraction: float | None
    seconds_left: float | None
    seconds: float
    samples_per_second: float | None
    updates_per_second: float | None
    latest: Mapping[str, float]
    current: Mapping[str, float]
    previous: Mapping[str, float]
    best: Best | None
    time: float


def status_of(columns: Columns, summary: Mapping[str, Any]) -> Status:
    """The status of a run from its columns and its summary."""
    plan = columns.plan
    # Between epochs `columns.progress` is None.
    progress = drop_unexpected(columns.progress) if columns.progress is not None else Event("progress", 0.0)
    validating = progress.extra.get("phase") == "valid"
    row = next(_training_rows(columns), None)
    epoch = columns.epochs[row] if row is not None else 0
    updates = summary["updates"]
    seconds = float(summary["seconds"])
    time = summary["last_event"] or 0.0
    is_ahead = columns.progress is not None and progress.time > time
    if is_ahead and summary["state"] == "running":  # a record keeps one progress event per second
        epoch = progress.epoch
        updates = max(updates, progress.update)
        seconds += progress.time - time if len(columns) else 0.0
        time = progress.time
    current = _current(columns, epoch, progress, summary["last"])
    batches = progress.extra.get("batches") or (None if validating else plan.get("batches"))
    if columns.progress is None:
        phase_fraction = 1.0 if _ends_with_epoch(columns) else 0.0
    else:
        phase_fraction = min(1.0, progress.batch / batches) if batches else None
    epochs_done = epoch - 1 + (1.0 if validating else phase_fraction or 0.0) if epoch > 0 else 0.0
    fraction = fraction_done(plan, epochs=epochs_done, updates=updates, seconds=seconds)
    if summary["state"] == "finished" and (fraction is None or fraction > 0.99):  # not one that a callback ended early
        fraction = 1.0
    speed = progress.extra.get("samples_per_second") or columns.last("samples_per_second")
    if not speed and summary["state"] == "running" and columns.last_progress is not None:  # between two epochs
        speed = drop_unexpected(columns.last_progress).extra.get("samples_per_second")
    phase = "starting" if not epoch else "valid" if validating else "train"
    return Status(
        phase=phase if summary["state"] == "running" else "over",
        set_name=_set_name(progress) if validating else "train",
        epoch=epoch,
        epochs=_to_int(plan.get("epochs")),
        batch=progress.batch,
        batches=_to_int(batches),
        update=updates,
        updates=_to_int(plan.get("updates")),
        phase_fraction=phase_fraction,
        fraction=fraction,
        seconds_left=_seconds_left(columns, fraction, updates, seconds, time),
        seconds=seconds,
        samples_per_second=float(speed) if speed else None,
        updates_per_second=_updates_per_second(columns),
        latest=columns.latest() | current,
        current=current,
        previous=summary["last"],
        best=Best(**summary["best"]) if summary["best"] is not None else None,
        time=time,
    )


def _seconds_left(columns: Columns, fraction: float | None, update: int, seconds: float, now: float) -> float | None:
    """The time that the rest of the plan takes, at the pace of the last epochs; `None` if it is unknown.

    The pace is measured from the first progress of this process on, so that starting and compiling do not count.
    """
    if not fraction:
        return None
    minutes = columns.plan.get("minutes")
    limit = max(0.0, 60 * minutes - seconds) if minutes else math.inf
    started = max((row for row, event in columns.events if event.kind in ("begin", "resume")), default=0)
    kinds, updates = np.array(columns.kinds), np.array(columns.updates)
    rows = np.arange(len(kinds)) >= started
    first = np.flatnonzero(rows & (kinds >= PROGRESS) & (updates > 0))[:1]
    ends = np.flatnonzero(rows & (kinds == EPOCH))[-_RATE_EPOCHS - 1 :]
    ends = ends[ends > first[0]] if first.size else ends
    updates_left = update * (1 - fraction) / fraction
    since = ends[0] if len(ends) > 1 else first[0] if first.size else None
    if since is None:
        return None if math.isinf(limit) else limit
    until, until_update = (columns.times[ends[-1]], updates[ends[-1]]) if ends.size else (now, update)
    if until_update <= updates[since]:
        return None if math.isinf(limit) else limit
    pace = (until - columns.times[since]) / (until_update - updates[since])
    # An epoch validates after its updates, so within an epoch the time since the last one counts, not the updates.
    left = pace * (updates_left + update - until_update) - (now - until)
    return float(min(limit, max(left, pace * updates_left, 0.0)))


def _current(columns: Columns, epoch: int, progress: Event, last: Mapping[str, float]) -> dict[str, float]:
    """The newest value of every number that the current epoch has; see `Status.current`."""
    last_epoch = next((row for row in range(len(columns) - 1, -1, -1) if columns.kinds[row] == EPOCH), -1)
    if columns.progress is None and (last_epoch < 0 or columns.epochs[last_epoch] == epoch):
        return dict(last)
    final = columns.values_since(last_epoch + 1)
    so_far = progress.extra.get("so_far")
    return {**final, **progress.values, **(so_far if isinstance(so_far, dict) else {})}


def _set_name(progress: Event) -> str:
    """The validation set that a progress event is about."""
    return str(progress.extra.get("set") or next(iter(progress.values), "").partition("/")[0] or "valid")


def fraction_done(plan: Mapping[str, Any], *, epochs: float, updates: int, seconds: float) -> float | None:
    """How much of a plan is done, from 0 to 1; `None` if the plan has no limit.

    >>> fraction_done({"epochs": 4, "updates": None, "minutes": None}, epochs=1.5, updates=150, seconds=60.0)
    0.375

    `plan` is the `extra` of the "begin" event; of several limits the nearest one counts.
    """
    limits = {"epochs": epochs, "updates": updates, "minutes": seconds / 60}
    parts = [done / plan[limit] for limit, done in limits.items() if plan.get(limit)]
    return min(1.0, max(parts)) if parts else None


def _training_rows(columns: Columns) -> Iterator[int]:
    """The rows of events that belong to an epoch, newest first."""
    rows = range(len(columns) - 1, -1, -1)
    return (row for row in rows if columns.epochs[row] and columns.kinds[row] not in (MESSAGE, SYSTEM))


def _ends_with_epoch(columns: Columns) -> bool:
    """Whether the newest numbers are those of a complete epoch."""
    return next((columns.kinds[row] == EPOCH for row in _training_rows(columns) if columns.kinds[row] != OTHER), False)


def _updates_per_second(columns: Columns) -> float | None:
    """Over the last minute of this process, but at least since the event before the newest."""
    started = max((row for row, event in columns.events if event.kind in ("begin", "resume")), default=0)
    rows = list(islice(_training_rows(columns), 500))
    last = columns.times[rows[0]] if rows else 0.0
    recent = [row for row in rows if row >= started and (last - columns.times[row] <= _RATE_SECONDS or row in rows[:2])]
    if len(recent) < 2:
        return None
    seconds = last - columns.times[recent[-1]]
    updates = columns.updates[recent[0]] - columns.updates[recent[-1]]
    return updates / seconds if seconds > 0 and updates > 0 else None


def _to_int(value: float | None) -> int | None:
    return int(value) if value is not None else None
