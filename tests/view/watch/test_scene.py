"""What a screen shows, against real fits and runs made by hand."""

import re

import torch

import stoker
from stoker.record import Event, Follower
from stoker.view.watch._scene import scene_of
from stoker.view.watch._view import View
from tests.view.watch.scenes import START, make, progress
from tests.view.watch.scenes import epoch as one_epoch


def scene(*paths, **view):
    followers = [Follower(path) for path in paths]
    for follower in followers:
        follower.refresh()
    return scene_of(followers, View(**view))


def test_a_real_fit(tmp_path):
    x = torch.randn(64, 3)
    learner = stoker.Learner(torch.nn.Linear(3, 1), optimizer=stoker.optim.SGD(), lr=0.1, loss=torch.nn.MSELoss())
    learner.fit(
        (x, x.sum(1, keepdim=True)), valid=0.25, epochs=3, batch_size=16, run=tmp_path / "real", config={"a": 1}
    )
    found = scene(tmp_path / "real")
    assert found.run.state == "finished" and found.run.title.startswith("Linear, 4 parameters, on ")
    assert found.tab == "loss" and [line.name for line in found.lines] == ["train/loss", "valid/loss"]
    assert found.run.rows[0].name == "loss" and set(found.run.rows[0].values) == {"train", "valid"}
    assert ("config.a", "1") in found.run.settings and any("3 epochs" in line for line in found.run.plan)
    assert found.run.status.epoch == 3


def test_rows_are_metrics_by_set_then_numbers_of_no_set(tmp_path):
    make(tmp_path / "a", epochs=2, end=True)
    rows = scene(tmp_path / "a").run.rows
    assert [row.name for row in rows] == ["loss", "accuracy", "lr", "gpu_memory"]
    assert rows[1].best.name == "valid/accuracy" and rows[3].unit == "GB" and list(rows[2].values) == [""]


def test_a_tab_that_is_not_there_is_the_first(tmp_path):
    make(tmp_path / "a", epochs=1, end=True)
    assert scene(tmp_path / "a", tab="gone").tab == "loss" and scene(tmp_path / "a", tab="lr").tab == "lr"


def test_losses_that_fall_far_call_for_a_log_scale(tmp_path):
    run = make(tmp_path / "a", epochs=0)
    for epoch, (loss, accuracy) in enumerate([(9.0, 0.01), (0.1, 0.9)], 1):
        values = {"valid/loss": loss, "valid/accuracy": accuracy}
        run.record.append(Event("valid", START, epoch=epoch, update=epoch, values=values))
    run.close()
    assert scene(tmp_path / "a").log and not scene(tmp_path / "a", log=False).log
    assert not scene(tmp_path / "a", tab="accuracy").log


def test_two_runs_of_one_name_go_by_their_paths(tmp_path):
    make(tmp_path / "a" / "x", epochs=1, end=True)
    make(tmp_path / "b" / "x", epochs=1, end=True)
    found = scene(tmp_path / "a" / "x", tmp_path / "b" / "x")
    assert [run.name for run in found.runs] == [str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x")]


def test_a_speed_that_nobody_says_between_two_epochs_is_the_last_one(tmp_path):
    run = make(tmp_path / "a", epochs=2)
    progress(run, 3, 25, at=START + 25)
    before = scene(tmp_path / "a")
    one_epoch(run, 3)
    between = scene(tmp_path / "a")
    assert between.run.status.samples_per_second is None
    assert between.after(before).run.status.samples_per_second == 6400.0 and between.after(None) is between
    run.close()
    assert scene(tmp_path / "a").after(before).run.status.samples_per_second is None, "nobody trains"


def test_moments_are_dates(tmp_path):
    make(tmp_path / "a", epochs=1, end=True)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", dict(scene(tmp_path / "a").run.settings)["started"])
