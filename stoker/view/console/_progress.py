"""What the displays of a fit have in common: where it is, its loss curves, and the sentences about it."""

from collections.abc import Mapping
from typing import Any

from stoker._text import escape_control, format_count, format_duration, format_number, pluralize
from stoker.record import Event, Record, Status, use_log_scale
from stoker.view._tables import DataSets, MetricRow, data_sets, metric_rows

_MAX_RUNNING = 1000  # points of the running loss; more are thinned


class FitProgress:
    """A fit's record, and what the record does not say: the plan, how the fit ended, every running loss."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.plan: Mapping[str, Any] | None = None  # the `extra` of the "begin" event
        self.endings: dict[str, Event] = {}  # "stop", "error" and "end" events by kind
        self._running_loss: list[tuple[int, float]] = []  # (update, loss) in the first epochs

    def add(self, event: Event) -> None:
        """Takes an event into account."""
        if event.kind == "begin":
            self.plan = event.extra
        elif event.kind == "resume":
            self.endings = {}
            self._running_loss = [point for point in self._running_loss if point[0] <= event.update]
        elif event.kind in ("stop", "error", "end"):
            self.endings[event.kind] = event
        elif event.kind == "progress" and event.epoch <= 2 and "train/loss" in event.values:
            self._running_loss.append((event.update, event.values["train/loss"]))
            if len(self._running_loss) > _MAX_RUNNING:
                self._running_loss = self._running_loss[::2]

    def setting(self, name: str) -> Any:
        """A field of the plan: `epochs`, `updates`, `minutes`, `batches`, `model`, …; `None` if unknown."""
        return (self.plan or {}).get(name)

    def sets(self, status: Status) -> DataSets:
        """The data sets."""
        return data_sets(status.latest, self.setting("monitor"), self.setting("valid"))

    def rows(self, status: Status) -> tuple[list[MetricRow], list[MetricRow]]:
        """The metrics with values by data set, and the other values."""
        latest = {name: value for name, value in status.latest.items() if name != "samples_per_second"}
        rows = metric_rows(self.record, latest, self.sets(status))
        return [row for row in rows if "" not in row.values], [row for row in rows if "" in row.values]

    def is_improvement(self, name: str, value: float | None) -> bool:
        """Whether a final value is the best so far; values of the first epoch and running values are not."""
        if value is None or self.record.last(name) != value or self.record.direction(name) is None:
            return False
        best, rows = self.record.best(name), self.record.rows
        epoch = next((epoch for epoch in reversed(list(rows)) if name in rows[epoch]), 0)
        return best is not None and best.epoch == epoch > 1 and best.value == value

    def loss_curves(self, status: Status) -> tuple[str, dict[str, tuple[list[int], list[float]]], bool]:
        """What x counts, the losses of the training and of a validation set as (x, y), and whether to use a log axis.

        Before there are two epochs it is the running training loss over the updates.
        """
        over = "epoch"
        epochs, sets = list(self.record.rows), self.sets(status)
        shown = sets.names[:2] if sets.monitored == "train" else ["train", sets.monitored]
        names = [name for name in dict.fromkeys(f"{each}/loss" for each in shown) if name in self.record.columns]
        curves = {name: (epochs, self.record.series(name)) for name in names}
        if "train/loss" not in curves or len(epochs) < 2:
            over = "update"
            updates = [update for update, _ in self._running_loss]
            losses = [loss for _, loss in self._running_loss]
            curves = {"train/loss": (updates, losses)} if len(updates) > 1 else {}
        return over, curves, use_log_scale(loss for _, losses in curves.values() for loss in losses)


def describe_model(progress: FitProgress) -> str:
    """The model, its size and device: `Net (1,234 parameters) on cpu`."""
    parameters, device = progress.setting("parameters"), progress.setting("device")
    size = f" ({parameters:,} parameters)" if parameters else ""
    return escape_control(f"{progress.setting('model') or 'model'}{size}{f' on {device}' if device else ''}")


def describe_plan(progress: FitProgress) -> str:
    """The limits of the fit: `200 epochs of 6 batches or 5 minutes`."""
    epochs, updates, minutes = (progress.setting(name) for name in ("epochs", "updates", "minutes"))
    limits: list[str] = []
    if epochs:
        batches = progress.setting("batches")
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


def describe_reason(progress: FitProgress) -> str:
    """Why the fit ended early; "" if it completed its plan."""
    if error := progress.endings.get("error"):
        return f"failed in epoch {error.epoch}, batch {error.batch}: {_escape_lines(error.text)}"
    if stop := progress.endings.get("stop"):
        return _escape_lines(stop.text)
    return "" if "end" in progress.endings else f"interrupted in epoch {progress.record.status().epoch}"


def describe_end(progress: FitProgress) -> str:
    """How much was trained, in what time, and which epoch was the best."""
    status = progress.record.status()
    end = progress.endings["end"].extra if "end" in progress.endings else {}
    epochs = end.get("epochs", progress.record.summary()["epochs"])
    updates = end.get("updates", status.update)
    text = f"{pluralize(epochs, 'epoch')}, {pluralize(updates, 'update')} in {format_duration(status.seconds)}"
    best = end.get("best")
    if not best:
        return text
    return f"{text}; best {best.get('monitor', 'score')} {format_number(best['value'])} at epoch {best['epoch']}"


def describe_speed(status: Status) -> str:
    """Samples per second; "" if unknown."""
    return f"{format_count(status.samples_per_second)} samples/s" if status.samples_per_second else ""


def _escape_lines(text: str) -> str:
    """The text without control characters, except for its line breaks and tabs."""
    return "\n".join("\t".join(map(escape_control, line.split("\t"))) for line in text.split("\n"))
