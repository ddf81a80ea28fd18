"""The table of numbers."""

from dataclasses import replace

import pytest

from stoker.record import Follower
from stoker.view.watch._scene import Row, scene_of
from stoker.view.watch._table import metrics
from stoker.view.watch._view import View
from tests.view.watch.scenes import make


@pytest.fixture(scope="module")
def followers(tmp_path_factory):
    paths = [tmp_path_factory.mktemp("runs") / name for name in ("digits", "other")]
    for path in paths:
        make(path, epochs=3, end=True)
    found = [Follower(path) for path in paths]
    for follower in found:
        follower.refresh()
    return found


def test_numbers_by_set_and_the_best_where_there_is_room(followers):
    scene = scene_of(followers[:1], View())
    assert metrics(scene, 60, 10).plain.splitlines() == [
        "              train    valid     best",
        "loss         0.9208    1.063    1.063 @3",
        "accuracy     0.6931   0.6317   0.6317 @3",
        "lr        0.0009250",
        "gpu_memory    3.500 GB",
    ]
    assert "best" not in metrics(scene, 29, 10).plain
    assert max(map(len, metrics(scene, 29, 10).plain.splitlines())) <= 29


def test_the_chosen_one_is_in_sight(followers):
    scene = scene_of(followers[:1], View())
    rows = tuple(Row(f"m{place}", {"": 1.0}, None, "") for place in range(100))
    many = replace(scene, runs=(replace(scene.run, rows=rows),), tab="m70")
    assert "m70" in metrics(many, 60, 10).plain and len(metrics(many, 60, 10).plain.splitlines()) == 10


def test_several_runs_by_name(followers):
    lines = metrics(scene_of(followers, View(tab="valid/loss")), 46, 10).plain.splitlines()
    assert [line.split() for line in lines] == [
        ["state", "valid/loss"],
        ["digits", "stopped", "1.063"],
        ["other", "stopped", "1.063"],
    ]
