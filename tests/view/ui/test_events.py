"""Server-sent events for a page that stays connected, and how large folders are read."""

import os
import shutil
import socket
import time
from contextlib import contextmanager

import pytest

from stoker.record import Event, Run
from stoker.view.ui import _app, _events
from tests.record.examples import append_fit
from tests.view.ui.serving import EventReader, long_run, make, rows_of, serving


@pytest.fixture(autouse=True)
def _faster(monkeypatch):
    monkeypatch.setattr(_events, "_INTERVAL", 0.05)  # seconds


@pytest.fixture
def run(tmp_path):
    """A run that this process writes."""
    run = Run.create(tmp_path / "live")
    append_fit(run.record, epochs=2, end=False)
    yield run
    run.close()


@contextmanager
def listening(folder, *ids):
    query = "&".join(f"id={run_id}" for run_id in ids)
    with serving(folder) as (_, client), client.stream("GET", f"api/events?{query}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        yield EventReader(answer)


def progress(update, **values):
    values = {f"train/{name}": value for name, value in values.items()}
    return Event("progress", 2000.0 + update, 3, 1, update, values=values)


def first_of(events, *ids):
    """The first complete message of each shown run."""
    return {run_id: events.until("run", lambda data, run_id=run_id: data["id"] == run_id) for run_id in ids}


def test_the_first_messages_hold_everything_and_later_ones_the_changes(tmp_path, run):
    make(tmp_path / "ended")
    with listening(tmp_path, "live") as events:
        listed = events.until("runs", lambda data: True)
        assert [row["id"] for row in listed["runs"]] == ["ended", "live"] and listed["gone"] == []
        data = first_of(events, "live")["live"]
        assert data["reset"] and data["row"]["state"] == "running"
        assert data["updated"] == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"]
        for update in (25, 26):  # the second point has the same value
            run.record.append(progress(update, loss=0.1))
            data = events.until("run", lambda data, update=update: data["status"]["update"] == update)
            assert data["updated"] == ["train/loss"] and data["messages"] == [] and not data["reset"]
        assert data["status"]["latest"]["train/loss"] == 0.1
        run.record.append(Event("warning", text="look out"))
        data = events.until("run", lambda data: data["messages"])
        assert [each["text"] for each in data["messages"]] == ["look out"] and data["updated"] == []


def test_a_resume_invalidates_earlier_messages(tmp_path, run):
    kept = len(run.record)
    run.record.append(Event("note", text="lost"))
    with listening(tmp_path, "live") as events:
        first_of(events, "live")
        run.record.rewind(kept, Event("resume", epoch=2, update=20))
        data = events.until("run", lambda data: data["reset"])
        assert [each["kind"] for each in data["messages"]] == ["resume"]


def test_a_run_that_is_deleted_and_created_again(tmp_path, run):
    with listening(tmp_path, "live", "never") as events:
        assert first_of(events, "live", "never")["never"]["row"]["state"] == "gone"
        run.close()
        shutil.rmtree(run.path)
        missing = {"list", "run"}
        while missing:  # both report it, in either order
            kind, data = events.take(1)[0]
            if kind == "runs" and data["gone"] == ["live"]:
                missing.discard("list")
            elif kind == "run" and data["row"]["state"] == "gone":
                assert (data["id"], data["problem"]) == ("live", "the run's directory does not exist any more")
                missing.discard("run")
        make(run.path, epochs=1)
        changes = [events.until("run", lambda data: data["reset"])]
        while changes[-1]["row"]["state"] != "finished":
            changes.append(events.until("run", lambda data: True))
        assert "lr" in {name for change in changes for name in change["updated"]}


def test_without_changes_only_keep_alive_comments_are_sent(tmp_path, run, monkeypatch):
    run.record.append(Event("valid", epoch=3, update=30, values={"valid/loss": float("nan")}))  # not equal to itself
    monkeypatch.setattr(_events, "_KEEP_ALIVE", 0.2)
    with serving(tmp_path) as (_, client), client.stream("GET", "api/events?id=live") as answer:
        lines = [line for line, _ in zip(answer.iter_lines(), range(30), strict=False) if line]
    assert lines.count(": keep-alive") >= 8
    assert sum(line.startswith("event: ") for line in lines) == 2, "the first messages"


def test_many_messages_are_cut_to_the_last_ones(tmp_path, run):
    for number in range(1200):
        run.record.append(Event("note", text=f"{number}"))
    with listening(tmp_path, "live") as events:
        assert len(first_of(events, "live")["live"]["messages"]) <= 1000
        run.record.append(Event("note", text="one more"))
        assert events.until("run", lambda data: data["messages"])["messages"][-1]["text"] == "one more"


def test_a_page_that_reads_nothing_does_not_slow_the_others(tmp_path, run):
    """Its connection is full: nothing is queued for it, others are answered, and the server still ends."""
    long_run(tmp_path / "wide", names=300, points=3)
    with serving(tmp_path) as (server, client), socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(b"GET /api/events?id=wide&id=live HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % server.port)
        for number in range(5):
            text = f"{number}" * 100_000
            run.record.append(Event("note", text=text))
            while text not in [each["text"] for each in client.get("api/run/live").json()["messages"]]:
                time.sleep(0.05)
        server.stop()


def test_the_number_of_streams_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(_app, "_MAX_STREAMS", 1)
    with serving(tmp_path) as (_, client):
        with client.stream("GET", "api/events") as answer:
            events = EventReader(answer)  # dropping it would close the stream
            events.take(1)
            refused = client.get("api/events")
            assert refused.status_code == 503
            assert refused.json() == {"error": "1 pages are open already; close some of them"}
        status = 503
        while status == 503:  # until the server notices that the first page has left
            with client.stream("GET", "api/events") as answer:
                status = answer.status_code
            time.sleep(0.02)
        assert status == 200


def test_only_runs_that_changed_are_read_again(tmp_path):
    """A file that is replaced without a trace (same inode, size and time) keeps its row."""
    path = make(tmp_path / "a") / "events.jsonl"
    with serving(tmp_path) as (_, client):
        before, stat = rows_of(client)["a"], path.stat()
        text = path.read_text().replace("0.7", "0.9")
        with path.open("r+") as file:
            file.write(text)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        for _ in range(3):
            time.sleep(0.45)  # the list reads a folder at most every 0.4 s
            assert rows_of(client)["a"] == before
        os.utime(path)
        while rows_of(client)["a"]["last"]["valid/loss"] != 0.9:
            time.sleep(0.05)


def test_a_large_run_is_listed_at_once_and_is_correct_in_the_end(tmp_path):
    """Its best epoch is somewhere in 12 MB, where a sample may miss it."""
    path = long_run(tmp_path / "large", names=1, points=1)
    lines = ['{"kind":"begin","time":0.0,"extra":{"epochs":90000}}']
    for epoch in range(1, 90_001):
        value = -5.0 if epoch == 45_678 else 1.0
        lines.append(
            f'{{"kind":"valid","time":{epoch}.0,"epoch":{epoch},"update":{epoch},"values":{{"valid/loss":{value}}},'
            '"extra":{"name":"valid","filler":"so that a line has some hundred and thirty bytes"}}'
        )
    (path / "events.jsonl").write_text("\n".join(lines) + "\n")
    with serving(tmp_path) as (_, client):
        first = rows_of(client)["large"]
        assert first["last"] == {"valid/loss": 1.0} and first["update"] == 90_000
        while rows_of(client)["large"]["best"] != {"name": "valid/loss", "value": -5.0, "epoch": 45_678}:
            time.sleep(0.05)
        found = client.get("api/points/large?name=valid/loss").json()
        assert not found["behind"] and len(found["series"]["valid/loss"]["y"]) <= 1000
        assert min(found["series"]["valid/loss"]["y"]) == -5.0
