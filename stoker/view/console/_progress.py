"""The state of a fit, collected from its events, and the sentences about it that all displays share."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from stoker._text import format_count, format_duration, format_number, pluralize
from stoker.record import Best, Event, Record, fraction_done

_WITHOUT_POSITION = {"checkpoint", "note", "warning"}  # these events don't advance the training
_MAX_RUNNING = 1000  # points of the running loss; more are thinned


@dataclass(frozen=True)
class Row:
    """A metric's latest values by data set, and the best value of the monitored set."""

    name: str
    values: Mapping[str, float]
    best: Best | None
    improved: bool  # the monitored set's value is the best so far


class FitProgress:
    """What the events so far say about a fit. Adding an event is cheap; best values are looked up in the record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.begin: Event | None = None
        self.end: Event | None = None
        self.error: Event | None = None
        self.stop_reason = ""
        self.latest: Event | None = None  # the latest event with a position in the training
        self.running: Event | None = None  # the latest progress event of the current epoch
        self.updates = 0
        self.sets = ["train"]
        self._values: dict[str, float] = {}  # final values, not those of the running epoch
        self._epochs: dict[str, int] = {}  # the epoch of each final value
        self._running_loss: list[tuple[int, float]] = []  # (update, loss): the curve of the first epochs
        self._start = 0.0  # time of the begin or resume event
        self._seconds_before = 0.0  # trained before this process resumed the run

    def add(self, event: Event) -> None:
        """Takes an event into account."""
        kind = event.kind
        if kind == "progress":
            self._add_progress(event)
        elif kind in ("train", "valid", "epoch"):
            self._values.update(event.values)
            self._epochs.update(dict.fromkeys(event.values, event.epoch))
            if kind == "valid":
                self.sets = list(dict.fromkeys([*self.sets, *(name.partition("/")[0] for name in event.values)]))
            if kind == "epoch":
                self.running = None
        elif kind == "begin":
            self.begin, self._start = event, event.time
        elif kind == "resume":
            self._add_resume(event)
        elif kind == "stop":
            self.stop_reason = event.text
        elif kind == "error":
            self.error = event
        elif kind == "end":
            self.end = event
        if event.epoch and kind not in _WITHOUT_POSITION:
            self.latest = event
            self.updates = max(self.updates, event.update)

    def _add_progress(self, event: Event) -> None:
        self.running = event
        if event.epoch <= 2 and "train/loss" in event.values and event.extra.get("phase") != "valid":
            self._running_loss.append((event.update, event.values["train/loss"]))
            if len(self._running_loss) > _MAX_RUNNING:
                self._running_loss = self._running_loss[::2]

    def _add_resume(self, resume: Event) -> None:
        """Starts again from the events that the record keeps: later ones belong to lost updates."""
        self.latest, self.updates, self.sets = None, 0, ["train"]
        self._values, self._epochs, self._running_loss = {}, {}, []
        for event in takewhile(lambda each: each is not resume, self.record.events):
            if event.kind != "resume":
                self.add(event)
        self.end, self.error, self.stop_reason = None, None, ""
        self.running = resume if resume.batch else None
        self._start, self._seconds_before = resume.time, self.record.summary()["seconds"]

    def setting(self, name: str) -> Any:
        """A field of the begin event: `epochs`, `updates`, `minutes`, `batches`, `model`, …; `None` if unknown."""
        return self.begin.extra.get(name) if self.begin else None

    @property
    def monitored_set(self) -> str:
        """The set whose best values are shown: the monitor's, else the first validation set, else `train`."""
        group = str(self.setting("monitor") or "").partition("/")[0]
        return group if group in self.sets else self.sets[min(1, len(self.sets) - 1)]

    @property
    def epoch(self) -> int:
        return self.latest.epoch if self.latest else 0

    @property
    def validating(self) -> bool:
        return self.running is not None and self.running.extra.get("phase") == "valid"

    @property
    def batches(self) -> int | None:
        """The number of batches in the current epoch or validation, if known."""
        batches = self.running.extra.get("batches") if self.running else None
        return batches or (None if self.validating else self.setting("batches"))

    @property
    def seconds(self) -> float:
        """Training time so far, earlier parts of a resumed run included."""
        last = self.end or self.error or self.latest
        return self._seconds_before + (max(0.0, last.time - self._start) if self.begin and last else 0.0)

    @property
    def seconds_in_all(self) -> float:
        """Training time as the end event reports it, else up to the latest event."""
        if self.end and "seconds" in self.end.extra:
            return self._seconds_before + self.end.extra["seconds"]
        return self.seconds

    def epoch_fraction(self) -> float | None:
        """The completed part of the current epoch or validation, from 0 to 1; `None` if its length is unknown."""
        if self.running is None:
            return 1.0 if self.latest and self.latest.kind == "epoch" else 0.0
        return min(1.0, self.running.batch / self.batches) if self.batches else None

    def fraction(self) -> float | None:
        """The completed part of the whole fit, from 0 to 1; `None` if it has no limit."""
        within = 1.0 if self.validating else self.epoch_fraction() or 0.0
        epochs = self.latest.epoch - 1 + within if self.latest else 0.0
        plan = self.begin.extra if self.begin else {}
        return fraction_done(plan, epochs=epochs, updates=self.updates, seconds=self.seconds)

    def seconds_left(self) -> float | None:
        """The estimated time to the end; `None` before anything is measured."""
        done = self.fraction()
        return self.seconds * (1 - done) / done if done and self.seconds else None

    def rows(self) -> list[Row]:
        """The metrics with one value per set; per-class metrics are left out."""
        values: dict[str, dict[str, float]] = {}
        for name, value in self._latest_values().items():
            group, _, metric = name.partition("/")
            if group in self.sets and metric and "/" not in metric:
                values.setdefault(metric, {})[group] = value
        return [self._row(metric, by_set) for metric, by_set in values.items()]

    def _row(self, metric: str, values: Mapping[str, float]) -> Row:
        name = f"{self.monitored_set}/{metric}"
        best = self.record.best(name) if self.record.direction(name) else None
        return Row(metric, values, best, self.is_improvement(name, values.get(self.monitored_set)))

    def is_improvement(self, name: str, value: float | None) -> bool:
        """Whether a final value is the best so far; values of the first epoch and running values are not."""
        if value is None or self._values.get(name) != value or not self.record.direction(name):
            return False
        best = self.record.best(name)
        return best is not None and best.epoch > 1 and (best.epoch, best.value) == (self._epochs[name], value)

    def other_values(self) -> dict[str, float]:
        """Values that belong to no data set: learning rates, memory, logged values."""
        hidden = (*self.sets, "samples_per_second")
        return {name: value for name, value in self._latest_values().items() if name.split("/")[0] not in hidden}

    def samples_per_second(self) -> float | None:
        if self.running and self.running.extra.get("samples_per_second"):
            return float(self.running.extra["samples_per_second"])
        return self._values.get("samples_per_second")

    def loss_curves(self) -> tuple[str, dict[str, tuple[list[int], list[float]]]]:
        """The losses of the training and the monitored set as (x, y), and what x counts.

        Before there are two epochs it is the running training loss over the updates.
        """
        names = dict.fromkeys(["train/loss", f"{self.monitored_set}/loss"])
        epochs = list(self.record.rows)
        by_epoch = {name: (epochs, self.record.series(name)) for name in names if name in self._values}
        if "train/loss" in by_epoch and len(epochs) >= 2:
            return "epoch", by_epoch
        if len(self._running_loss) < 2:
            return "update", {}
        updates, losses = zip(*self._running_loss, strict=True)
        return "update", {"train/loss": (list(updates), list(losses))}

    def _latest_values(self) -> dict[str, float]:
        return {**self._values, **(self.running.values if self.running else {})}


