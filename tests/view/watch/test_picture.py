"""The picture and the lines above it."""

from dataclasses import replace

import pytest

from stoker.record import Follower
from stoker.view.watch._picture import controls, picture, tabs
from stoker.view.watch._scene import scene_of
from stoker.view.watch._view import View
from tests.view.watch.scenes import make


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    make(path, epochs=3, end=True)
    follower = Follower(path)
    follower.refresh()
    return scene_of([follower], View())


def test_tabs_that_do_not_fit_are_behind_the_marks(scene):
    many = replace(scene, tabs=tuple(f"metric{place}" for place in range(50)), tab="metric25")
    for width in (20, 45, 80):
        line = tabs(many, width)
        assert line.cell_len <= width and "26 metric25" in line.plain
        assert line.plain.startswith("‹") and line.plain.endswith("›")
    first = tabs(replace(many, tab="metric0"), 45).plain
    assert first.startswith("  1 metric0") and first.endswith("›")


def test_every_name_and_control_can_be_clicked(scene):
    def actions(line):
        return [span.style.meta["@click"] for span in line.spans if getattr(span.style, "meta", None)]

    assert actions(tabs(scene, 80))[1:5] == ["app.tab(0)", "app.tab(1)", "app.tab(2)", "app.tab(3)"]
    assert actions(controls(scene, 80)) == [
        "app.kind('history')",
        "app.kind('recent')",
        "app.kind('epochs')",
        "app.smooth(1)",
        "app.log",
        "app.by",
    ]


def test_bars_have_no_smoothing(scene):
    assert controls(replace(scene, view=View(kind="epochs")), 80).plain == " history recent epochs"


@pytest.mark.parametrize("ascii_only", [False, True], ids=["braille", "ascii"])
def test_names_above_the_lines(scene, ascii_only):
    text = picture(scene, 60, 12, ascii_only=ascii_only).plain
    first = text.splitlines()[0]
    assert first == (" * train/loss  o valid/loss" if ascii_only else " ━ train/loss  ━ valid/loss")
    assert len(text.splitlines()) == 12 and text.isascii() == ascii_only


def test_no_room_and_nothing_to_draw(scene):
    assert picture(scene, 10, 3).plain == "no room"
    assert "nothing to draw yet" in picture(replace(scene, lines=()), 60, 12).plain
