"""The list of runs."""

import pytest
from stoker.view.ui._rows import Rows
from stoker.view.ui._shelf import Shelf

from stoker.record import Event, Run
from stoker.view.ui import _shelf
from tests.record.stories import fill
from tests.view.ui.serving import at_once, counted_reads, long_run, make, open_runs


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    at_once(monkeypatch)


@pytest.fixture
def reads(monkeypatch):
    return counted_reads(monkeypatch)


def test_the_list_leaves_open_only_what_is_running(tmp_path, reads):
    for name in "abc":
        make(tmp_path / name)
    alive = Run.create(tmp_path / "alive")
    fill(alive.record, end=False)
    shelf = Shelf(tmp_path)
    rows = Rows(shelf)
    for _ in range(3):
        assert list(rows.latest(seconds=30)) == ["a", "alive", "b", "c"]
    assert open_runs(shelf) == ["alive"] and sorted(reads) == ["a", "alive", "b", "c"]
    alive.record.append(Event("end", 2000.0, extra={"epochs": 5}))
    alive.close()
    assert rows.latest(seconds=30)["alive"]["state"] == "finished" and open_runs(shelf) == []
    with (tmp_path / "a" / "events.jsonl").open("a") as file:
        file.write('{"kind": "note", "time": 1, "text": "x"}\n')
    rows.latest(seconds=30)
    assert reads.count("a") == 2 and reads.count("b") == 1, "only what has changed is read again"


def test_what_a_page_looks_at_is_shared_with_the_list(tmp_path, reads):
    make(tmp_path / "a")
    shelf = Shelf(tmp_path)
    with shelf.follow("a"):
        pass
    Rows(shelf).latest(seconds=30)
    assert reads == ["a"] and open_runs(shelf) == ["a"]


def test_a_large_run_is_in_the_list_at_once_and_right_in_the_end(tmp_path):
    """Its best epoch is somewhere in 12 MB, where a sample may miss it."""
    path = long_run(tmp_path / "large", names=1, points=1)
    lines = ['{"kind":"begin","time":0.0,"extra":{"epochs":90000}}']
    for epoch in range(1, 90_001):
        value = -5.0 if epoch == 45_678 else 1.0
        lines.append(
            f'{{"kind":"valid","time":{epoch}.0,"epoch":{epoch},"update":{epoch},"values":{{"valid/loss":{value}}},'
            '"extra":{"name":"valid","room":"so that a line has some hundred and thirty bytes"}}'
        )
    (path / "events.jsonl").write_text("\n".join(lines) + "\n")
    shelf = Shelf(tmp_path)
    rows = Rows(shelf)
    first = rows.latest(seconds=1e-9)["large"]
    assert first["state"] == "unread"
    while (first := rows.latest(seconds=0.05)["large"])["state"] == "unread":
        pass
    assert first["last"] == {"valid/loss": 1.0} and first["update"] == 90_000
    looks = 1
    while rows.latest(seconds=0.05) and shelf.digest("large") is None:
        looks += 1
        assert looks < 1000
    assert rows.latest(seconds=30)["large"]["best"] == {"name": "valid/loss", "value": -5.0, "epoch": 45_678}
    assert open_runs(shelf) == []
    digest = shelf.digest("large")
    assert digest is not None
    curve = digest.points("valid/loss")
    assert len(curve) <= 1000 and curve.value.min() == -5.0 and digest.bytes == 4 * 8 * len(curve)


@pytest.fixture
def fault(monkeypatch):
    """Reading the run "odd" fails, as only a mistake of ours can make it; told is what the terminal is told."""
    told, refresh = [], _shelf.Follower.refresh

    def fails(self, *, seconds=None):
        if self.name == "odd":
            raise ZeroDivisionError("inner matters")
        return refresh(self, seconds=seconds)

    monkeypatch.setattr(_shelf.Follower, "refresh", fails)
    monkeypatch.setattr("stoker.view.ui._rows.tell", told.append)
    return told


def test_a_run_that_breaks_the_reading_is_a_row_among_the_others(tmp_path, fault):
    make(tmp_path / "a")
    make(tmp_path / "odd")
    shelf = Shelf(tmp_path)
    rows = Rows(shelf)
    for _ in range(2):
        found = rows.latest(seconds=30)
    assert found["a"]["state"] == "finished" and found["odd"]["state"] == "died"
    assert found["odd"]["reason"] == "stoker ui failed with ZeroDivisionError; its terminal shows where"
    assert set(found["a"]) == set(found["odd"]) and open_runs(shelf) == []
    assert len(fault) == 1, "what has not changed fails no second time"


def test_runs_that_there_was_no_time_for_are_unread_also_when_they_come_first(tmp_path):
    for name in "abc":
        make(tmp_path / name)
    rows = Rows(Shelf(tmp_path))
    assert {each["state"] for each in rows.latest(seconds=-1.0, first=["b", "c"]).values()} == {"unread"}
    assert rows.latest(seconds=30, first=["b"])["b"]["state"] == "finished"


def test_a_file_that_can_be_read_again_is_read_again(tmp_path, monkeypatch):
    make(tmp_path / "a")
    rows = Rows(Shelf(tmp_path))

    def refused(self):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("stoker.record._tail.Tail.blocks", refused)
        assert rows.latest(seconds=30)["a"]["state"] == "gone"
    assert rows.latest(seconds=30)["a"]["state"] == "finished"
