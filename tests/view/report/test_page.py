"""One file that needs nothing."""

from stoker.view.report._page import page

from tests.view.report.pages import HOSTILE, Page


def test_a_page_is_whole_and_forbids_itself_everything():
    found = Page(page(HOSTILE, "hello"))
    assert HOSTILE in found.texts and "hello" in found.texts
    policy = next(each["content"] for each in found.all("meta") if "http-equiv" in each)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:") and "script" not in policy
    assert {"charset": "utf-8"} in found.all("meta")


def test_it_can_be_read_by_night_and_on_paper():
    text = page("x")
    assert "prefers-color-scheme: dark" in text and "@media print" in text and "color-scheme: light dark" in text
    assert text.count("{") == text.count("}")
