"""The requests of the page and their answers, over real sockets."""

import math
from urllib.parse import quote

import pytest

import stoker
from stoker.checkpoint import Place, Store
from stoker.record import Control, Event, Follower, Run
from tests.record.examples import append_fit
from tests.view.ui.serving import EventReader, get_raw, long_run, make, rows_of, serving

CONFIG = {"lr": 0.1, "model": {"hidden": 64}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A client of a server with three runs."""
    folder = tmp_path_factory.mktemp("runs")
    make(folder / "a", config=CONFIG)
    make(folder / "group" / "b", config={**CONFIG, "lr": 0.2}, epochs=3, stop="Early stopping", planned=9)
    long_run(folder / "long")
    with serving(folder) as (_, connected):
        rows_of(connected)
        yield connected


def test_the_list(client):
    answer = client.get("api/runs")
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert set(found) == {"folder", "runs", "control", "problems"} and found["control"] is True
    rows = {each["id"]: each for each in found["runs"]}
    assert list(rows) == ["a", "group/b", "long"]
    assert rows["group/b"]["name"] == "b"
    assert (rows["group/b"]["state"], rows["group/b"]["reason"]) == ("finished", "Early stopping")
    row = rows["a"]
    assert (row["state"], row["epoch"], row["epochs"], row["update"]) == ("finished", 5, 5, 50)
    assert row["best"] == {"name": "valid/loss", "value": 0.5, "epoch": 3}
    assert row["last"]["valid/loss"] == 0.7 and row["config"] == {"lr": 0.1, "model.hidden": 64}
    assert (row["device"], row["model"], row["began"], row["seconds"]) == ("cpu", "Net", 1000.0, 50.0)


def test_one_run(client):
    found = client.get("api/run/group%2Fb").json()
    assert found == client.get("api/run/group/b").json() and found["row"] == rows_of(client)["group/b"]
    assert found["config"] == {**CONFIG, "lr": 0.2} and found["facts"]["versions"]["stoker"] == stoker.__version__
    metrics = {name: [f"train/{name}", f"valid/{name}"] for name in ("loss", "accuracy")}
    assert found["groups"] == {**metrics, "lr": ["lr"]} and len(found["names"]) == 5
    assert found["directions"]["valid/accuracy"] == "max" and found["units"]["valid/accuracy"] == "%"
    assert (found["status"]["phase"], found["status"]["epoch"], found["begin"]["parameters"]) == ("over", 3, 1234)
    assert [(each["kind"], each["text"]) for each in found["messages"]] == [("stop", "Early stopping")]
    assert [line.partition("  ")[2] for line in found["log"]] == ["stopped: Early stopping"]
    assert found["plan"] == found["checkpoints"] == found["system"] == [] and (found["problem"], found["behind"]) == (
        "",
        False,
    )


def test_checkpoints_log_and_system_values(tmp_path):
    run = Run.create(tmp_path / "a")
    extra = {"metrics": {"gpu_use": {"direction": None, "unit": "%"}}, "plan": ["model Net", "data 10 samples"]}
    run.record.append(Event("begin", 1.0, extra=extra))
    run.record.append(Event("epoch", 2.0, 1, 0, 5, values={"train/loss": math.nan, "gpu_use": 40.0, "lr": 0.1}))
    run.record.append(Event("warning", 3.0, text="look out"))
    run.log("hello")
    saved = Store(run.path / "checkpoints", run=run.id).write({"x": 1}, Place(epoch=1, batch=0, update=5, reason="end"))
    Store(run.path / "checkpoints", run="other").write({"x": 1}, Place(epoch=1, batch=0, update=6))
    with serving(tmp_path) as (_, client):
        found = client.get("api/run/a").json()
        (run.path / "checkpoints").rename(run.path / "gone")
        (run.path / "checkpoints").write_text("no folder")
    run.close()
    (checkpoint,) = found["checkpoints"]
    assert checkpoint.pop("path") == str(run.path / "checkpoints" / saved.name)
    expected = {"name": saved.name, "update": 5, "epoch": 1, "reason": "end", "bytes": saved.bytes, "time": saved.time}
    assert checkpoint == {**expected, "value": None, "best": False}
    assert found["system"] == ["gpu_use"] and found["plan"] == ["model Net", "data 10 samples"]
    assert found["row"]["last"]["train/loss"] is None and found["row"]["state"] == "running"
    assert found["log"][-1].endswith("  hello") and found["messages"][0]["text"] == "look out"


def test_points(client):
    found = client.get("api/points/a", params={"name": ["valid/loss", "lr"], "source": "epochs"}).json()["series"]
    assert found["valid/loss"] == {"x": [10, 20, 30, 40, 50], "y": pytest.approx([0.7, 0.6, 0.5, 0.6, 0.7])}
    by = client.get("api/points/a", params={"name": "lr", "by": "epoch", "source": "epochs"}).json()["series"]
    assert by["lr"]["x"] == [1, 2, 3, 4, 5] and found["lr"]["y"][0] == 0.1
    assert client.get("api/points/a", params={"name": "no such"}).json()["series"] == {"no such": {"x": [], "y": []}}


def test_a_long_curve_is_thinned_and_keeps_its_peak_and_its_dip(client):
    found = client.get("api/points/long", params={"name": ["train/m0", "train/m1"], "most": 200}).json()["series"]
    for name, y in ((name, curve["y"]) for name, curve in found.items()):
        assert 50 < len(y) <= 210, name
        assert max(y) >= 1e6 and min(y) <= -999_990
    near = client.get("api/points/long", params={"name": "train/m0", "most": 200, "from": 2400, "to": 2450})
    curve = near.json()["series"]["train/m0"]
    assert curve["x"] == list(range(2399, 2452)), "all of them, and one on either side"


WRONG = {
    "": "expected 1 to 1000 names (?name=train/loss&name=…); got 0",
    "name=lr&most=abc": "most='abc'; expected a number from 2 to 20000",
    "name=lr&most=-1": "most='-1'; expected a number from 2 to 20000",
    "name=lr&from=nan": "from='nan'; expected a number",
    "name=lr&from=3&to=2": "from=3.0 is after to=2.0; expected from ≤ to",
    "most=20000&" + "name=x&" * 2 + "&".join(f"name={number}" for number in range(25)): (
        "26 names with most=20000; expected at most 500000 points in one answer: ask for fewer names or fewer"
    ),
    "name=lr&by=hour": "by='hour'; expected one of update, epoch, time, elapsed",
    "name=lr&source=x": "source='x'; expected one of all, epochs, running, auto",
    "&".join(f"name={number}" for number in range(1001)): "expected 1 to 1000 names",
}


def test_wrong_arguments(client):
    for query, error in WRONG.items():
        answer = client.get(f"api/points/a?{query}")
        assert answer.status_code == 400 and answer.json()["error"].startswith(error)


def test_unknown_runs_and_addresses(client):
    assert client.get("api/run/aa").json() == {
        "error": f"there is no run 'aa' in {folder_of(client)!r}; did you mean 'a'?"
    }
    assert client.get("api/nothing").json() == {"error": "nothing at '/api/nothing'"}
    assert client.get("api/compare", params={"id": ["a", "x"]}).status_code == 404
    assert client.post("api/runs").status_code == 405 and client.get("api/control/a").status_code == 405
    many = client.get("api/compare", params={"id": [str(number) for number in range(201)]})
    assert (many.status_code, many.json()["error"]) == (400, "expected at most 200 runs; got 201")


def folder_of(client):
    return client.get("api/runs").json()["folder"]


def test_comparing(client):
    found = client.get("api/compare", params={"id": ["a", "group/b", "a"]}).json()
    assert [each["id"] for each in found["rows"]] == ["a", "group/b"]
    assert found["config"] == {"same": {"model.hidden": 64}, "different": {"lr": {"a": 0.1, "group/b": 0.2}}}
    assert [each["last"]["valid/accuracy"] for each in found["rows"]] == [0.55, 0.53]
    assert [each["bests"]["valid/loss"] for each in found["rows"]] == [0.5, 0.5]
    assert found["rows"][0]["directed"] == {
        f"{part}/{name}": {"loss": "min", "accuracy": "max"}[name]
        for name in ("loss", "accuracy")
        for part in ("train", "valid")
    }


def test_an_overlay_of_runs(client):
    query = {"name": "valid/loss", "id": ["a", "group/b"], "source": "epochs"}
    found = client.get("api/overlay", params=query).json()
    alone = [client.get(f"api/points/{each}", params={**query, "id": []}).json()["series"] for each in query["id"]]
    assert found == {
        "series": dict(zip(query["id"], (each["valid/loss"] for each in alone), strict=True)),
        "behind": [],
    }
    by = client.get("api/overlay", params={"name": "valid/loss", "id": "a", "by": "elapsed"}).json()["series"]["a"]
    assert by["x"] == [10, 20, 30, 40, 50], "seconds since the run began"
    assert client.get("api/overlay", params={"name": "x", "id": "no"}).json() == {"series": {}, "behind": []}
    wrong = client.get("api/overlay?name=x&name=y&id=a")
    assert wrong.json() == {"error": "expected one name (?name=train/loss); got 2"} and wrong.status_code == 400


HOSTILE = [
    *("<img src=x onerror=alert(1)>", "__proto__", "a b?c#d%2f&e=1"),
    *("x\u2028\x07\U0001f525", '"];alert(1)<!--', "é" * 40),
]


def test_hostile_names_survive_the_round_trip(tmp_path):
    for name in HOSTILE:
        run = Run.create(tmp_path / name, config={name: name})
        run.record.append(Event("epoch", 1.0, 1, 0, 5, values={f"train/{name}": 1.0, "train/\ud800": 2.0}, text=name))
        run.close()
    with serving(tmp_path) as (_, client):
        assert sorted(rows_of(client)) == sorted(HOSTILE)
        for name in HOSTILE:
            found = client.get("api/run/" + quote(name, safe="")).json()
            assert found["row"]["config"] == {name: name} and found["names"][0] == f"train/{name}"
            series = client.get("api/points/" + quote(name, safe=""), params={"name": found["names"]}).json()["series"]
            assert [series[each]["y"] for each in found["names"]] == [[1], [2]]


@pytest.fixture
def alive(tmp_path):
    """A run that this process writes."""
    run = Run.create(tmp_path / "alive")
    append_fit(run.record, end=False)
    yield run
    run.close()


def test_stopping_a_run_needs_the_token(tmp_path, alive):
    control = Control(alive.path)
    with serving(tmp_path) as (server, client):
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {server.token}"},
            {"authorization": "Bearer é".encode()},
        ):
            answer = client.post("api/control/alive", json={"ask": "stop"}, headers=headers)
            assert answer.status_code == 403 and "token" in answer.json()["error"]
        assert control.poll() is None
        headers = {"authorization": f"Bearer {server.token}"}
        answer = client.post("api/control/alive", json={"ask": "stop"}, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"asked": "stop"})
        request = control.poll()
        assert request is not None and (request.action, request.by) == ("stop", "ui")
        for body in (b"", b"{", b"[]", b'{"ask": "die"}', b'{"ask": ["stop"]}', b"[" * 3000, b" " * 100_000):
            answer = client.post("api/control/alive", content=body, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (400, 'expected {"ask": "stop"} or {"ask": "save"}')
        assert client.post("api/control/none", json={"ask": "save"}, headers=headers).status_code == 404
        alive.close()
        answer = client.post("api/control/alive", json={"ask": "save"}, headers=headers)
        assert answer.status_code == 409 and "the run has no living process" in answer.json()["error"]
        assert control.poll() is None


def test_a_read_only_server_has_no_token(tmp_path, alive):
    with serving(tmp_path, read_only=True) as (server, client):
        assert server.token is None and client.get("api/runs").json()["control"] is False
        for token in ("None", "null", "x"):
            answer = client.post(
                "api/control/alive", json={"ask": "stop"}, headers={"authorization": f"Bearer {token}"}
            )
            assert answer.status_code == 403 and "read-only" in answer.json()["error"]
    assert not (alive.path / "control.json").exists()


def test_reading_writes_nothing(tmp_path):
    make(tmp_path / "a")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with serving(tmp_path) as (server, client):
        client.get("api/runs"), client.get("api/run/a"), client.get("api/points/a?name=lr")
        assert get_raw(server, "/api/compare?id=a")[0] == 200
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_damaged_record_is_shown_as_far_as_it_can_be_read(tmp_path):
    make(tmp_path / "whole")
    run = make(tmp_path / "damaged")
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join([*lines[:3], b"\xff\x00{{{\n", *lines[3:], b'{"kind": "tor']))
    (run / "config.json").write_text("{")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "events.jsonl").touch()
    with serving(tmp_path) as (_, client):
        found = client.get("api/run/damaged").json()
        assert found["problem"] == "a damaged line was skipped" and found["config"] is None
        y = client.get("api/points/damaged?name=valid/loss&source=epochs").json()["series"]["valid/loss"]["y"]
        assert y == pytest.approx([0.7, 0.6, 0.5, 0.6, 0.7])
        rows = rows_of(client)
        assert rows["whole"]["state"] == "finished" and set(rows) == {"whole", "damaged", "empty"}
        assert client.get("api/run/empty").json()["names"] == []


def curve_of(path, **query):
    with serving(path.parent) as (_, client):
        return client.get(f"api/points/{path.name}", params={"name": "train/m0", **query}).json()["series"]["train/m0"]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [("", "", [10, 20, 30, 40]), (21, 29, [20, 30]), (25, "", [20, 30, 40]), ("", 5, [10]), (50, 60, [40])],
)
def test_a_part_of_a_curve_includes_one_point_on_either_side(tmp_path, start, end, found):
    run = Run.create(tmp_path / "a")
    for update in (10, 20, 30, 40):
        run.record.append(Event("log", float(update), update=update, values={"train/m0": 0.5}))
    run.close()
    assert curve_of(run.path, **{"from": start, "to": end})["x"] == found


def test_a_clock_that_was_set_back_does_not_turn_a_curve(tmp_path):
    run = Run.create(tmp_path / "a")
    for update, (time, value) in enumerate([(5.0, 0.1), (9.0, math.inf), (7.0, 1e300)], 1):
        run.record.append(Event("log", time, update=update, values={"train/m0": value}))
    run.close()
    assert curve_of(run.path, by="time") == {"x": [5, 7, 9], "y": [0.1, 1e300, None]}


def test_an_unexpected_error_is_a_row_and_one_traceback_in_the_terminal(tmp_path, monkeypatch, capsys):
    make(tmp_path / "a")
    make(tmp_path / "odd")
    refresh = Follower.refresh

    def fail(self, *, seconds=None):
        if self.name == "odd":
            raise ZeroDivisionError("inner details")
        return refresh(self, seconds=seconds)

    monkeypatch.setattr(Follower, "refresh", fail)
    with serving(tmp_path) as (server, client):
        for _ in range(2):
            rows = rows_of(client)
        assert rows["a"]["state"] == "finished" and rows["odd"]["state"] == "died"
        assert rows["odd"]["reason"] == "stoker ui failed with ZeroDivisionError; its terminal shows the traceback"
        status, text = get_raw(server, "/api/run/odd")
        assert status == 500 and "inner details" not in text and "ZeroDivisionError" in text
        with client.stream("GET", "api/events?id=odd&id=a") as answer:
            reader = EventReader(answer)
            reader.take(1)
            shown = {data["id"]: data["row"]["state"] for _, data in reader.take(2)}
            assert shown == {"odd": "died", "a": "finished"}
    assert capsys.readouterr().err.count("Traceback") == 1
