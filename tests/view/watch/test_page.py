"""The page of text."""

import pytest

from stoker.record import Event, Follower
from stoker.view.watch import page
from tests.view.watch.scenes import START, make


def followed(*paths):
    followers = [Follower(path) for path in paths]
    for follower in followers:
        follower.refresh()
    return followers


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
def test_a_run_as_text(tmp_path, ascii_only):
    run = make(tmp_path / "digits", epochs=3)
    run.record.append(Event("warning", START + 31, text="it is hot"))
    text = page(followed(tmp_path / "digits"), ascii_only=ascii_only)
    run.close()
    assert "\x1b" not in text
    assert text.startswith(f"{tmp_path / 'digits'}: running (Net, 1,234 parameters, on cpu)\n")
    assert "epoch    3 of 20" in text and "accuracy     0.6931   0.6317   0.6317 @3" in text
    assert "warning: it is hot" in text and "train/loss" in text
    assert text.isascii() or not ascii_only


def test_how_a_run_died(tmp_path):
    make(tmp_path / "digits", epochs=1).close()
    assert "the process ended without finishing the run" in page(followed(tmp_path / "digits"))


def test_several_runs(tmp_path):
    make(tmp_path / "a", epochs=1, end=True)
    make(tmp_path / "b", epochs=2, end=True)
    text = page(followed(tmp_path / "a", tmp_path / "b"))
    assert "a: stopped" in text and "b: stopped" in text and "━ a  o b" in text


def test_a_run_that_has_said_nothing_yet(tmp_path):
    run = make(tmp_path / "a", epochs=0)
    assert "phase    starting" in page(followed(tmp_path / "a"))
    run.close()
