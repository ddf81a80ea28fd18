"""In which fields two configs differ."""

import pytest

from stoker.record._differences import asked, differences


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"lr": 0.1}, {"lr": 0.1}, []),
        ({"lr": 0.1, "a": "x"}, {"lr": 0.2, "a": "y"}, ["lr: 0.1 → 0.2", "a: 'x' → 'y'"]),
        ({"model": {"a": {"b": 1}}}, {"model": {"a": {"b": 2}}}, ["model.a.b: 1 → 2"]),
        ({"old": 1, "gone": None}, {"old": 1, "new": [1]}, ["gone: None → nothing", "new: nothing → [1]"]),
        ({"a": {}}, {"a": {"b": 1}}, ["a: {} → nothing", "a.b: nothing → 1"]),
        (None, {"a": 1}, ["a: nothing → 1"]),
    ],
)
def test_a_line_for_each_field(old, new, found):
    assert differences(old, new) == found


def test_what_was_asked_for_is_said_once():
    facts = {"settings": {"lr": 0.1, "seed": 1, "hparams": {"hidden": 64}}}
    assert asked({"train": {"lr": 0.1}, "model": {"hidden": 64}, "seed": 0}, facts, once=True) == {
        "train.lr": 0.1,
        "model.hidden": 64,
        "seed": 0,
        "settings.seed": 1,
    }
    assert asked(None, {}) == asked(None, {"settings": {}}) == {}
    assert asked(None, {"settings": ["damaged"]}) == {"settings": ["damaged"]}


def test_beside_another_run_nothing_is_left_out():
    one = asked({"lr": 0.1}, {"settings": {"lr": 0.1}})
    other = asked({"lr": 0.1}, {"settings": {"lr": 0.01}})
    assert (one["settings.lr"], other["settings.lr"]) == (0.1, 0.01)
