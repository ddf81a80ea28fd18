"""Requests that change runs: titles, tags and notes, removing and restoring; and who may send them."""

import json

import pytest

from stoker.record import Annotations, Run, read_annotations, write_annotations
from tests.view.ui.serving import EventReader, make, rows_of, serving


@pytest.fixture
def served(tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "group" / "b")
    with serving(tmp_path) as (server, client):
        yield tmp_path, client, {"authorization": f"Bearer {server.token}"}


def test_annotations_are_written_beside_the_events_and_shown(served):
    folder, client, token = served
    before = (folder / "group" / "b" / "events.jsonl").read_bytes()
    given = {"title": "<b>First</b>", "tags": ["paper", "paper", "ok"], "note": "a\nb", "archived": True}
    answer = client.post("api/annotate/group/b", json=given, headers=token)
    assert (answer.status_code, answer.json()) == (200, {**given, "tags": ["paper", "ok"]})
    assert read_annotations(folder / "group" / "b") == Annotations("<b>First</b>", ("paper", "ok"), "a\nb", True)
    assert (folder / "group" / "b" / "events.jsonl").read_bytes() == before
    row = rows_of(client)["group/b"]
    assert {name: row[name] for name in given} == {**given, "tags": ["paper", "ok"]}
    client.post("api/annotate/group/b", json={"title": None, "archived": False}, headers=token)
    row = rows_of(client)["group/b"]
    assert (row["title"], row["tags"], row["archived"]) == ("", ["paper", "ok"], False), "the rest stays"


def test_an_open_page_is_told_about_annotations_of_somebody_else(served):
    folder, client, _ = served
    with client.stream("GET", "api/events", params={"id": "a"}) as answer:
        reader = EventReader(answer)
        reader.until("run", lambda data: data["row"]["id"] == "a")
        write_annotations(folder / "a", Annotations(note="hello"))
        reader.until("run", lambda data: data["row"]["note"] == "hello")


def test_a_removed_run_can_be_restored_with_the_key_that_was_answered(served):
    folder, client, token = served
    key = client.post("api/remove/a", json={}, headers=token).json()["restore"]
    assert not (folder / "a").exists() and list(rows_of(client)) == ["group/b"]
    assert client.get("api/run/a").status_code == 404
    for wrong in ("", "../a", str(folder / ".trash"), 3, None, {"a": 1}):
        assert client.post("api/restore", json={"restore": wrong}, headers=token).status_code == 400
    assert client.post("api/restore", json={"restore": key}, headers=token).json() == {"restored": "a"}
    assert list(rows_of(client)) == ["a", "group/b"]
    assert client.post("api/restore", json={"restore": key}, headers=token).status_code == 400, "it is used up"


def test_a_run_that_is_being_written_is_not_removed(tmp_path):
    run = Run.create(tmp_path / "going")
    with serving(tmp_path) as (server, client):
        answer = client.post("api/remove/going", json={}, headers={"authorization": f"Bearer {server.token}"})
        assert answer.status_code == 409 and "is being written" in answer.json()["error"]
    run.close()
    assert (tmp_path / "going").is_dir()


def test_malformed_changes_change_nothing(served):
    folder, client, token = served
    wrong = [
        b"", b"[]", b"{}", b"{", b"[" * 2000, b'{"path": "/tmp"}', b'{"tags": "a"}', b'{"tags": [[]]}',
        b'{"tags": [1]}', b'{"title": 3}', b'{"archived": "yes"}', json.dumps({"note": "x" * 100_000}).encode(),
        b'"' + b"x" * 200_000 + b'"',
    ]  # fmt: skip
    for body in wrong:
        assert client.post("api/annotate/a", content=body, headers=token).status_code == 400, body[:40]
    assert not (folder / "a" / "annotations.json").exists()
    for path in ("api/annotate/no", "api/annotate/..%2fa", "api/remove/%2e", "api/remove/group"):
        assert client.post(path, json={"note": "x"}, headers=token).status_code == 404, path


@pytest.mark.parametrize("path", ["api/annotate/a", "api/remove/a", "api/restore", "api/control/a"])
def test_changes_need_the_token_and_the_same_site(served, path):
    folder, client, token = served
    for headers in ({}, {"authorization": "Bearer x"}, {"authorization": token["authorization"].lower()}):
        assert client.post(path, json={"note": "x"}, headers=headers).status_code == 403
    for more in ({"sec-fetch-site": "cross-site"}, {"host": "evil.example"}):
        assert client.post(path, json={"note": "x"}, headers={**token, **more}).status_code == 403
    assert client.get(path).status_code == 405
    assert sorted(path.name for path in (folder / "a").iterdir() if path.name != "log.txt") == [
        "events.jsonl",
        "run.json",
    ]
    with serving(folder, read_only=True) as (_, reading):
        answer = reading.post(path, json={"note": "x"}, headers={"authorization": "Bearer None"})
        assert answer.status_code == 403 and "read-only" in answer.json()["error"]


def test_a_link_in_place_of_the_annotations_is_not_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"title": "secret"}')
    folder = tmp_path / "runs"
    make(folder / "a")
    (folder / "a" / "annotations.json").symlink_to(secret)
    with serving(folder) as (server, client):
        listed = client.get("api/runs").json()
        assert listed["runs"] == [] and "annotations.json is not a regular file" in listed["problems"][0]
        answer = client.post("api/annotate/a", json={"title": "x"}, headers={"authorization": f"Bearer {server.token}"})
        assert answer.status_code == 404
    assert secret.read_text() == '{"title": "secret"}'
