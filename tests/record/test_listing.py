"""All runs of a folder, again and again."""

import shutil

import pytest

from stoker.record import Event, Listing, Run, _follow, runs_in
from tests.record.stories import fill


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(["z", "nested/m", "a"]):
        run = Run.create(tmp_path / name, facts={"started": 100.0 + number})
        fill(run.record)
        run.close()
    return tmp_path


def test_the_runs_are_those_of_runs_in(folder):
    listing = Listing(folder)
    assert listing.runs == []
    assert len(listing.refresh()) == 3
    assert [dict(run.summary) for run in listing.runs] == [run.summary() for run in runs_in(folder)]


def test_only_what_has_changed_is_read_again(folder, monkeypatch):
    listing = Listing(folder)
    listing.refresh()
    read = []
    monkeypatch.setattr(_follow, "lines_in", lambda block: read.append(block) or [])
    assert listing.refresh() == [] and read == []
    run = Run.resume(folder / "a")
    run.record.append(Event("note", text="hello"))
    run.close()
    assert [run.name for run in listing.refresh()] == ["a"]
    assert len(read) == 1 and read[0].count(b"\n") == 1


def test_runs_come_and_go(folder):
    listing = Listing(folder)
    listing.refresh()
    shutil.rmtree(folder / "z")
    Run.create(folder / "new").close()
    assert [run.name for run in listing.refresh()] == ["new"]
    assert [run.name for run in listing.runs] == ["m", "a", "new"]
    shutil.rmtree(folder)
    assert listing.refresh() == [] and listing.runs == []


def test_a_run_dies_between_two_looks(tmp_path):
    run = Run.create(tmp_path / "a")
    listing = Listing(tmp_path)
    (found,) = listing.refresh()
    assert found.state == "running"
    run.close()
    assert listing.refresh() == [found] and found.state == "died"


def test_a_damaged_run_is_listed_among_the_others(folder):
    (folder / "a" / "events.jsonl").write_bytes(b"nonsense\n")
    (folder / "a" / "run.json").write_bytes(b"nonsense\n")
    listing = Listing(folder)
    listing.refresh()
    assert sorted(run.name for run in listing.runs) == ["a", "m", "z"]
    (damaged,) = (run for run in listing.runs if run.name == "a")
    assert damaged.problem == "a damaged line was left out"


def test_of_a_large_run_a_sample_is_read(folder, monkeypatch):
    monkeypatch.setattr(_follow, "_LARGE", 100)
    listing = Listing(folder)
    assert len(listing.refresh()) == 3 and listing.refresh() == []
    assert all(run.behind and run.state == "finished" for run in listing.runs)
