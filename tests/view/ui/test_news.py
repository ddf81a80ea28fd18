"""News for a page that stays connected."""

import asyncio
import json
import shutil
import socket
import time

import pytest
from starlette.requests import ClientDisconnect, Request
from stoker.view.ui._news import News
from stoker.view.ui._rows import Rows
from stoker.view.ui._shelf import Shelf

from stoker.record import Event, Run
from stoker.view.ui._api import Api
from tests.record.stories import fill
from tests.view.ui.serving import at_once, long_run, make, serving


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """And time to read also on a busy machine."""
    monkeypatch.setattr("stoker.view.ui._news._PATIENCE", 60.0)
    at_once(monkeypatch)


def told(news):
    """The messages since the last time, as (kind, data)."""
    lines = b"".join(news.latest()).decode().split("\n\n")[:-1]
    return [(each.split("\n")[0].removeprefix("event: "), json.loads(each.split("data: ")[1])) for each in lines]


def news_of(folder, *names):
    shelf = Shelf(folder)
    return News(shelf, Rows(shelf), names)


@pytest.fixture
def run(tmp_path):
    """A run that goes on."""
    run = Run.create(tmp_path / "live")
    fill(run.record, epochs=2, end=False)
    yield run
    run.close()


def progress(update, **values):
    return Event(
        "progress", 2000.0 + update, 3, 1, update, values={f"train/{key}": each for key, each in values.items()}
    )


def test_everything_is_told_at_first_and_then_only_what_is_new(tmp_path, run):
    make(tmp_path / "over")
    news = news_of(tmp_path, "live")
    (runs, first), (kind, data) = told(news)
    assert (runs, [each["id"] for each in first["runs"]], first["gone"]) == ("runs", ["live", "over"], [])
    assert (kind, data["id"], data["anew"], data["row"]["state"]) == ("run", "live", True, "running")
    assert data["grown"] == ["train/loss", "train/accuracy", "valid/loss", "valid/accuracy", "lr"]
    assert told(news) == [] == told(news)
    run.record.append(progress(25, loss=0.1))
    (_, rows), (_, data) = told(news)
    assert [each["id"] for each in rows["runs"]] == ["live"] and rows["runs"][0]["update"] == 25
    assert data["grown"] == ["train/loss"] and data["said"] == [] and not data["anew"]
    assert data["status"]["update"] == 25 and data["status"]["latest"]["train/loss"] == 0.1
    run.record.append(progress(26, loss=0.1))
    assert told(news)[1][1]["grown"] == ["train/loss"], "a point like the last one is a point too"
    run.record.append(Event("warning", text="look out"))
    data = told(news)[-1][1]
    assert [each["text"] for each in data["said"]] == ["look out"] and data["grown"] == []


def test_a_run_that_ends_and_one_that_dies(tmp_path, run):
    news = news_of(tmp_path, "live")
    told(news)
    run.close()
    (_, rows), (_, data) = told(news)
    assert rows["runs"][0]["state"] == data["row"]["state"] == "died"
    assert data["row"]["reason"] == "the process went away without a word"


def test_a_resume_makes_void_what_was_told(tmp_path, run):
    news = news_of(tmp_path, "live")
    kept = len(run.record)
    run.record.append(Event("note", text="void"))
    told(news)
    run.record.rewind(kept, Event("resume", epoch=2, update=20))
    data = told(news)[-1][1]
    assert data["anew"] and [each["kind"] for each in data["said"]] == ["resume"]


def test_a_run_that_is_deleted_and_comes_back(tmp_path, run):
    news = news_of(tmp_path, "live", "never")
    assert [data["row"]["state"] for kind, data in told(news) if kind == "run"] == ["running", "gone"]
    run.close()
    shutil.rmtree(run.path)
    (_, rows), (_, data) = told(news)
    assert rows == {"runs": [], "gone": ["live"]}
    assert (data["row"]["state"], data["problem"]) == ("gone", "the run's directory is gone")
    assert told(news) == []
    make(run.path, epochs=1)
    (_, rows), (_, data) = told(news)
    assert rows["runs"][0]["state"] == data["row"]["state"] == "finished" and data["anew"] and "lr" in data["grown"]


def test_a_run_that_is_replaced_by_another_is_told_anew(tmp_path, run):
    news = news_of(tmp_path, "live")
    told(news)
    (run.path / "events.jsonl").write_text(json.dumps({"kind": "note", "time": 1.0, "text": "new"}) + "\n")
    data = told(news)[-1][1]
    assert "read anew" in data["problem"] and [each["text"] for each in data["said"]] == ["new"]


def test_numbers_that_are_none_are_no_news(tmp_path, run):
    run.record.append(Event("valid", epoch=3, update=30, values={"valid/loss": float("nan")}))
    news = news_of(tmp_path, "live")
    told(news)
    assert told(news) == []


