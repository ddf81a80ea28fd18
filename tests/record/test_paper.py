"""Figures that are nobody's."""

import pytest
from matplotlib.figure import Figure

from stoker.record import figure_of, paper, written


def test_a_figure_shows_itself_in_a_notebook():
    figure = paper(2, 1)
    assert isinstance(figure, Figure) and figure._repr_png_().startswith(b"\x89PNG")
    assert figure.canvas.manager is None, "pyplot would have one"


def test_the_figure_of_axes():
    mine = Figure()
    inside = mine.subfigures(1, 2)[0].subplots()
    assert figure_of(inside) is mine and figure_of(Figure().subplots()) is not mine


@pytest.mark.parametrize("name", ["loss", "損失🔥", r"$\frac", r"a$\frac$c", "_own", "line\nbreak", "\x00"], ids=ascii)
def test_any_name_can_be_written(name):
    figure = paper(2, 1)
    axes = figure.subplots()
    axes.set_title(written(name))
    axes.plot([1], [1], label=written(name))
    assert len(axes.legend().get_texts()) == 1
    assert figure._repr_png_()  # warnings are errors here
