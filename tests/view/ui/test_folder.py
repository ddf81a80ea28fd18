"""Which runs a folder holds, and that nothing outside of it is read."""

import json
import os

import pytest
from stoker.view.ui._folder import find, what_leads_out

from tests.view.ui.serving import exactly, make, serving

SECRET = "the secret of the house"


@pytest.fixture
def house(tmp_path):
    """A folder of runs, with something beside it that is nobody's business."""
    runs = tmp_path / "runs"
    make(runs / "digits")
    make(tmp_path / "other" / "hidden")
    (tmp_path / "other" / "hidden" / "log.txt").write_text(SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    return runs


def test_runs_are_found_below_the_folder_and_never_inside_of_a_run(house):
    make(house / "vision" / "deep" / "a")
    make(house / "digits" / "checkpoints" / "b")
    assert list(find(house).runs) == ["digits", "vision/deep/a"]


def test_a_folder_that_is_itself_a_run_goes_by_its_name(house):
    assert find(house / "digits").runs == {"digits": house / "digits"}


def test_a_name_that_is_no_text_gets_one(house):
    make(house / os.fsdecode(b"caf\xe9"))
    assert list(find(house).runs) == ["caf\\udce9", "digits"]


def test_links_to_other_folders_are_not_followed(house):
    (house / "link").symlink_to(house.parent / "other")
    (house / "ring").symlink_to(house)
    assert list(find(house).runs) == ["digits"]


@pytest.mark.parametrize("name", ["events.jsonl", "log.txt", "config.json", "run.json", "control.json"])
@pytest.mark.parametrize("kind", ["outside", "ring", "pipe", "folder"])
def test_a_run_whose_files_are_not_its_own_is_named_and_not_shown(house, name, kind):
    run = make(house / "odd")
    (run / name).unlink(missing_ok=True)
    if kind == "outside":
        (run / name).symlink_to(house.parent / "secret.txt")
    elif kind == "ring":
        (run / name).symlink_to(run / name)
    elif kind == "pipe":
        os.mkfifo(run / name)
    else:
        (run / name).mkdir()
    found = find(house)
    assert list(found.runs) == ["digits"]
    if (kind, name) != ("folder", "events.jsonl"):  # then it is no run at all
        assert found.problems == [f"odd is not shown: its {name} is no file of its own"]


def test_checkpoints_that_lie_elsewhere_are_not_shown_and_links_inside_are_fine(house):
    run = make(house / "odd")
    (run / "checkpoints").symlink_to(house.parent / "other")
    assert what_leads_out(run, house) == "checkpoints"
    (run / "checkpoints").unlink()
    (house / "digits" / "run.json").rename(house / "shared.txt")
    (house / "digits" / "run.json").symlink_to(house / "shared.txt")
    assert what_leads_out(house / "digits", house) == ""


PATHS = [
    "../secret.txt",
    "..%2fsecret.txt",
    "%2e%2e/secret.txt",
    "%2e%2e%2fsecret.txt",
    "..%5csecret.txt",
    "..%252fsecret.txt",
    "../other/hidden",
    "%2e%2e%2fother%2fhidden",
    "digits/../../other/hidden",
    "digits%2f..%2f..%2fother%2fhidden",
    "./digits",
    "digits/",
    "digits%00",
    "digits%00/../../other/hidden",
    "%00",
    ".",
    "..",
    "",
    "/",
    "//",
    "%2f",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "file:///etc/passwd",
    "digits/log.txt",
    "digits/events.jsonl",
    "~",
    "%ff%fe",
    "link/hidden",
    "DIGITS%20",
    "x" * 5000,
]


def test_no_address_leads_out_of_the_folder(house):
    (house / "link").symlink_to(house.parent / "other")
    with serving(house) as (server, _):
        for place in ("/api/run/", "/api/points/", "/static/", "/api/compare?id=digits&id="):
            for path in PATHS:
                status, answer = exactly(server, f"{place}{path}{'?name=lr' if 'points' in place else ''}")
                assert status in (400, 404), (place, path, answer)
                assert SECRET not in answer and "root:" not in answer and set(json.loads(answer)) == {"error"}
        assert exactly(server, "/api/run/digits")[0] == exactly(server, "/api/run/%64igits")[0] == 200
