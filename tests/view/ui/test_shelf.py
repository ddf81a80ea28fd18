"""Runs that are opened when somebody asks, and put back when nobody does."""

import threading

import pytest
from stoker.view.ui._rows import Rows
from stoker.view.ui._shelf import Shelf

from stoker.errors import InvalidArgument, MissingFile
from stoker.record import Event, Run
from stoker.view.ui import _shelf
from tests.record.stories import fill
from tests.view.ui.serving import at_once, counted_reads, make, open_runs


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    at_once(monkeypatch)


@pytest.fixture
def reads(monkeypatch):
    return counted_reads(monkeypatch)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InvalidArgument, match="there is no folder '.*/none'; name the folder of your runs"):
        Shelf(tmp_path / "none")


def test_only_runs_that_were_found_are_opened(tmp_path):
    make(tmp_path / "runs" / "digits")
    make(tmp_path / "other")
    shelf = Shelf(tmp_path / "runs")
    for name in ("digit", "../other", ".", "", "/", "digits/../digits", str(tmp_path / "other")):
        with pytest.raises(MissingFile, match="there is no run"), shelf.follow(name):
            pass
    with shelf.follow("digits") as opened:
        assert opened.run.state == "finished"


def test_a_run_stays_open_while_pages_ask_and_is_put_back_after(tmp_path, monkeypatch, reads):
    make(tmp_path / "a")
    shelf = Shelf(tmp_path)
    for _ in range(3):
        with shelf.follow("a"):
            pass
    assert reads == ["a"] and open_runs(shelf) == ["a"]
    monkeypatch.setattr(_shelf, "_IDLE", 0.0)
    shelf.found()
    assert open_runs(shelf) == []


def test_no_more_stays_open_than_there_is_room_for(tmp_path, monkeypatch, reads):
    monkeypatch.setattr(_shelf, "_OPEN", 10_000)  # bytes; a run below has some 6000
    for name in "abcdef":
        make(tmp_path / name)
    shelf = Shelf(tmp_path)
    for name in "abcdef":
        with shelf.follow(name):
            pass
        assert sum(opened.weight for opened in shelf._open._values.values()) <= 10_000
    assert open_runs(shelf)[-1] == "f"


def test_curves_of_what_is_over_are_kept_and_the_run_is_put_back(tmp_path, monkeypatch, reads):
    make(tmp_path / "a")
    shelf = Shelf(tmp_path)
    assert shelf.digest("a") is None
    with shelf.follow("a") as opened:
        expected = opened.run.points("valid/loss").value.tolist()
    monkeypatch.setattr(_shelf, "_IDLE", 0.0)
    digest = shelf.digest("a")
    assert digest is not None and digest.points("valid/loss").value.tolist() == expected and len(expected) == 5
    assert reads == ["a"] and open_runs(shelf) == []
    with (tmp_path / "a" / "events.jsonl").open("a") as file:
        file.write('{"kind": "valid", "time": 1, "epoch": 6, "update": 60, "values": {"valid/loss": 9}}\n')
    assert shelf.digest("a") is None, "a run that has changed is read again"


def test_a_running_run_has_no_digest(tmp_path):
    alive = Run.create(tmp_path / "alive")
    fill(alive.record, end=False)
    shelf = Shelf(tmp_path)
    with shelf.follow("alive"):
        pass
    assert shelf.digest("alive") is None
    alive.close()


def test_many_threads_at_once(tmp_path):
    for name in "abcd":
        make(tmp_path / name)
    alive = Run.create(tmp_path / "alive")
    shelf = Shelf(tmp_path)
    rows, wrong = Rows(shelf), []

    def ask():
        try:
            for turn in range(15):
                name = "abcd"[turn % 4]
                rows.latest(seconds=0.01)
                with shelf.follow(name) as opened:
                    assert len(opened.run.points("lr")) == 5
                with shelf.follow("alive") as opened:
                    assert opened.run.state == "running"
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for epoch in range(100):
        alive.record.append(Event("valid", epoch=epoch, values={"lr": 0.1}))
    for thread in threads:
        thread.join()
    alive.close()
    assert wrong == []


def test_a_link_that_comes_after_the_look_at_the_folder_is_not_followed(tmp_path, monkeypatch):
    path = make(tmp_path / "runs" / "a")
    (tmp_path / "secret.txt").write_text("secret\n")
    shelf = Shelf(tmp_path / "runs")
    with shelf.follow("a"):
        pass
    monkeypatch.setattr(_shelf, "_PAUSE", -1.0)
    shelf._next_look = float("inf")
    (path / "log.txt").unlink(missing_ok=True)
    (path / "log.txt").symlink_to(tmp_path / "secret.txt")
    with shelf.follow("a") as opened:
        assert opened.run.state == "finished" and "secret" not in opened.run.log
