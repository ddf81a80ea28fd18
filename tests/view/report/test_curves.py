"""The pictures of a page show the record's numbers."""

import numpy as np
from stoker.view.report._curves import curves, overlaid

from stoker.record import Event, LineStyle, Record
from stoker.view.report import Remembered
from tests.record.stories import story
from tests.view.report.pages import Page, points_of


def curve(values, name="valid/loss", kind="valid"):
    record = Record()
    for update, value in enumerate(values, 1):
        record.append(Event(kind, 10.0 * update, epoch=update, update=update, values={name: value}))
    return Remembered(record)


def test_lines_stand_where_the_numbers_are():
    values = [0.5, 0.2, 0.4, 0.3]
    (line,) = points_of(Page(curves(curve(values))))
    x, y = np.array(line).T
    assert np.allclose(np.diff(x), (x[-1] - x[0]) / 3, atol=0.11)
    assert np.corrcoef(y, values)[0, 1] < -0.9999, "the higher the number, the higher the point"


def test_a_number_that_is_none_breaks_the_line():
    lines = points_of(Page(curves(curve([0.5, 0.4, float("nan"), 0.3, 0.2, float("inf"), 0.1]))))
    assert [len(line) for line in lines] == [2, 2]


def test_what_came_in_on_the_way_stands_behind():
    page = Page(curves(Remembered(story(epochs=5))))
    faint = [line for line in page.all("polyline") if "stroke-opacity" in line]
    assert [line["stroke"] for line in faint] == ["#0072B2"], "the running loss of the training"
    assert page.all("polyline").index(faint[0]) == 0
    running = curve([0.5, 0.4, 0.3, 0.2], kind="progress")
    assert [len(line) for line in points_of(Page(curves(running)))] == [4], "of no epochs it is the curve"


def test_a_long_line_is_thinned_and_its_peak_stays():
    values = np.full(20_000, 0.5)
    values[[7000, 13_000]] = 9.0, 0.4
    (line,) = points_of(Page(curves(curve(values.tolist()))))
    _, y = np.array(line).T
    assert len(line) <= 310 and (y == y.min()).sum() == 1


def test_runs_over_each_other():
    runs = [curve([0.5, 0.4, 0.3]), curve([0.6, 0.5])]
    page = Page(overlaid(runs, ["valid/loss"], {0: LineStyle("#111111"), 1: LineStyle("#222222")}))
    assert [line["stroke"] for line in page.all("polyline")] == ["#111111", "#222222"]


def test_many_are_left_out():
    record = Record()
    for epoch in (1, 2, 3):
        record.append(
            Event("epoch", float(epoch), epoch=epoch, values={f"valid/m{number}": 1.0 for number in range(50)})
        )
    page = Page(curves(Remembered(record)))
    assert len(page.all("svg")) == 24 and "26 more are left out" in page.texts
    assert curves(Remembered(Record())) == ""
