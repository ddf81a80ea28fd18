"""What people add to runs, and removing runs."""

import json
from dataclasses import replace

import pytest

from stoker.errors import BadFile, InvalidArgument, MissingFile, RunExists
from stoker.record import (
    Annotations,
    Event,
    Run,
    find_runs,
    read_annotations,
    remove_run,
    restore_run,
    write_annotations,
)


@pytest.fixture
def run(tmp_path):
    run = Run.create(tmp_path / "runs" / "digits")
    run.record.append(Event("note", text="hello"))
    return run


def test_annotations_are_kept_beside_the_events_of_running_and_finished_runs(run):
    events = (run.path / "events.jsonl").read_bytes()
    assert read_annotations(run.path) == Annotations()
    full = Annotations("A title", ("baseline", "ü", "baseline"), "a\nnote", archived=True)
    write_annotations(run.path, full)
    run.close()
    assert read_annotations(run.path) == full and full.tags == ("baseline", "ü")
    write_annotations(run.path, replace(full, archived=False))
    assert not read_annotations(run.path).archived
    assert (run.path / "events.jsonl").read_bytes() == events
    data = json.loads((run.path / "annotations.json").read_text())
    assert data == {"title": "A title", "tags": ["baseline", "ü"], "note": "a\nnote", "archived": False}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"title": "x" * 201}, "at most 200 characters"),
        ({"tags": ("x" * 65,)}, "1 to 64 characters"),
        ({"tags": ("",)}, "1 to 64 characters"),
        ({"tags": tuple(map(str, range(33)))}, "can have 32 tags; got 33"),
        ({"note": "ü" * 32_001}, "at most 64,000 bytes"),
        ({"note": 5}, "the note is 5"),
        ({"archived": "yes"}, "archived is 'yes'"),
    ],
)
def test_limits(run, wrong, text):
    with pytest.raises(InvalidArgument, match=text):
        write_annotations(run.path, Annotations(**wrong))
    assert not (run.path / "annotations.json").exists()


@pytest.mark.parametrize(
    "content", ["", "[1]", '{"tags": 5}', '{"tags": [[]]}', '{"title": 5}', "{", '{"note": "x", "note": "y"}']
)
def test_a_damaged_file_is_an_error_that_names_it(run, content):
    (run.path / "annotations.json").write_text(content)
    with pytest.raises(BadFile, match="annotations.json"):
        read_annotations(run.path)


def test_a_directory_without_a_run_takes_no_annotations(tmp_path):
    with pytest.raises(MissingFile):
        write_annotations(tmp_path, Annotations())


def test_a_removed_run_is_not_listed_and_can_be_restored(run, tmp_path):
    with pytest.raises(RunExists, match="is being written"):
        remove_run(run.path)
    run.close()
    trashed = remove_run(run.path)
    assert trashed.parent == tmp_path / "runs" / ".trash" and find_runs(tmp_path) == []
    again = Run.create(run.path)
    with pytest.raises(RunExists, match="move it away"):
        restore_run(trashed)
    again.close()
    second = remove_run(run.path)
    assert restore_run(trashed) == run.path and [each.name for each in find_runs(tmp_path)] == ["digits"]
    assert second.exists() and Run.open(run.path).record.events[0].text == "hello"
    with pytest.raises(InvalidArgument, match="is not in .trash"):
        restore_run(run.path)
