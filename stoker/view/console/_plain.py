"""Plain lines, for files, pipes and terminals that can't do more: a handful an epoch."""

from collections.abc import Mapping
from typing import TextIO

from stoker._text import format_number as number
from stoker.record import Event, Record
from stoker.view.console._format import duration, plain_number
from stoker.view.console._story import aside, ending, plan, reason, speed, title
from stoker.view.console._stream import Writer
from stoker.view.console._watch import Watch

_PATIENCE = 30.0  # seconds without a line before an epoch is a long one
_PARTS = 5  # a long epoch says something at every fifth
_CLASSES = 10  # of a metric with one number a class, so many are written out


class Plain:
    """A listener that writes lines: one at the begin, one an epoch, more of long ones, one at the end.

    >>> from stoker.record import Event, Record
    >>> import sys
    >>> record = Record()
    >>> _ = record.subscribe(Plain(record, sys.stdout))
    >>> record.append(Event("begin", 0.0, extra={"model": "Net", "epochs": 2, "batches": 6}))
    Net: 2 epochs of 6 batches (* = best so far)
    """

    def __init__(self, record: Record, stream: TextIO) -> None:
        self.watch = Watch(record)
        self.writer = Writer(stream)
        self.phase = ("", 0)  # the phase and epoch that the next three are about
        self.since = 0.0  # when it began
        self.due = 0.0  # when it may say something
        self.part = -1  # the fifth of it that said something last
        self.closed = False

    def __call__(self, event: Event) -> None:
        """Writes what an event has to say, mostly nothing."""
        if self.closed:
            return
        watch = self.watch
        watch.see(event)
        if event.kind == "progress":
            self._progress(event)
            return
        line = aside(event)
        if event.kind == "epoch":
            line = self._epoch(event)
        elif event.kind == "valid" and event.batch < (watch.planned("batches") or 0):
            line = f"{self._place(event)}  update {event.update:,}  {self._numbers(event.values)}"
        elif event.kind == "begin":
            line = f"{title(watch)}: {plan(watch)} (* = best so far)"
        if line:
            self.writer.line(line)
        if event.kind == "end":
            self.close()

    def close(self) -> None:
        """Says how it ended, once."""
        if self.closed or not self.watch.begin:
            return
        self.closed = True
        if reason(self.watch):
            self.writer.line(reason(self.watch))
        self.writer.line(ending(self.watch))

    def _place(self, event: Event) -> str:
        planned = self.watch.planned("epochs")
        return f"epoch {event.epoch:>{len(str(planned))}}/{planned}" if planned else f"epoch {event.epoch}"

    def _epoch(self, event: Event) -> str:
        seconds = event.extra.get("seconds")
        took = f"  {duration(seconds)}" if seconds is not None else ""
        return f"{self._place(event)}  {self._numbers(event.values)}{took}"

    def _numbers(self, values: Mapping[str, float]) -> str:
        """All numbers, set by set; those of the watched set are marked where they are the best so far."""
        groups: dict[str, dict[str, list[str]]] = {}
        meters: list[str] = []
        for name, value in values.items():
            group, _, metric = name.partition("/")
            if group not in self.watch.sets or not metric:
                meters.append(f"{name} {plain_number(value)}")
                continue
            mark = "*" if group == self.watch.watched and self.watch.improved(name, value) else ""
            groups.setdefault(group, {}).setdefault(metric.partition("/")[0], []).append(number(value) + mark)
        parts = [
            f"{group} " + " ".join(f"{metric} {_several(texts)}" for metric, texts in found.items())
            for group, found in groups.items()
        ]
        return "  ".join([*parts, *meters])

    def _progress(self, event: Event) -> None:
        """A line after 30 seconds, then at every fifth of the phase (or, of unknown length, as its time doubles)."""
        phase = (str(event.extra.get("phase", "train")), event.epoch)
        if phase != self.phase:
            self.phase, self.part, self.since, self.due = phase, -1, event.time, event.time + _PATIENCE
        if event.time < self.due:
            return
        within, spent = self.watch.within(), event.time - self.since
        if within is not None and (within == 1 or int(within * _PARTS) == self.part):
            return  # the whole of it has the epoch's own line
        self.part = -1 if within is None else int(within * _PARTS)
        self.due = event.time + (max(_PATIENCE, spent) if within is None else _PATIENCE)
        of = f"/{self.watch.batches:,}" if self.watch.batches else ""
        verb = "validating, " if phase[0] == "valid" else ""
        texts = [
            f"{self._place(event)}  {verb}batch {event.batch:,}{of}",
            self._numbers(event.values),
            speed(self.watch),
        ]
        if within:
            texts.append(f"{duration(spent * (1 - within) / within)} left of this {'set' if verb else 'epoch'}")
        self.writer.line("  ".join(text for text in texts if text))


def _several(texts: list[str]) -> str:
    """One number as it is; one a class in brackets, long lists by their ends."""
    if len(texts) == 1:
        return texts[0]
    if len(texts) > _CLASSES:
        texts = [*texts[: _CLASSES // 2], f"… {len(texts) - _CLASSES} more …", *texts[-(_CLASSES // 2) :]]
    return f"[{' '.join(texts)}]"
