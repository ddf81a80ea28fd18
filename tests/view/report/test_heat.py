"""A confusion matrix in a page."""

import numpy as np
from stoker.view.report._heat import heat

from tests.view.report.pages import Page


def test_cells_are_as_dark_as_their_share():
    page = Page(heat(np.array([[8.0, 2.0], [0.0, 0.0]]), ["cat", "dog"]))
    assert [each["style"] for each in page.all("td") if "style" in each] == [
        "--share:0.800",
        "--share:0.200",
        "--share:0.000",
        "--share:0.000",
    ]
    assert page.texts[-3:] == ["cat", "dog", "2"]


def test_many_classes_are_an_image():
    counts = np.eye(1000)
    counts[3, 7] = 5
    html = heat(counts, [f"class {place}" for place in range(1000)])
    page = Page(html)
    assert len(page.all("img")) == 1 and page.texts[-3:] == ["class 3", "class 7", "5"] and len(html) < 100_000


def test_numbers_that_are_none():
    assert Page(heat(np.full((2, 2), np.nan), ["a", "b"]))
