"""What there is to show at a moment: the events of a record so far, folded."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from stoker.record import Best, Event, Record, fraction_done

_BESIDE = {"checkpoint", "note", "warning"}  # events that don't move the training on


@dataclass(frozen=True)
class Row:
    """A metric's numbers, by set, and the best that the watched set had."""

    name: str
    values: Mapping[str, float]
    best: Best | None
    improved: bool  # the watched set's number is the best so far


class Watch:
    """The state of a fit, as far as it can be told from its events; the record is asked for what is best."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.begin: Event | None = None
        self.start = 0.0  # when this part of the run began: its begin, or its resume
        self.before = 0.0  # seconds of the parts before it
        self.now: Event | None = None  # the latest event that has a position
        self.updates = 0
        self.progress: Event | None = None  # of the running epoch
        self.end: Event | None = None
        self.failed: Event | None = None
        self.stopped = ""
        self.values: dict[str, float] = {}  # the latest finished ones
        self.when: dict[str, int] = {}  # the epoch that each of them is of
        self.sets: list[str] = ["train"]
        self.running: list[float] = []  # the first epochs' running loss, for want of a curve

    def see(self, event: Event) -> None:
        """Takes an event in; cheap, and nothing is drawn."""
        kind = event.kind
        if kind == "progress":
            self.progress = event
            if event.epoch <= 2 and "train/loss" in event.values and event.extra.get("phase") != "valid":
                self.running.append(event.values["train/loss"])
                if len(self.running) > 1000:
                    self.running = self.running[::2]
        elif kind in ("train", "valid", "epoch"):
            self.values.update(event.values)
            self.when.update(dict.fromkeys(event.values, event.epoch))
            if kind == "valid":
                self._meet(event)
            if kind == "epoch":
                self.progress = None
        elif kind == "begin":
            self.begin, self.start = event, event.time
        elif kind == "resume":
            self._see_again(event)
        elif kind == "stop":
            self.stopped = event.text
        elif kind == "error":
            self.failed = event
        elif kind == "end":
            self.end = event
        if event.epoch and kind not in _BESIDE:
            self.now = event
            self.updates = max(self.updates, event.update)

    def _see_again(self, resume: Event) -> None:
        """What stands of the record, from its first event on, in the place of all that was seen."""
        self.now, self.updates, self.running, self.sets = None, 0, [], ["train"]
        self.values, self.when = {}, {}
        for event in takewhile(lambda each: each is not resume, self.record.events):
            if event.kind != "resume":
                self.see(event)
        self.end, self.failed, self.stopped = None, None, ""
        self.progress = resume if resume.batch else None  # so far this epoch has come
        self.start, self.before = resume.time, self.record.summary()["seconds"]

    def _meet(self, event: Event) -> None:
        for name in event.values:
            group = name.partition("/")[0]
            if group not in self.sets:
                self.sets.append(group)

    def planned(self, what: str) -> Any:
        """What the begin event says of the plan: `epochs`, `updates`, `minutes`, `batches`; None where it is open."""
        return self.begin.extra.get(what) if self.begin else None

    @property
    def watched(self) -> str:
        """The set whose best numbers are shown: the monitor's, else the first validation set, else `train`."""
        group = str(self.planned("monitor") or "").partition("/")[0]
        return group if group in self.sets else self.sets[min(1, len(self.sets) - 1)]

    @property
    def epoch(self) -> int:
        return self.now.epoch if self.now else 0

    @property
    def batches(self) -> int | None:
        """The batches of the running phase, where they are known."""
        told = self.progress.extra.get("batches") if self.progress else None
        return told or (None if self.validating else self.planned("batches"))

    @property
    def validating(self) -> bool:
        return self.progress is not None and self.progress.extra.get("phase") == "valid"

    @property
    def seconds(self) -> float:
        """From the begin event to the latest one, and those of the parts before that a resumed run goes on from."""
        last = self.end or self.failed or self.now
        return self.before + (max(0.0, last.time - self.start) if self.begin and last else 0.0)

    def within(self) -> float | None:
        """How much of the running phase is done, from 0 to 1; None where nobody knows."""
        if self.progress is None:
            return 1.0 if self.now and self.now.kind == "epoch" else 0.0
        return min(1.0, self.progress.batch / self.batches) if self.batches else None

    def fraction(self) -> float | None:
        """How much of the whole plan is done, from 0 to 1; None where the plan has no end."""
        done = self.now.epoch - 1 + (1.0 if self.validating else self.within() or 0.0) if self.now else 0.0
        plan = self.begin.extra if self.begin else {}
        return fraction_done(plan, epochs=done, updates=self.updates, seconds=self.seconds)

    def left(self) -> float | None:
        """The seconds that the rest of the plan will take at this pace; None before there is a pace."""
        done = self.fraction()
        return self.seconds * (1 - done) / done if done and self.seconds else None

    def latest(self) -> dict[str, float]:
        """Every number's latest value: finished ones, and the running ones of this epoch over them."""
        return {**self.values, **self.progress.values} if self.progress else dict(self.values)

    def rows(self) -> list[Row]:
        """The metrics with their numbers by set, without those that hold one number a class."""
        found: dict[str, dict[str, float]] = {}
        for name, value in self.latest().items():
            group, _, metric = name.partition("/")
            if group in self.sets and metric and "/" not in metric:
                found.setdefault(metric, {})[group] = value
        return [self._row(metric, values) for metric, values in found.items()]

    def _row(self, metric: str, values: Mapping[str, float]) -> Row:
        name = f"{self.watched}/{metric}"
        best = self.record.best(name) if self.record.direction(name) else None
        return Row(metric, values, best, self.improved(name, values.get(self.watched)))

    def improved(self, name: str, value: float | None) -> bool:
        """Whether a finished number is the best that it ever was; the first epoch's and running ones are not."""
        if value is None or self.values.get(name) != value or not self.record.direction(name):
            return False
        best = self.record.best(name)
        return best is not None and best.epoch > 1 and (best.epoch, best.value) == (self.when[name], value)

    def meters(self) -> dict[str, float]:
        """The numbers that belong to no set: learning rates, memory, what was logged; `rate` has its own place."""
        numbers = self.latest().items()
        return {name: value for name, value in numbers if name.split("/")[0] not in (*self.sets, "samples_per_second")}

    def rate(self) -> float | None:
        """Samples a second, as the loop says."""
        if self.progress and self.progress.extra.get("samples_per_second"):
            return float(self.progress.extra["samples_per_second"])
        return self.values.get("samples_per_second")

    def curves(self) -> dict[str, list[float]]:
        """The losses to draw: of the epochs, or the running one while there are no two epochs to join."""
        names = ["train/loss", *(f"{group}/loss" for group in (self.watched,) if group != "train")]
        whole = {name: self.record.series(name) for name in names if name in self.values}
        if len(whole.get("train/loss", ())) >= 2:
            return whole
        return {"train/loss": self.running} if len(self.running) > 1 else {}
