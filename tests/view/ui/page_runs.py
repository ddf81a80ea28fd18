"""Runs as people have them, for a browser to look at; the same numbers every time."""

import json
import math
import random

from stoker.record import Event, Run

METRICS = {"loss": {"direction": "min", "unit": ""}, "accuracy": {"direction": "max", "unit": ""}}
BEGAN = 1_900_000_000.0  # seconds since 1970
SYSTEM = {"cpu": "%", "gpu_memory": "GB"}
PLAN = ["cpu, 32-bit floats", "AdamW, lr by a cosine over 400 updates", "validation after each epoch"]


def train(path, *, lr=0.01, hidden=64, epochs=8, planned=None, batches=50, end=True, seed=0, extra_metrics=()):
    """A fit that learns, faster with a larger lr; gives the run, which is still open where `end` is false."""
    run = Run.create(path, config={"lr": lr, "model": {"hidden": hidden, "norm": "layer"}, "seed": seed})
    draw, write = random.Random(seed), run.record.append
    known = METRICS | {name: {"direction": None, "unit": unit} for name, unit in SYSTEM.items()}
    extra = {"epochs": planned or epochs, "batches": batches, "metrics": known, "monitor": "valid/loss", "plan": PLAN}
    write(Event("begin", BEGAN, extra={**extra, "model": "Digits", "parameters": 135_000, "device": "cpu"}))
    for epoch in range(1, epochs + 1):
        for batch in range(10, batches + 1, 10):
            update = (epoch - 1) * batches + batch
            values = {"train/loss": _loss(update, lr) * draw.uniform(0.85, 1.15), "lr": lr * math.cos(update / 900)}
            at = {"time": BEGAN + update / 10, "epoch": epoch, "batch": batch, "update": update}
            write(Event("progress", values=values, extra={"phase": "train", "batches": batches}, **at))
        at = {"time": BEGAN + epoch * batches / 10, "epoch": epoch, "update": epoch * batches}
        loss = _loss(epoch * batches, lr)
        train = {"train/loss": loss, "train/accuracy": 1 - loss / 3} | {
            name: loss * draw.random() for name in extra_metrics
        }
        valid = {"valid/loss": loss * 1.1 + 0.02 * draw.random(), "valid/accuracy": 1 - loss / 2.8}
        write(Event("train", values=train, **at))
        write(Event("valid", values=valid, extra={"name": "valid"}, **at))
        machine = {"cpu": 80 + 10 * draw.random(), "gpu_memory": 3 + epoch / 10}
        write(Event("epoch", values={**train, **valid, **machine, "lr": lr * math.cos(epoch / 20)}, **at))
    if end:
        last = BEGAN + epochs * batches / 10
        write(
            Event("end", last, epoch=epochs, update=epochs * batches, extra={"epochs": epochs, "seconds": last - BEGAN})
        )
        run.close()
    return run


def wide(path, *, metrics=50, points=10_000, seed=0):
    """A run with many numbers at many updates, written at once: saw teeth around a falling line."""
    run = Run.create(path, config={"seed": seed})
    names = [f"train/m{place:02}" for place in range(metrics)]
    known = {name.partition("/")[2]: {"direction": "min", "unit": ""} for name in names}
    lines = [{"kind": "begin", "time": BEGAN, "extra": {"epochs": 1, "metrics": known}}]
    for update in range(1, points + 1):
        value = round(5 / (1 + update / 500) + update * (seed + 7) % 11 / 50, 4)
        at = {"time": BEGAN + update, "epoch": 1, "update": update}
        lines.append({"kind": "progress", **at, "values": dict.fromkeys(names, value)})
    lines.append({"kind": "end", "time": BEGAN + points + 1, "epoch": 1, "update": points})
    run.close()
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _loss(update, lr):
    return 0.08 + 2.2 / (1 + update * lr * 1.5)
