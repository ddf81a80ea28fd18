"""Several runs in one page."""

import pytest

from stoker.errors import InvalidArgument
from stoker.record import Event, Record, Run
from stoker.view.report import Remembered, compare_html
from stoker.view.report._compare import differing
from tests.record.stories import fill, story
from tests.view.report.pages import HOSTILE, Page


@pytest.fixture
def runs(tmp_path):
    made = []
    for name, hidden in (("small", 64), ("wide", 128), ("none", None)):
        run = Run.create(tmp_path / name, config={"model": {"hidden": hidden}, "lr": 0.1} if hidden else None)
        fill(run.record, epochs=3 if hidden == 64 else 5)
        run.close()
        made.append(run.path)
    return made


def test_curves_over_each_other_and_what_differs(runs):
    page = Page(compare_html(*runs))
    assert page.texts[:3] == ["3 runs", "3 runs", "How they ended"]
    pictures = [text for text in page.texts if text.startswith(("valid/", "train/")) or text == "lr"]
    assert {"valid/loss", "train/loss", "lr"} <= set(pictures)
    assert len(page.all("svg")) == 5 and len(page.all("polyline")) == 15
    at = page.texts.index("Different in the config")
    assert page.texts[at + 1 : at + 9] == ["field", "small", "wide", "none", "model.hidden", "64", "128", "–"]


def test_a_run_has_one_colour(runs):
    page = Page(compare_html(*runs))
    keys = [each["style"] for each in page.all("span") if each.get("class") == "key"][:3]
    assert keys == ["--own:#009E73", "--own:#CC79A7", "--own:#56B4E9"]
    assert [line["stroke"] for line in page.all("polyline")][:3] == ["#009E73", "#CC79A7", "#56B4E9"]


def test_runs_of_one_name_and_hostile_ones():
    other = Record()
    other.append(Event("valid", 1.0, epoch=1, update=10, values={f"valid/{HOSTILE}": 1.0}))
    page = Page(compare_html(Remembered(story(), name=HOSTILE), Remembered(other, name=HOSTILE), story(epochs=0)))
    assert HOSTILE in page.texts and f"valid/{HOSTILE}" in page.texts


def test_differing_fields():
    assert differing([{"a": 1}, {"a": 1.0}, {"a": True}]) == ({}, {"a": [1, 1.0, True]})
    assert differing([None, [1], {}]) == ({}, {})
    assert differing([{"a": {"b": [1]}}, {"a": {"b": [1]}}]) == ({"a.b": [1]}, {})


def test_one_run_is_not_compared():
    with pytest.raises(InvalidArgument, match="compare_html compares two runs or more; got 1"):
        compare_html(story())


def test_what_the_learner_was_told_is_compared_too(tmp_path):
    runs = []
    for name, lr in (("a", 0.1), ("b", 0.2)):
        run = Run.create(tmp_path / name, facts={"seed": 5, "settings": {"lr": lr, "seed": 5, "hparams": {"width": 8}}})
        fill(run.record)
        run.close()
        runs.append(run.path)
    texts = Page(compare_html(*runs)).texts
    at = texts.index("Different in the config")
    assert texts[at + 1 : at + 7] == ["field", "a", "b", "settings.lr", "0.1", "0.2"]
    same = texts[texts.index("The same in all") :]
    assert "settings.hparams.width" in same and "settings.seed" in same and "(run).seed" not in same
