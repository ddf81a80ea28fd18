"""The runs of a folder: all of them, the oldest first."""

import pytest

from stoker.record import Run, runs_in
from stoker.record._tail import Tail
from tests.record.stories import fill


def test_runs_in_a_folder_the_oldest_first(tmp_path):
    for number, name in enumerate(["z", "nested/m", "a"]):
        run = Run.create(tmp_path / name, facts={"started": 100.0 + number})
        fill(run.record)
        run.close()
    inside = tmp_path / "z" / "checkpoints" / "inner"
    inside.mkdir(parents=True)
    (inside / "events.jsonl").touch()
    (tmp_path / "no run").mkdir()
    assert [str(run.path.relative_to(tmp_path)) for run in runs_in(tmp_path)] == ["z", "nested/m", "a"]
    assert [run.path for run in runs_in(tmp_path / "a")] == [tmp_path / "a"]
    assert runs_in(tmp_path / "nowhere") == []


def test_a_damaged_run_is_read_around_the_damage(tmp_path):
    run = Run.create(tmp_path / "broken")
    fill(run.record)
    run.close()
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(b"nonsense\n")
    (found,) = runs_in(tmp_path)
    assert (found.state, found.summary["epochs"], found.problem) == ("finished", 5, "a damaged line was left out")


def test_without_reading_they_are_known_by_name(tmp_path):
    Run.create(tmp_path / "one").close()
    assert [run.name for run in runs_in(tmp_path, read=False)] == ["one"]


@pytest.mark.parametrize("words", ["Permission denied", "Stale file handle"])
def test_a_run_that_cannot_be_opened_is_listed_among_the_others(tmp_path, monkeypatch, words):
    for name in ("good", "odd"):
        Run.create(tmp_path / name).close()
    look = Tail.look

    def refused(tail):
        if tail.path.parent.name == "odd":
            raise OSError(5, words)
        return look(tail)

    monkeypatch.setattr(Tail, "look", refused)
    found = {run.name: run for run in runs_in(tmp_path)}
    assert (found["good"].state, found["odd"].state) == ("died", "gone") and words in found["odd"].reason


def test_one_that_leads_nowhere_is_none(tmp_path):
    (tmp_path / "lost").mkdir()
    (tmp_path / "lost" / "events.jsonl").symlink_to(tmp_path / "nowhere")
    assert runs_in(tmp_path) == []
