"""Values as HTML."""

from stoker.view.report._markup import Html, element, pairs, section, table

from tests.view.report.pages import HOSTILE, Page


def test_whatever_is_given_is_shown_as_text():
    html = element("div", HOSTILE, table((HOSTILE,), [(HOSTILE, 1.5)]), title=HOSTILE)
    page = Page(html)
    assert page.texts.count(HOSTILE) == 3 and page.all("div")[0]["title"] == HOSTILE
    assert element("p", Html("<b>x</b>")) == "<p><b>x</b></p>"


def test_half_a_letter_can_be_written_to_a_file():
    assert element("p", "a\ud800").encode() == b"<p>a\\ud800</p>"


def test_what_is_empty_leaves_no_trace():
    assert section("Log", "", None or "") == "" and pairs({"a": None, "b": ""}) == ""
    assert "<td>0</td>" in pairs({"a": 0}) and "<td>False</td>" in pairs({"a": False})
    page = Page(section("Log", "x", folded=True))
    assert [tag for tag, _ in page.elements] == ["section", "details", "summary", "h2"]