def test_a_real_stream_tells_of_a_point_that_comes_while_it_is_open(tmp_path, run):
    with serving(tmp_path) as (_, client), client.stream("GET", "api/events?id=live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        lines = answer.iter_lines()
        take(lines, 2)
        run.record.append(progress(77, loss=0.5))
        heard = take(lines, 2)
        assert [kind for kind, _ in heard] == ["runs", "run"]
        assert heard[1][1]["status"]["update"] == 77 and heard[1][1]["grown"] == ["train/loss"]


def take(lines, many):
    """The next events of a stream."""
    found, kind = [], ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append((kind, json.loads(line.removeprefix("data: "))))
        if len(found) == many:
            break
    return found


def test_a_silent_stream_shows_that_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.view.ui._api._BEAT", 0.1)
    monkeypatch.setattr("stoker.view.ui._api._PAUSE", 0.05)
    with serving(tmp_path) as (_, client), client.stream("GET", "api/events") as answer:
        assert next(line for line in answer.iter_lines() if line.startswith(":")) == ": still here"


def test_a_page_that_reads_nothing_costs_the_others_nothing(tmp_path, run, monkeypatch):
    """Its pipe is full: nothing is kept for it, others are answered, and the server ends all the same."""
    monkeypatch.setattr("stoker.view.ui._api._PAUSE", 0.0)
    long_run(tmp_path / "wide", names=300, points=3)
    with serving(tmp_path) as (server, client), socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(b"GET /api/events?id=wide&id=live HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % server.port)
        for number in range(20):
            text = f"{number}" * 100_000
            run.record.append(Event("note", text=text))
            assert client.get("api/run/live").json()["said"][-1]["text"] == text
        assert client.get("api/run/wide").status_code == 200
        server.stop()


def test_no_more_streams_than_a_machine_can_serve(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.view.ui._api._STREAMS", 1)
    monkeypatch.setattr("stoker.view.ui._api._PAUSE", 0.01)
    with serving(tmp_path) as (_, client):
        with client.stream("GET", "api/events") as answer:
            lines = answer.iter_lines()
            take(lines, 1)
            refused = client.get("api/events")
            assert refused.status_code == 503
            assert refused.json() == {"error": "1 pages are open already; close some of them"}
        for _ in range(3000):
            if status_of(client) == 200:  # the server sees soon that the first one has gone
                break
            time.sleep(0.01)
        else:
            pytest.fail("a page that has gone is counted on")


def test_streams_that_come_at_once_are_counted_before_they_are_sent_anything(tmp_path, monkeypatch):
    monkeypatch.setattr("stoker.view.ui._api._STREAMS", 2)
    api = Api(Shelf(tmp_path), token=None)
    request = Request({"type": "http", "query_string": b"", "headers": []})

    async def nothing(*given):
        raise OSError("the page has gone")

    async def three():
        answers = [await api.events(request) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 503]
        with pytest.raises((OSError, BaseExceptionGroup, ClientDisconnect)):
            await answers[0]({"type": "http", "asgi": {"spec_version": "2.4"}}, nothing, nothing)
        assert [(await api.events(request)).status_code for _ in range(2)] == [200, 503]

    asyncio.run(three())


def status_of(client):
    with client.stream("GET", "api/events") as answer:
        return answer.status_code


def test_a_run_that_breaks_the_reading_is_told_once_and_costs_the_others_nothing(tmp_path, run, monkeypatch):
    make(tmp_path / "odd")
    faults = []
    monkeypatch.setattr("stoker.view.ui._news.tell", faults.append)
    news = news_of(tmp_path, "odd", "live")
    told(news)
    with monkeypatch.context() as patched:
        patched.setattr("stoker.view.ui._news.status", lambda run: {} if run.name == "live" else 1 / 0)
        with (tmp_path / "odd" / "events.jsonl").open("a") as file:
            file.write('{"kind": "note", "time": 1, "text": "x"}\n')
        run.record.append(progress(25, loss=0.1))
        heard = {data["id"]: data for kind, data in told(news) if kind == "run"}
        assert set(heard) == {"odd", "live"} and heard["odd"]["row"]["state"] == "died"
        assert heard["odd"]["problem"] == "stoker ui failed with ZeroDivisionError; its terminal shows where"
        assert told(news) == [] and len(faults) == 2
    assert [data["anew"] for kind, data in told(news) if kind == "run"] == [True], "it can be read again"


def test_for_a_run_that_is_gone_no_name_like_it_is_looked_for(tmp_path, run, monkeypatch):
    monkeypatch.setattr("stoker.view.ui._shelf.did_you_mean", lambda *given: 1 / 0)
    assert told(news_of(tmp_path, "gone"))[-1][1]["row"]["state"] == "gone"


def test_of_very_much_that_was_said_the_last_is_told(tmp_path, run, monkeypatch):
    monkeypatch.setattr("stoker.view.ui._news.SAID", 3)
    for number in range(5):
        run.record.append(Event("note", text=f"{number}"))
    news = news_of(tmp_path, "live")
    assert [each["text"] for each in told(news)[-1][1]["said"]] == ["2", "3", "4"]
    run.record.append(Event("note", text="5"))
    data = told(news)[-1][1]
    assert [each["text"] for each in data["said"]] == ["5"] and not data["anew"]
