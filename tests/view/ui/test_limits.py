"""What many, slow and oversized requests may cost: headers, idle connections and open pages."""

import socket
import threading
import time
from contextlib import ExitStack

from stoker.record import Event, Follower, Run
from stoker.view.ui import _app
from tests.record.examples import append_fit
from tests.view.ui.serving import EventReader, make, rows_of, serving


def connect(server, data):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(data)
    return connection


def test_headers_of_any_size_are_not_collected(tmp_path):
    with serving(tmp_path) as (server, client):
        fits = f"GET /api/runs HTTP/1.1\r\nHost: localhost:{server.port}\r\nX: {'x' * 100_000}\r\n\r\n"
        with connect(server, fits.encode()) as connection:
            assert connection.recv(12) == b"HTTP/1.1 200"
        with connect(server, b"GET / HTTP/1.1\r\nX: ") as connection:
            sent = 0
            try:
                while sent < 300 << 20:
                    sent += connection.send(b"x" * 65536)
            except ConnectionError:
                pass
            assert sent < 16 << 20, "the server has closed the connection"
        assert client.get("api/runs").status_code == 200


def test_connections_that_send_no_complete_request_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(_app, "_PATIENCE", 0.2)  # seconds
    with serving(tmp_path) as (server, client), client.stream("GET", "api/events") as answer:
        events = EventReader(answer)
        host = f"Host: localhost:{server.port}\r\n".encode()
        body = b"POST /api/control/x HTTP/1.1\r\n" + host + b"Content-Length: 100\r\n\r\n{"
        second = b"GET /api/runs HTTP/1.1\r\n" + host + b"\r\nGET /ap"
        slow = [connect(server, data) for data in (b"", b"GET / HTTP/1.1\r\n" + host, body, second)]
        for connection in slow:
            while connection.recv(65536):
                pass  # answers to complete requests come first, then the end
            connection.close()
        make(tmp_path / "new")
        assert events.until("runs", lambda data: data["runs"])["runs"][0]["id"] == "new", "an open page stays connected"
        assert client.get("api/runs").status_code == 200


def test_the_number_of_connections_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(_app, "_MAX_CONNECTIONS", 5)
    with serving(tmp_path) as (server, _), ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(connect(server, b""))
        with connect(server, b"") as refused:
            assert refused.recv(1) == b""


def test_the_list_is_read_once_for_all_pages_and_waits_for_none_of_them(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "live")
    append_fit(run.record, end=False)
    reads, stuck, released = [], threading.Event(), threading.Event()
    refresh = Follower.refresh

    def count(self, *, seconds=None):
        reads.append(time.monotonic())
        if stuck.is_set():
            released.wait(60)
        return refresh(self, seconds=seconds)

    monkeypatch.setattr(Follower, "refresh", count)
    with serving(tmp_path) as (_, client), ExitStack() as stack:
        assert rows_of(client)["live"]["state"] == "running"
        pages = [stack.enter_context(client.stream("GET", "api/events?id=live")) for _ in range(20)]
        readers = [EventReader(answer) for answer in pages]  # dropping one would close its stream
        for reader in readers:
            reader.take(2)
        start = time.monotonic()
        reads.clear()
        time.sleep(1.5)
        # The list and the shown run are read every 0.4 seconds at most, however many pages there are.
        assert len(reads) <= 2 * ((time.monotonic() - start) / 0.4 + 2)
        stuck.set()  # a disk that does not answer
        time.sleep(1.0)
        assert client.get("api/runs").json()["runs"][0]["id"] == "live"
        released.set()
        assert readers
    run.close()


def test_the_index_of_a_run_is_enough_for_the_list_and_overlays_and_a_zoom_reads_the_rest(tmp_path):
    run = Run.create(tmp_path / "large")
    metrics = {"loss": {"direction": "min"}}
    run.record.append(Event("begin", 1.0, extra={"epochs": 1, "metrics": metrics, "monitor": "valid/loss"}))
    for update in range(1, 40_001):
        value = -5.0 if update == 12_345 else 1.0 + update % 7
        values = {"valid/loss": value, "note/to_make_the_file_larger_than_four_megabytes": 0.5}
        run.record.append(Event("log", 1.0 + update, epoch=1, update=update, values=values))
    run.record.append(Event("epoch", 50_000.0, epoch=1, update=40_000, values={"valid/loss": 3.0}))
    run.record.append(Event("end", 50_001.0, epoch=1, update=40_000))
    run.close()
    assert (run.path / "events.jsonl").stat().st_size > 1 << 22 and (run.path / "index.bin").exists()
    with serving(tmp_path) as (_, client):
        row = client.get("api/runs").json()["runs"][0]
        assert (row["state"], row["bests"]["valid/loss"], row["last"]["valid/loss"]) == ("finished", -5.0, 3.0)
        query = {"name": "valid/loss", "id": "large", "most": 500}
        found = client.get("api/overlay", params=query).json()
        assert found["behind"] == [] and min(found["series"]["large"]["y"]) == -5.0
        assert 100 < len(found["series"]["large"]["x"]) <= 510
        near = {"behind": ["large"]}
        while near["behind"]:
            near = client.get("api/overlay", params={**query, "from": 12_340, "to": 12_350}).json()
        assert near["series"]["large"]["x"] == list(range(12_339, 12_352))
