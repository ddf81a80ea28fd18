"""Where a run stands: phase, place in the plan, pace, and what is left."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from stoker.record._answers import Answers
from stoker.record._columns import BESIDE, EPOCH, TOLD, Columns
from stoker.record._decode import whole
from stoker.record._event import Event
from stoker.record._numbers import Best

_PACE = 60.0  # seconds over which updates are counted for their pace


@dataclass(frozen=True, slots=True)
class Status:
    """Where a run stands, for a status pane; times in seconds, `None` for what nobody knows.

    `within` is the share of the running phase and `fraction` that of the whole plan, from 0 to 1; `left` is what the
    rest takes at this pace. `seconds` counts what was trained, earlier parts of a resumed run included. `when` is the
    time of the newest event, since 1970.
    """

    phase: str  # "starting", "train", "valid" or "over"
    set_name: str
    epoch: int
    epochs: int | None
    batch: int
    batches: int | None
    update: int
    updates: int | None
    within: float | None
    fraction: float | None
    left: float | None
    seconds: float
    samples_per_second: float | None
    updates_per_second: float | None
    latest: Mapping[str, float]
    best: Best | None
    when: float


def status_of(columns: Columns, answers: Answers, summary: Mapping[str, Any]) -> Status:
    """The status of a run from its columns and its summary."""
    plan = answers.begin.extra if answers.begin is not None else {}
    progress = whole(columns.progress) if columns.progress is not None else None
    row = next(_placed(columns), None)
    epoch = columns.epochs[row] if row is not None else 0
    validating = progress is not None and progress.extra.get("phase") == "valid"
    batches = (progress.extra.get("batches") if progress else None) or (None if validating else plan.get("batches"))
    within = _within(progress, batches, closed=_is_closed(columns))
    seconds = float(summary["seconds"])
    done = fraction_done(
        plan,
        epochs=epoch - 1 + (1.0 if validating else within or 0.0) if epoch > 0 else 0.0,
        updates=summary["updates"],
        seconds=seconds,
    )
    done = 1.0 if summary["state"] == "finished" else done
    latest = columns.latest()
    return Status(
        phase=_phase(summary, epoch, validating=validating),
        set_name=_set_name(progress) if validating else "train",
        epoch=epoch,
        epochs=_whole_number(plan.get("epochs")),
        batch=progress.batch if progress is not None else 0,
        batches=_whole_number(batches),
        update=summary["updates"],
        updates=_whole_number(plan.get("updates")),
        within=within,
        fraction=done,
        left=seconds * (1 - done) / done if done and seconds else None,
        seconds=seconds,
        samples_per_second=_rate(progress, latest),
        updates_per_second=_pace(columns),
        latest=latest,
        best=Best(**summary["best"]) if summary["best"] is not None else None,
        when=columns.times[-1] if len(columns) else 0.0,
    )


def fraction_done(plan: Mapping[str, Any], *, epochs: float, updates: int, seconds: float) -> float | None:
    """How much of a plan is done, from 0 to 1; `None` where the plan has no end.

    >>> fraction_done({"epochs": 4, "updates": None, "minutes": None}, epochs=1.5, updates=150, seconds=60.0)
    0.375

    `plan` is what the "begin" event says; of several limits the one that is nearest counts.
    """
    limits = {"epochs": epochs, "updates": updates, "minutes": seconds / 60}
    parts = [done / plan[limit] for limit, done in limits.items() if plan.get(limit)]
    return min(1.0, max(parts)) if parts else None


def _placed(columns: Columns) -> Iterator[int]:
    """The rows of the events that have a place in the training, the newest first."""
    rows = range(len(columns) - 1, -1, -1)
    return (row for row in rows if columns.epochs[row] and columns.kinds[row] != BESIDE)


def _is_closed(columns: Columns) -> bool:
    """Whether the newest numbers are those of a whole epoch; what is told after them, of the end say, opens none."""
    return next((columns.kinds[row] == EPOCH for row in _placed(columns) if columns.kinds[row] != TOLD), False)


def _phase(summary: Mapping[str, Any], epoch: int, *, validating: bool) -> str:
    if summary["state"] != "running":
        return "over"
    return "starting" if not epoch else "valid" if validating else "train"


def _within(progress: Event | None, batches: float | None, *, closed: bool) -> float | None:
    if progress is None:
        return 1.0 if closed else 0.0
    return min(1.0, progress.batch / batches) if batches else None


def _set_name(progress: Event | None) -> str:
    """The set that a validation is of: its numbers begin with it."""
    first = next(iter(progress.values), "") if progress is not None else ""
    return first.partition("/")[0] or "valid"


def _rate(progress: Event | None, latest: Mapping[str, float]) -> float | None:
    told = progress.extra.get("samples_per_second") if progress is not None else None
    return float(told) if told else latest.get("samples_per_second")


def _pace(columns: Columns) -> float | None:
    """Updates a second, over the last minute of this process, or since its last event but one."""
    oldest = max((row for row, event in columns.told if event.kind in ("begin", "resume")), default=0)
    rows = list(islice(_placed(columns), 500))
    last = columns.times[rows[0]] if rows else 0.0
    recent = [row for row in rows if row >= oldest and (last - columns.times[row] <= _PACE or row in rows[:2])]
    if len(recent) < 2:
        return None
    seconds = last - columns.times[recent[-1]]
    updates = columns.updates[recent[0]] - columns.updates[recent[-1]]
    return updates / seconds if seconds > 0 and updates > 0 else None


def _whole_number(value: float | None) -> int | None:
    return int(value) if value is not None else None
