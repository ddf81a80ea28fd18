"""How the run stands, in words and bars."""

from dataclasses import replace

import pytest

from stoker.record import Follower
from stoker.view.watch import _panes as panes
from stoker.view.watch._scene import scene_of
from stoker.view.watch._view import View
from tests.view.watch.scenes import START, make, progress


@pytest.fixture
def scene(tmp_path):
    run = make(tmp_path / "digits", epochs=2)
    progress(run, 3, 25, at=START + 25)
    follower = Follower(tmp_path / "digits")
    follower.refresh()
    yield scene_of([follower], View())
    run.close()


def altered(scene, **changes):
    return replace(scene, runs=(replace(scene.run, **changes),))


def test_the_header_keeps_its_times_in_any_width(scene):
    for width in (30, 80, 200):
        line = panes.header(scene, width)
        assert line.plain.startswith(" running ") and line.plain.endswith(" 0:25 · 2:55 left ")
        assert line.cell_len == width


def test_good_times_need_no_banner(scene):
    assert panes.banner(scene) is None
    assert panes.banner(altered(scene, state="finished")) is None


@pytest.mark.parametrize(
    ("changes", "hung", "text"),
    [
        ({"state": "died", "reason": "it broke"}, 0, " last words  it broke"),
        ({"state": "stopped", "reason": "Ctrl-C"}, 0, " last words  Ctrl-C"),
        ({"state": "died", "reason": ""}, 0, " last words  no reason is written down"),
        ({"problem": "3 damaged lines were skipped"}, 0, " reading  3 damaged lines were skipped"),
        ({"state": "gone", "reason": "it is gone", "problem": "it is gone"}, 0, " last words  it is gone"),
        ({"behind": True}, 0, " a large record: still reading …"),
        ({}, 7.0, " waiting  the disk has not answered for 0:07; this is what was read before"),
    ],
    ids=["died", "stopped", "silent", "damaged", "gone", "behind", "hung"],
)
def test_the_banner(scene, changes, hung, text):
    assert panes.banner(altered(scene, **changes), hung).plain == text


def test_the_status_while_it_trains_and_after(scene):
    facts = dict(line.split(maxsplit=1) for line in panes.status(scene, 60, 20).plain.splitlines())
    assert facts["phase"] == "training" and facts["epoch"] == "3 of 20" and facts["batch"] == "25 of 50"
    assert facts["update"] == "125, 5/s" and facts["speed"] == "6.40k samples/s" and facts["time"] == "0:25, 2:55 left"
    assert facts["best"].endswith(" @2 valid/loss") and "warnings" not in facts
    over = panes.status(altered(scene, state="died"), 60, 20).plain
    assert "phase    died" in over and "batch" not in over and "left" not in over


def test_a_validation_says_of_which_set(scene):
    status = replace(scene.run.status, phase="valid", set_name="test")
    assert "phase    validating on test" in panes.status(altered(scene, status=status), 60, 20).plain
    assert panes.progress(altered(scene, status=status), 80).plain.startswith(" valid")


def test_progress(scene):
    first, second = panes.progress(scene, 80).plain.splitlines()
    assert first.startswith(" epoch 3/20 ━") and first.rstrip().endswith("batch 25/50")
    assert second.rstrip().endswith("12% · 2:55 left")
    full = panes.progress(altered(scene, state="finished"), 80).plain
    assert "100%" in full and "left" not in full


def test_a_plan_without_an_end_counts_updates(scene):
    status = replace(scene.run.status, epochs=None, fraction=None, left=None, within=None, batches=None)
    first, second = panes.progress(altered(scene, status=status), 80).plain.splitlines()
    assert first.startswith(" epoch 3 ") and second.rstrip().endswith("125 updates")


def test_words_that_matter_stand_out_in_the_log(scene):
    log = ("2026-01-31 12:00:00  warning: it is hot", "2026-01-31 12:00:01  a warning: not ours", "short")
    lines = panes.log_lines(altered(scene, log=log).run)
    assert [bool(line.spans) for line in lines] == [True, False, False]
    assert panes.log_lines(altered(scene, log=log).run, 1)[0].plain == "short"


def test_a_stop_is_a_warning_only_where_the_run_is_not_finished(scene):
    log = ("2026-01-31 12:00:00  stopped: Completed 4 epochs",)
    (finished,) = panes.log_lines(altered(scene, log=log, state="finished").run)
    (stopped,) = panes.log_lines(altered(scene, log=log, state="stopped").run)
    assert finished.spans[0].style == "#000000 on #009E73" and stopped.spans[0].style == "#000000 on #E69F00"


def test_where_there_is_little_room_the_log_has_no_days(scene):
    told = altered(scene, log=("2026-01-31 12:00:00  warning: it is hot", "no time at all, and quite long"))
    narrow, wide = panes.log(told, 76, 2), panes.log(told, 150, 2)
    assert narrow.plain == "12:00:00  warning: it is hot\nno time at all, and quite long"
    assert wide.plain.startswith("2026-01-31 12:00:00  warning") and narrow.spans


def test_between_two_epochs_all_batches_are_done(scene):
    status = replace(scene.run.status, batch=0, within=1.0, epoch=2)
    between = altered(scene, status=status)
    assert "batch    50 of 50" in panes.status(between, 60, 20).plain
    assert panes.progress(between, 80).plain.splitlines()[0].rstrip().endswith("batch 50/50")


def test_everything_else_on_the_page_of_settings(scene):
    text = panes.settings(scene.run).plain
    assert "length     20 epochs" in text and "config.lr" in text and "versions.python" in text
