"""A real server on a free port, runs to show, and questions to it over real sockets."""

import http.client
import json
import threading
from contextlib import contextmanager

import httpx

from stoker.record import Run
from stoker.view.ui import Server, _shelf
from tests.record.stories import fill


@contextmanager
def serving(folder, **how):
    """A server in a thread, and a client that talks to it; both are gone at the end."""
    server = Server(folder, port=0, **how)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with httpx.Client(base_url=server.address, timeout=30, trust_env=False) as client:
            yield server, client
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive(), "the server did not end"


def exactly(server, path):
    """The status and text of an address that is sent as it stands here; httpx would tidy it up."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def make(path, *, config=None, facts=None, **how):
    """A run that is over."""
    run = Run.create(path, config=config, facts=facts)
    fill(run.record, **how)
    run.close()
    return path


def long_run(path, *, names=2, points=5000):
    """A run with progress in every second: saw teeth with one peak and one dip."""
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


def at_once(monkeypatch):
    """No waiting between two looks at a folder or a run."""
    monkeypatch.setattr(_shelf, "_PAUSE", 0.0)
    monkeypatch.setattr(_shelf, "_REST", 0.0)


def counted_reads(monkeypatch):
    """The names of the runs that are opened from now on, in order."""
    opened = []

    class Counted(_shelf.Follower):
        def __init__(self, path, **how):
            opened.append(path.name)
            super().__init__(path, **how)

    monkeypatch.setattr(_shelf, "Follower", Counted)
    return opened


def open_runs(shelf):
    return sorted(shelf._open._values)
