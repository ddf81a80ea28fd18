"""What the displays of a fit have in common: its numbers, its curves, and the sentences about it."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stoker._files import read_json
from stoker._text import escape_control, format_count, format_duration, format_number, pluralize
from stoker.errors import StokerError
from stoker.record import Event, LineStyle, Record, Status, line_styles, list_checkpoints, resume_command, use_log_scale
from stoker.view._tables import DataSets, MetricRow, data_sets, metric_rows

_SHOWN_ELSEWHERE = ("samples_per_second",)  # the bars show it


def plan_of(record: Record) -> Mapping[str, Any]:
    """The fields of the "begin" event, such as `epochs`, `updates`, `minutes`, `batches` and `model`."""
    return record.begin.extra if record.begin is not None else {}


def sets_of(record: Record, names: Collection[str]) -> DataSets:
    """The data sets that these names of numbers begin with."""
    plan = plan_of(record)
    return data_sets(names, plan.get("monitor"), plan.get("valid"))


def rows_of(record: Record, status: Status) -> tuple[list[MetricRow], list[MetricRow]]:
    """The metrics with values by data set, and the other values."""
    latest = {name: value for name, value in status.latest.items() if name not in _SHOWN_ELSEWHERE}
    rows = metric_rows(record, latest, sets_of(record, record.names), status.current)
    return [row for row in rows if "" not in row.values], [row for row in rows if "" in row.values]


def improves(record: Record, name: str, epoch: int) -> bool:
    """Whether an epoch's final value is better than those of all earlier epochs, of which there is at least one."""
    points = record.points(name, source="epochs")
    known = ~np.isnan(points.value)
    before, now = (points.value[known & which] for which in (points.epoch < epoch, points.epoch == epoch))
    direction = record.direction(name)
    if direction is None or not before.size or not now.size:
        return False
    return bool(now[-1] < before.min() if direction == "min" else now[-1] > before.max())


def table_columns(record: Record, names: Iterable[str]) -> list[str]:
    """The numbers of an epoch, the important ones first: losses, what is monitored, the validation's, the training's.

    Values of single classes are left out.
    """
    names = [
        name for name in names if name not in _SHOWN_ELSEWHERE and not any(part.isdecimal() for part in name.split("/"))
    ]
    sets, monitor = sets_of(record, names), plan_of(record).get("monitor")

    def importance(name: str) -> tuple[bool, bool, bool, int]:
        group, _, metric = name.partition("/")
        rank = [sets.monitored, *sets.names].index(group) if metric and group in sets.names else len(sets.names) + 1
        return name != "train/loss", metric != "loss", name != monitor, rank

    return sorted(names, key=importance)


def epoch_label(record: Record, event: Event) -> str:
    """The epoch that an event ends, with the planned number; a validation inside an epoch has a decimal number."""
    planned, batches = plan_of(record).get("epochs"), plan_of(record).get("batches")
    inside = event.kind == "valid" and bool(batches) and event.batch < batches
    number = f"{event.epoch - 1 + event.batch / batches:.2f}" if inside and batches else str(event.epoch)
    return f"{number}/{planned}" if planned else number


def ends_a_row(record: Record, event: Event) -> bool:
    """Whether an event gets a line: an epoch, or a validation inside of one."""
    inside = event.kind == "valid" and event.batch < (plan_of(record).get("batches") or 0)
    return event.kind == "epoch" or inside


class Curves(NamedTuple):
    """The lines of one metric over the updates: the style and the points of each data set."""

    metric: str
    lines: dict[str, tuple[LineStyle, np.ndarray, np.ndarray]]
    log: bool


def curves_of(record: Record, most: int) -> list[Curves]:
    """The loss, and then the other metrics as far as they are wanted, of the training and the monitored data set."""
    names = table_columns(record, record.names)
    sets = sets_of(record, names)
    groups = ("train", sets.monitored) if sets.monitored != "train" else sets.names[:2]
    scored = (name.partition("/") for name in names if record.direction(name) is not None)
    metrics = dict.fromkeys(["loss", *(metric for group, _, metric in scored if metric and group in groups)])
    charts = [_curves(record, metric, groups) for metric in metrics]
    return [chart for chart in charts if chart.lines][:most]


def _curves(record: Record, metric: str, groups: Iterable[str]) -> Curves:
    styles = line_styles(dict.fromkeys(groups))
    lines: dict[str, tuple[LineStyle, np.ndarray, np.ndarray]] = {}
    for group, style in styles.items():
        name = f"{group}/{metric}"
        running = record.points(name, source="running")
        if group == "train" and len(running) > 1:
            lines[group] = (style, running.update, running.value)
        elif points := record.all(name):  # a validation counts when it is complete
            lines[group] = (style, *np.array(points, float).T)
    falls = any(record.direction(f"{group}/{metric}") == "min" for group in lines)
    return Curves(metric, lines, falls and use_log_scale(np.concatenate([y for _, _, y in lines.values()]).tolist()))


