"""A real server on a free port, runs to show, and requests over real sockets."""

import http.client
import json
import os
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx

import stoker
from stoker.record import Run
from stoker.view.ui import Server
from tests.record.examples import append_fit


@contextmanager
def serving(folder, **options):
    """A server in a thread and a client for it."""
    server = Server(folder, port=0, **options)
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


def long_run(path, *, names=2, points=5000):
    """A run with one progress event per update: a saw-tooth with one peak and one dip."""
    run = Run.create(path)
    with (path / "events.jsonl").open("w") as file:
        file.write(json.dumps({"kind": "begin", "time": 0, "extra": {"epochs": 1}}) + "\n")
        for update in range(1, points + 1):
            value = {points // 2: 1e6, points // 3: -1e6}.get(update, update % 7)
            values = {f"train/m{number}": value + number for number in range(names)}
            event = {"kind": "progress", "time": float(update), "epoch": 1, "update": update, "values": values}
            file.write(json.dumps(event) + "\n")
        file.write(json.dumps({"kind": "end", "time": points + 1.0, "epoch": 1, "update": points}) + "\n")
    run.close()
    return path


def environment():
    """For subprocesses that import this checkout."""
    return {**os.environ, "PYTHONPATH": str(Path(stoker.__file__).parents[1]), "PYTHONIOENCODING": "utf-8"}
