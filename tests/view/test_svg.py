"""Static SVG charts of reports and notebooks."""

import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import LineStyle
from stoker.view._svg import SvgLine, svg_chart  # shared by the report and the notebook console

SVG = "{http://www.w3.org/2000/svg}"
BLUE = LineStyle("#0072B2")
SIZE = {"width": 360, "height": 154}


def test_lines_markers_and_dashes_are_at_their_places():
    lines = [
        SvgLine("train/loss", [1, 2, 3], [3.0, 2.0, 1.0], BLUE, best=(3, 1.0)),
        SvgLine("x", [1, 3], [1, 3], LineStyle("#000", 1)),
    ]
    tree = ET.fromstring(svg_chart("loss", lines, **SIZE, x_label="epoch"))
    first, second = tree.findall(f"{SVG}polyline")
    assert first.get("points") == "52,22 202,72 352,122" and first.get("stroke-dasharray") is None
    assert second.get("stroke-dasharray") == "6 3"
    (marker,) = tree.findall(f"{SVG}circle")
    assert (marker.get("cx"), marker.get("cy")) == ("352", "122")
    texts = [text.text for text in tree.findall(f"{SVG}text")]
    assert texts[-2:] == ["train", "x"] and {"epoch", "1", "2", "3"} <= set(texts)


def test_labels_of_the_x_axis_are_whole_and_apart():
    line = SvgLine("train/loss", [100, 250, 400], [3.0, 2.0, 1.0], BLUE)
    tree = ET.fromstring(svg_chart("loss", [line], **SIZE, x_label="update"))
    place = {text.text: float(text.get("x")) for text in tree.findall(f"{SVG}text")}
    wide = 6.2  # pixels of a character, at most
    assert place["400"] + 1.5 * wide <= SIZE["width"]
    assert place["update"] + 6 * wide < place["100"] - 1.5 * wide


def test_a_long_legend_is_cut_and_a_faint_line_has_no_label():
    lines = [SvgLine("n" * 500, [1, 2], [1, 2], BLUE), SvgLine("behind", [1, 2], [1, 2], BLUE, faint=True)]
    text = svg_chart("t", lines, **SIZE)
    assert "n…" in text and "n" * 60 not in text and "behind" not in text
    assert text.index('stroke-opacity="0.35"') < text.rindex("<polyline")


POINTS = st.lists(st.tuples(st.floats(), st.floats()), max_size=10)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=5), st.lists(POINTS, max_size=3), st.booleans())
def test_any_points_and_names_give_valid_xml_inside_the_picture(name, many, log):
    name = "".join(letter for letter in name if letter.isprintable())
    lines = [SvgLine(name, *zip(*points, strict=True), BLUE) for points in many if points]
    tree = ET.fromstring(svg_chart(name, lines, **SIZE, log=log))
    assert (tree.findtext(f"{SVG}title") or "") == name
    for polyline in tree.findall(f"{SVG}polyline"):
        for point in polyline.get("points").split():
            x, y = map(float, point.split(","))
            assert 52 <= x <= 352 and 22 <= y <= 122
