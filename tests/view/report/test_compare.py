"""Several runs in one page."""

import pytest

from stoker.errors import InvalidArgument
from stoker.record import Event, Record, Run
from stoker.view.report import compare_html
from tests.record.examples import append_fit, example_record
from tests.view.report.pages import HOSTILE, Page


@pytest.fixture
def runs(tmp_path):
    made = []
    for name, hidden in (("small", 64), ("wide", 128), ("none", None)):
        run = Run.create(tmp_path / name, config={"model": {"hidden": hidden}, "lr": 0.1} if hidden else None)
        append_fit(run.record, epochs=3 if hidden == 64 else 5)
        run.close()
        made.append(run.path)
    return made


def test_results_curves_and_different_settings(runs):
    page = Page(compare_html(*runs))
    assert page.texts[:3] == ["3 runs", "3 runs", "Results"]
    titles = [text for text in page.texts if text.startswith(("valid/", "train/")) or text == "lr"]
    assert {"valid/loss", "train/loss", "lr"} <= set(titles)
    assert len(page.all("svg")) == 5 and len(page.all("polyline")) == 15
    colors = ["#009E73", "#CC79A7", "#56B4E9"]  # of the runs, in every chart
    assert [line["stroke"] for line in page.all("polyline")] == 5 * colors
    assert {each["style"] for each in page.all("span") if each.get("class") == "key"} == {f"--own:{x}" for x in colors}
    at = page.texts.index("Different settings")
    assert page.texts[at + 1 : at + 9] == ["field", "small", "wide", "none", "model.hidden", "64", "128", "–"]


def test_runs_of_the_same_name_and_hostile_names(tmp_path):
    other = Record()
    other.append(Event("valid", 1.0, epoch=1, update=10, values={f"valid/{HOSTILE}": 1.0}))
    hostile = Run.create(tmp_path / HOSTILE.replace("/", "|"), config={HOSTILE: HOSTILE})
    append_fit(hostile.record)
    page = Page(compare_html(hostile, example_record(), other, example_record(epochs=0)))
    hostile.close()
    assert HOSTILE.replace("/", "|") in page.texts and f"valid/{HOSTILE}" in page.texts and HOSTILE in page.texts


def test_equal_values_are_common_and_a_bool_is_not_a_number(tmp_path):
    paths = []
    for name, flag in (("a", 1), ("b", True)):
        run = Run.create(tmp_path / name, config={"flag": flag, "sizes": [1, 2], "lr": 0.1})
        append_fit(run.record)
        run.close()
        paths.append(run.path)
    texts = Page(compare_html(*paths)).texts
    different = texts[texts.index("Different settings") : texts.index("Common settings")]
    assert (
        different[1:7] == ["field", "a", "b", "flag", "1", "True"]
        and "sizes" not in different
        and "lr" not in different
    )


def test_one_run_is_an_error():
    with pytest.raises(InvalidArgument, match="compare_html needs two runs or more; got 1"):
        compare_html(example_record())


def test_the_learners_settings_are_compared(tmp_path):
    runs = []
    for name, lr in (("a", 0.1), ("b", 0.2)):
        run = Run.create(tmp_path / name, facts={"seed": 5, "settings": {"lr": lr, "seed": 5, "hparams": {"width": 8}}})
        append_fit(run.record)
        run.close()
        runs.append(run.path)
    texts = Page(compare_html(*runs)).texts
    at = texts.index("Different settings")
    assert texts[at + 1 : at + 7] == ["field", "a", "b", "lr", "0.1", "0.2"]
    same = texts[texts.index("Common settings") :]
    assert "width" in same and "seed" in same and "(run).seed" not in same
