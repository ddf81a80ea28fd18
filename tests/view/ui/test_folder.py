"""Finding the runs of a folder, and reading nothing outside it."""

import json
import os

import pytest

from stoker.errors import InvalidArgument
from stoker.view.ui import Server
from tests.view.ui.serving import get_raw, make, rows_of, serving

SECRET = "a secret outside the folder"


@pytest.fixture
def folder(tmp_path):
    """A folder of runs, with secret files beside it."""
    runs = tmp_path / "runs"
    make(runs / "digits")
    make(tmp_path / "other" / "hidden")
    (tmp_path / "other" / "hidden" / "log.txt").write_text(SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    return runs


def listed(folder):
    """The ids of the list, and the problems."""
    with serving(folder) as (_, client):
        return list(rows_of(client)), client.get("api/runs").json()["problems"]


def test_a_missing_folder(tmp_path):
    with pytest.raises(InvalidArgument, match="there is no folder '.*/none'; give the folder of your runs"):
        Server(tmp_path / "none")


def test_runs_are_found_below_the_folder_but_not_inside_a_run(folder):
    make(folder / "vision" / "deep" / "a")
    make(folder / "digits" / "checkpoints" / "b")
    (folder / "link").symlink_to(folder.parent / "other")
    (folder / "cycle").symlink_to(folder)
    make(folder / os.fsdecode(b"caf\xe9"))
    assert listed(folder) == (["caf\\udce9", "digits", "vision/deep/a"], [])
    assert listed(folder / "digits") == (["digits"], [])


def test_runs_with_foreign_files_are_listed_as_problems(folder):
    problems = []
    for name in ("events.jsonl", "log.txt", "config.json", "run.json", "control.json"):
        for kind in ("outside", "cycle", "pipe", "folder"):
            run = make(folder / f"{name}-{kind}")
            (run / name).unlink(missing_ok=True)
            if kind == "outside":
                (run / name).symlink_to(folder.parent / "secret.txt")
            elif kind == "cycle":
                (run / name).symlink_to(run / name)
            elif kind == "pipe":
                os.mkfifo(run / name)
            else:
                (run / name).mkdir()
            if (kind, name) != ("folder", "events.jsonl"):  # which is not a run at all
                problems.append(f"{name}-{kind} is not shown: its {name} is not a regular file inside the folder")
    assert listed(folder) == (["digits"], sorted(problems))


def test_links_inside_the_folder_are_fine_and_checkpoints_elsewhere_are_not(folder):
    (make(folder / "odd") / "checkpoints").symlink_to(folder.parent / "other")
    (folder / "digits" / "run.json").rename(folder / "shared.txt")
    (folder / "digits" / "run.json").symlink_to(folder / "shared.txt")
    expected = "odd is not shown: its checkpoints is not a regular file inside the folder"
    assert listed(folder) == (["digits"], [expected])


def test_a_link_that_appears_later_is_not_followed(folder):
    with serving(folder) as (_, client):
        assert client.get("api/run/digits").status_code == 200
        (folder / "digits" / "log.txt").unlink(missing_ok=True)
        (folder / "digits" / "log.txt").symlink_to(folder.parent / "secret.txt")
        for _ in range(3):
            assert SECRET not in client.get("api/run/digits").text


PATHS = [
    "../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "%2e%2e%2fsecret.txt", "..%5csecret.txt",
    "..%252fsecret.txt", "../other/hidden", "%2e%2e%2fother%2fhidden", "digits/../../other/hidden",
    "digits%2f..%2f..%2fother%2fhidden", "./digits", "digits/", "digits%00", "digits%00/../../other/hidden",
    "%00", ".", "..", "/", "//", "%2f", "/etc/passwd", "%2fetc%2fpasswd", "file:///etc/passwd",
    "digits/log.txt", "digits/events.jsonl", "~", "%ff%fe", "link/hidden", "DIGITS%20",
]  # fmt: skip


def test_no_url_leads_out_of_the_folder(folder):
    (folder / "link").symlink_to(folder.parent / "other")
    with serving(folder) as (server, _):
        for place in ("/api/run/", "/api/points/", "/static/", "/api/compare?id=digits&id="):
            for path in (*PATHS, "", "x" * 5000):
                status, answer = get_raw(server, f"{place}{path}{'?name=lr' if 'points' in place else ''}")
                assert status in (400, 404), (place, path, answer)
                assert SECRET not in answer and "root:" not in answer and set(json.loads(answer)) == {"error"}
        assert get_raw(server, "/api/run/digits")[0] == get_raw(server, "/api/run/%64igits")[0] == 200
