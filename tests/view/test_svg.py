"""Lines as SVG."""

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from stoker.record import LineStyle
from stoker.view._svg import Line, chart, ticks

SVG = "{http://www.w3.org/2000/svg}"
BLUE = LineStyle("#0072B2")


def test_points_marks_and_dashes():
    lines = [
        Line("train/loss", [1, 2, 3], [3.0, 2.0, 1.0], BLUE, best=(3, 1.0)),
        Line("x", [1, 3], [1, 3], LineStyle("#000", 1)),
    ]
    tree = ET.fromstring(chart("loss", lines, width=360, height=154))
    first, second = tree.findall(f"{SVG}polyline")
    assert first.get("points") == "52,22 202,72 352,122" and first.get("stroke-dasharray") is None
    assert second.get("stroke-dasharray") == "6 3"
    (mark,) = tree.findall(f"{SVG}circle")
    assert (mark.get("cx"), mark.get("cy")) == ("352", "122")
    assert [text.text for text in tree.findall(f"{SVG}text")][-2:] == ["train", "x"]


def test_a_logarithmic_scale():
    tree = ET.fromstring(chart("loss", [Line("a", [0, 1, 2], [1.0, 0.1, 0.01], BLUE)], width=360, height=154, log=True))
    assert tree.find(f"{SVG}polyline").get("points") == "52,22 202,72 352,122"
    assert {"1", "0.1", "0.01"} <= {text.text for text in tree.findall(f"{SVG}text")}


def test_nothing_to_draw():
    for lines in ([], [Line("a", [], [], BLUE)], [Line("a", [1.0], [float("nan")], BLUE)]):
        tree = ET.fromstring(chart("<&>", lines))
        assert tree.findall(f"{SVG}polyline") == [] and tree.findtext(f"{SVG}title") == "<&>"


def test_a_long_legend_is_cut_and_a_faint_line_has_none():
    lines = [Line("n" * 500, [1, 2], [1, 2], BLUE), Line("behind", [1, 2], [1, 2], BLUE, faint=True)]
    text = chart("t", lines)
    assert "n…" in text and "n" * 60 not in text and "behind" not in text
    assert text.index('stroke-opacity="0.35"') < text.rindex("<polyline")


def test_updates_are_told_to_the_last_digit():
    texts = [
        text.text for text in ET.fromstring(chart("t", [Line("a", [0, 999_999], [1, 2], BLUE)])).findall(f"{SVG}text")
    ]
    assert "epoch 0" in texts and "999,999" in texts


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def test_round_numbers():
    assert ticks(0, 1, 5) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert ticks(-3.2, 3.1, 3) == [-3.2, 3.1] and ticks(-3.2, 3.1, 4) == [-2.0, 0.0, 2.0]
    assert ticks(1e-9, 1.0, 4, log=True) == [1e-09, 1e-06, 0.001, 1.0]
    assert ticks(0.02, 0.5, 4, log=True) == [0.02, 0.1, 0.5] and ticks(7.0, 7.0, 4) == [7.0]


@given(NUMBERS, NUMBERS, st.integers(2, 8))
def test_ticks_lie_between_the_ends_and_are_few(a, b, most):
    low, high = sorted((a, b))
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most + 2 and found == sorted(found)
    room = (high / 2 - low / 2) * 1e-6
    assert all(low - room <= each <= high + room for each in found)
