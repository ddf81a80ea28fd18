"""Runs to ask questions about."""

import math

from stoker.record import Event, Record

# Before a program for a process of its own that has no business with torch; it starts ten times faster without.
LIGHT = """
import sys
sys.modules["torch"] = None
"""

METRICS = {"loss": {"direction": "min", "unit": ""}, "accuracy": {"direction": "max", "unit": "%"}}


def fill(record, *, epochs=5, planned=5, end=True, stop="", valid_every=1):
    """Appends what a fit of some epochs of 10 updates says; the best epoch is the third."""
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
        record.append(Event("end", 1001.0 + 10 * epochs, extra={"epochs": epochs, "seconds": 10.0 * epochs}))
    return record


def story(**how):
    return fill(Record(), **how)


def numbers(values, name="valid/loss"):
    """A record of one number, an epoch each."""
    record = Record()
    for epoch, value in enumerate(values, 1):
        record.append(Event("valid", float(epoch), epoch=epoch, update=10 * epoch, values={name: value}))
    return record


def same(a, b):
    """Equal lists of floats, NaN being NaN."""
    return len(a) == len(b) and all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))
