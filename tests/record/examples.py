"""Records and runs that the tests read."""

import json
import math

from stoker.record import Event, Follower, Record

# The start of a program that runs in a process of its own; without torch it starts ten times faster.
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
"""

METRICS = {"loss": {"direction": "min", "unit": ""}, "accuracy": {"direction": "max", "unit": "%"}}


def append_fit(record, *, epochs=5, planned=5, end=True, stop="", interrupted=False, valid_every=1):
    """Appends the events of a fit with 10 updates per epoch; the best epoch is the third."""
    extra = {"epochs": planned, "metrics": METRICS, "monitor": "valid/loss", "model": "Net", "parameters": 1234}
    record.append(Event("begin", 1000.0, extra={**extra, "device": "cpu", "seed": 0}))
    for epoch in range(1, epochs + 1):
        at = {"time": 1000.0 + 10 * epoch, "epoch": epoch, "update": 10 * epoch}
        train = {"train/loss": 1 / epoch, "train/accuracy": 1 - 1 / (epoch + 1)}
        valid = {"valid/loss": 0.5 + abs(epoch - 3) / 10, "valid/accuracy": 0.5 + epoch / 100}
        valid = valid if epoch % valid_every == 0 else {}
        record.append(Event("progress", values={"train/loss": 1 / epoch}, extra={"phase": "train"}, **at))
        record.append(Event("train", values=train, **at))
        if valid:
            record.append(Event("valid", values=valid, extra={"name": "valid"}, **at))
        record.append(Event("epoch", values={**train, **valid, "lr": 0.1 / epoch}, extra={"seconds": 9.5}, **at))
    if stop:
        record.append(Event("stop", 1000.0 + 10 * epochs, epoch=epochs, text=stop))
    if end:
        extra = {"epochs": epochs, "seconds": 10.0 * epochs, "interrupted": interrupted}
        record.append(Event("end", 1001.0 + 10 * epochs, extra=extra))
    return record


def example_record(**options):
    return append_fit(Record(), **options)


def follow(run):
    """What another process has read of a run."""
    follower = Follower(run.path)
    assert follower.refresh()
    return follower


def record_of(values, name="valid/loss"):
    """A record with one value per epoch."""
    record = Record()
    for epoch, value in enumerate(values, 1):
        record.append(Event("valid", float(epoch), epoch=epoch, update=10 * epoch, values={name: value}))
    return record


def same_floats(a, b):
    """Whether two lists of floats are equal, counting NaN as equal to NaN."""
    return len(a) == len(b) and all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))


def to_lines(events):
    """The lines of an events file that hold these events, written independently of stoker."""
    return b"".join(json.dumps(_fields(event)).encode() + b"\n" for event in events)


def _fields(event):
    values = {name: value if math.isfinite(value) else _name(value) for name, value in event.values.items()}
    fields = {"kind": event.kind, "time": event.time, "epoch": event.epoch, "batch": event.batch}
    return {**fields, "update": event.update, "values": values, "text": event.text, "extra": dict(event.extra)}


def _name(value):
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