def describe_model(progress: FitProgress) -> str:
    """The model, its size and device: `Net (1,234 parameters) on cpu`."""
    parameters, device = progress.setting("parameters"), progress.setting("device")
    size = f" ({parameters:,} parameters)" if parameters else ""
    return f"{progress.setting('model') or 'model'}{size}{f' on {device}' if device else ''}"


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
        return {"note": event.text, "warning": f"warning: {event.text}"}.get(event.kind, "")
    checkpoint, batches = event.extra.get("checkpoint"), event.extra.get("batches")
    if checkpoint is None:
        return "resumed from the start: the run has no checkpoint"
    of = f" of {batches:,}" if batches else ""
    batch = f", batch {event.batch:,}{of}" if event.batch else ""
    return f"resumed from {checkpoint}: epoch {event.epoch:,}{batch}, update {event.update:,}"


def describe_reason(progress: FitProgress) -> str:
    """Why the fit ended early; "" if it completed its plan."""
    if progress.error:
        return f"failed in epoch {progress.error.epoch}, batch {progress.error.batch}: {progress.error.text}"
    if progress.stop_reason:
        return progress.stop_reason
    return "" if progress.end else f"interrupted in epoch {progress.epoch}"


def describe_end(progress: FitProgress) -> str:
    """How much was trained, in what time, and which epoch was the best."""
    end = progress.end.extra if progress.end else {}
    epochs = end.get("epochs", max(0, progress.epoch - (progress.running is not None)))
    updates = end.get("updates", progress.updates)
    text = f"{pluralize(epochs, 'epoch')}, {pluralize(updates, 'update')} in {format_duration(progress.seconds_in_all)}"
    best = end.get("best")
    if not best:
        return text
    return f"{text}; best {best.get('monitor', 'score')} {format_number(best['value'])} at epoch {best['epoch']}"


def describe_speed(progress: FitProgress) -> str:
    """Samples per second; "" if unknown."""
    rate = progress.samples_per_second()
    return f"{format_count(rate)} samples/s" if rate else ""
