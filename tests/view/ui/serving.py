"""A real server, runs to show (the same numbers every time), and requests over real sockets."""

import http.client
import json
import math
import os
import random
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx

import stoker
from stoker.record import Event, Run
from stoker.view.ui import Server
from tests.record.examples import append_fit

BEGAN = 1_900_000_000.0  # seconds since 1970
METRICS = {"loss": ("min", ""), "accuracy": ("max", ""), "cpu": (None, "%"), "gpu_memory": (None, "GB")}
PLAN = ["cpu, 32-bit floats", "AdamW, lr by a cosine over 400 updates", "validation after each epoch"]


@contextmanager
def serving(folder, *, port=0, **options):
    """A server in a thread and a client for it."""
    server = Server(folder, port=port, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with httpx.Client(base_url=server.address, timeout=60, trust_env=False) as client:
            yield server, client
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive(), "the server did not end"


def rows_of(client):
    """The rows of the list by id, once all of them are read."""
    while True:
        rows = {row["id"]: row for row in client.get("api/runs").json()["runs"]}
        if all(row["state"] != "unread" for row in rows.values()):
            return rows


def get_raw(server, path):
    """The status and text for a URL that is sent as it is; httpx would normalise it."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class EventReader:
    """The messages of a stream of server-sent events."""

    def __init__(self, answer):
        self._lines = answer.iter_lines()

    def take(self, count):
        """The next messages, as (kind, data)."""
        messages, kind = [], ""
        for line in self._lines:
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                messages.append((kind, json.loads(line.removeprefix("data: "))))
            if len(messages) == count:
                break
        return messages

    def until(self, kind, condition):
        """The data of the first message of a kind that meets a condition."""
        while True:
            found, data = self.take(1)[0]
            if found == kind and condition(data):
                return data


def make(path, *, config=None, facts=None, **how):
    """An ended run."""
    run = Run.create(path, config=config, facts=facts)
    append_fit(run.record, **how)
    run.close()
    return path


def train(path, *, lr=0.01, hidden=64, epochs=8, planned=None, batches=50, end=True):
    """A run that learns, faster with a larger lr; it is still open if `end` is false."""
    run = Run.create(path, config={"lr": lr, "model": {"hidden": hidden, "norm": "layer"}, "seed": 0})
    draw, write = random.Random(0), run.record.append
    known = {name: {"direction": direction, "unit": unit} for name, (direction, unit) in METRICS.items()}
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
        train = {"train/loss": loss, "train/accuracy": 1 - loss / 3}
        valid = {"valid/loss": loss * 1.1 + 0.02 * draw.random(), "valid/accuracy": 1 - loss / 2.8}
        write(Event("train", values=train, **at))
        write(Event("valid", values=valid, extra={"name": "valid"}, **at))
        machine = {"cpu": 80 + 10 * draw.random(), "gpu_memory": 3 + epoch / 10}
        write(Event("epoch", values={**train, **valid, **machine, "lr": lr * math.cos(epoch / 20)}, **at))
    if end:
        write(Event("end", at["time"], epochs, update=epochs * batches, extra={"seconds": at["time"] - BEGAN}))
        run.close()
    return run


def _loss(update, lr):
    return 0.08 + 2.2 / (1 + update * lr * 1.5)


def long_run(path, *, names=2, points=5000):
    """A run with one progress event per update: a saw-tooth with one peak and one dip."""
    Run.create(path).close()
    known = {f"m{number}": {"direction": "min", "unit": ""} for number in range(names)}
    lines = [{"kind": "begin", "time": 0, "extra": {"epochs": 1, "metrics": known}}]
    for update in range(1, points + 1):
        value = {points // 2: 1e6, points // 3: -1e6}.get(update, update % 7)
        values = {f"train/m{number}": value + number for number in range(names)}
        lines.append({"kind": "progress", "time": float(update), "epoch": 1, "update": update, "values": values})
    lines.append({"kind": "end", "time": points + 1.0, "epoch": 1, "update": points})
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def environment():
    """For subprocesses that import this checkout."""
    return {**os.environ, "PYTHONPATH": str(Path(stoker.__file__).parents[1]), "PYTHONIOENCODING": "utf-8"}


def panel(page, title):
    return page.get_by_role("region", name=title, exact=True)
