"""The runs of a folder: all of them, the oldest first."""

from stoker.record import Run, runs_in
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


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "events.jsonl").write_text("nonsense\n")
    (found,) = runs_in(tmp_path)
    assert found.summary()["state"] == "died" and "line 1: expected an event" in found.summary()["reason"]
