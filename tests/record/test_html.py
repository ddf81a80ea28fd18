"""The table in a notebook: well-formed, self-contained, and with the numbers in it."""

import math
import re
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.record import Event, History, Record
from tests.record.stories import numbers, story

SVG = "{http://www.w3.org/2000/svg}"


def parsed(history):
    return ET.fromstring(history._repr_html_().replace("…", "..."))


def test_curves_and_table():
    tree = parsed(History(story(valid_every=2)))
    pictures = tree.findall(f"{SVG}svg")
    assert [picture.findtext(f"{SVG}text") for picture in pictures] == ["loss", "accuracy", "lr"]
    lines = pictures[0].findall(f"{SVG}polyline")
    assert [len(line.get("points").split()) for line in lines] == [5, 2]
    rows = [[cell.text or "" for cell in row] for row in tree.findall("table/tr")]
    assert rows[0] == ["epoch", "train/loss", "train/accuracy", "lr", "valid/loss", "valid/accuracy"]
    assert rows[1][:2] == ["1", "1.000"] and rows[1][4] == "" and len(rows) == 6
    assert [row.get("style") is not None for row in tree.findall("table/tr")].index(True) == 2
    assert tree.findtext("p") == "best valid/loss: 0.6000 in epoch 2"


def test_nothing_comes_from_outside_and_names_can_do_no_harm():
    record = Record()
    record.append(Event("epoch", epoch=1, values={"<script>alert(1)</script>": 1.0, "valid/a&b": 2.0}))
    text = History(record)._repr_html_()
    assert "<script" not in text and "a&amp;b" in text
    assert re.findall(r"(?:src|href)=|url\(", text) == []
    assert "no epochs yet" in History(Record())._repr_html_()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(), min_size=1, max_size=30))
def test_any_numbers_make_a_picture_with_every_point_inside(values):
    tree = parsed(History(numbers(values)))
    for line in tree.iter(f"{SVG}polyline"):
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            assert 52 <= x <= 252 and 22 <= y <= 98
        assert len(line.get("points").split()) == sum(map(math.isfinite, values))


def test_many_classes_stay_a_small_page():
    record = Record()
    for epoch in range(1, 200):
        record.append(
            Event("epoch", epoch=epoch, values={f"valid/m{i}/{j}": 0.5 for i in range(10) for j in range(30)})
        )
    tree = parsed(History(record))
    assert len(tree.findall(f"{SVG}svg")) == 6 and "288 more columns" in tree.findtext("p")
    assert len(tree.findall("table/tr")) == 12