def describe_model(record: Record) -> str:
    """The model, its size and device: `Net (1,234 parameters) on cpu`."""
    plan = plan_of(record)
    size = f" ({plan['parameters']:,} parameters)" if plan.get("parameters") else ""
    device = f" on {plan['device']}" if plan.get("device") else ""
    return escape_control(f"{plan.get('model') or 'model'}{size}{device}")


def describe_plan(record: Record) -> str:
    """The limits of the fit: `200 epochs of 6 batches or 5 minutes`."""
    epochs, updates, minutes, batches = map(plan_of(record).get, ("epochs", "updates", "minutes", "batches"))
    limits: list[str] = []
    if epochs:
        limits.append(pluralize(epochs, "epoch") + (f" of {pluralize(batches, 'batch')}" if batches else ""))
    if updates:
        limits.append(pluralize(updates, "update"))
    if minutes:
        limits.append(f"{minutes:g} minutes")
    return " or ".join(limits) or "no limit; training runs until it is stopped"


def describe_event(event: Event) -> str:
    """The line that a note, a warning or a resume event gets; "" for other events.

    >>> extra = {"checkpoint": "00000132", "batches": 20}
    >>> describe_event(Event("resume", epoch=7, batch=12, update=132, extra=extra))
    'resumed from 00000132: epoch 7, batch 12 of 20, update 132'
    """
    if event.kind != "resume":
        text = _escape_lines(event.text)
        return {"note": text, "warning": f"warning: {text}"}.get(event.kind, "")
    checkpoint, batches = event.extra.get("checkpoint"), event.extra.get("batches")
    if checkpoint is None:
        return "resumed from the start: the run has no checkpoint"
    of = f" of {batches:,}" if batches else ""
    batch = f", batch {event.batch:,}{of}" if event.batch else ""
    return f"resumed from {checkpoint}: epoch {event.epoch:,}{batch}, update {event.update:,}"


class Ending(NamedTuple):
    """How a fit ended: the reason, how much was trained, and where it is saved; `failed` after an exception."""

    reason: str
    length: str
    files: dict[str, str]
    failed: bool


def describe_end(record: Record) -> Ending:
    """The last lines about a fit."""
    status, summary = record.status(), record.summary()
    best = summary["best"]
    length = f"{pluralize(summary['epochs'], 'epoch')}, {pluralize(status.update, 'update')}"
    length += f" in {format_duration(status.seconds)}"
    if best is not None and best["name"] == plan_of(record).get("monitor"):
        length += f"; best {escape_control(best['name'])} {format_number(best['value'])} at epoch {best['epoch']}"
    error = next((event for event in reversed(record.messages) if event.kind in ("error", "resume")), None)
    failed = False
    if error is not None and error.kind == "error" and summary["state"] in ("failed", "died"):
        failed, reason = True, f"failed in epoch {error.epoch}, batch {error.batch}: {_escape_lines(error.text)}"
    else:  # without an "end" the process is being interrupted
        interrupted = f"interrupted in epoch {status.epoch}" if summary["state"] == "running" else ""
        reason = _escape_lines(summary["reason"]) or interrupted
    return Ending(reason, length, _files(record, finished=summary["state"] == "finished"), failed)


def _files(record: Record, *, finished: bool) -> dict[str, str]:
    """The run's directory, its newest checkpoint, and how to continue; empty without a directory."""
    if record.path is None:
        return {}
    run = record.path.parent
    try:
        facts = read_json(run / "run.json", missing_ok=True) or {}
        newest = next(reversed(list_checkpoints(run, facts)), None)
    except (StokerError, OSError):  # a damaged or unreadable directory
        facts, newest = {}, None
    shown = _relative(run)
    files = {"run": shown}
    if newest is not None:
        place = f"epoch {newest.epoch}, update {newest.update:,}"
        files["checkpoint"] = f"{_relative(run / 'checkpoints' / newest.name)} ({place})"
    again = "start it again with resume=True"
    if finished:
        files["continue"] = f"raise the limit and {again}"
    else:
        files["resume"] = resume_command(shown, facts) or again
    return {name: escape_control(text) for name, text in files.items()}


def _relative(path: Path) -> str:
    """The path as a person in this directory types it."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except (ValueError, OSError):
        return str(path)


def describe_speed(status: Status) -> str:
    """Samples per second; "" if unknown."""
    return f"{format_count(status.samples_per_second)} samples/s" if status.samples_per_second else ""


def _escape_lines(text: str) -> str:
    """The text without control characters, except for its line breaks and tabs."""
    return "\n".join("\t".join(map(escape_control, line.split("\t"))) for line in text.split("\n"))
