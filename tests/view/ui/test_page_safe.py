"""Names and numbers as bad as they come, in a real browser; and what the page's files may not hold."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

import stoker
from stoker.record import Event, Run
from tests.view.ui.serving import serving

PAGE = Path(stoker.__file__).parent / "view" / "ui" / "page"
FILES = sorted(path for path in PAGE.rglob("*") if path.suffix in (".js", ".html", ".css"))
OURS = [path for path in FILES if path.parent == PAGE]
NAME = "<img src=x onerror=alert(1)>"
NAMES = [
    f"train/{NAME}", "train/<svg onload=alert(1)>", "valid/\"'><b>", "__proto__", "constructor", "train/__proto__",
    "a=b<c", "train/ñ 日本 🔥", "x" * 300, "%2e%2e%2f", "train/#?&;",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in (NAME, "plain"):
        run = Run.create(folder / name, config={"<b>": NAME, "__proto__": {"x": name}}, facts={"<i>": NAME})
        run.record.append(Event("begin", extra={"model": NAME, "device": NAME, "plan": [NAME], "monitor": NAMES[0]}))
        run.record.append(Event("warning", text=NAME))
        for epoch in (1, 2):
            values = dict.fromkeys(NAMES, epoch / 3)
            run.record.append(Event("epoch", epoch=epoch, update=epoch, values=values))
        run.record.append(Event("error", epoch=2, text=f"{NAME} failed"))
        run.close()
    with serving(folder) as (server, _):
        yield server


def no_markup(page):
    return page.locator("main img, main script, main [onload], main b, main i:not(.swatch)").count() == 0


def test_hostile_names_are_text_everywhere(server, visit):
    with visit(server) as page:
        expect(page.locator("tbody tr")).to_have_count(2)
        page.locator("summary", has_text="Columns").click()
        for name in ("<b>", "__proto__.x", NAMES[0], "__proto__"):
            page.get_by_role("checkbox", name=name, exact=True).check()
        expect(page.locator("thead")).to_contain_text(NAMES[0])
        assert no_markup(page)
        page.get_by_role("link", name=NAME, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(NAME)
        expect(page.locator(".reason")).to_have_text(f"{NAME} failed")
        expect(page.locator(".warnings")).to_contain_text(NAME)
        titles = page.locator(".panel h3").all_text_contents()
        assert {NAME, "<svg onload=alert(1)>", "__proto__", "constructor"} <= {
            re.sub("more not drawn$", "", each) for each in titles
        }
        for place in range(page.locator(".panel").count()):
            page.locator(".panel").nth(place).scroll_into_view_if_needed()
            expect(page.locator(".panel").nth(place).locator("canvas")).to_be_visible()
            expect(page.locator(".panel").nth(place).locator(".value").first).to_have_text("0.6667")
        page.get_by_role("tab", name="Epochs").click()
        expect(page.locator("thead")).to_contain_text(NAMES[0])
        assert no_markup(page)
        for tab in ("Config", "Log", "Checkpoints"):
            page.get_by_role("tab", name=tab).click()
            assert no_markup(page)
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_have_text(NAME)


@pytest.mark.soak
def test_hostile_names_in_a_comparison(server, visit):
    with visit(server) as page:
        expect(page.locator("tbody tr")).to_have_count(2)
        for box in page.get_by_role("checkbox", name="Compare").all():
            box.check()
        page.get_by_role("button", name="Compare 2").click()
        expect(page.locator(".across").first).to_contain_text(NAMES[0])
        expect(page.locator(".across").last).to_contain_text("__proto__.x")
        expect(page.locator(".panel")).to_have_count(len(NAMES))
        assert no_markup(page)


@pytest.mark.soak
def test_odd_urls_do_no_harm(server, visit):
    with visit(server, expected=["404"]) as page:
        for fragment in ("run/%E0%A4%A", "nothing", "run/../../etc", "runs?sort=__proto__&where=x&col=__proto__"):
            page.goto(f"{server.address}#/{fragment}")
            expect(page.locator("h1")).to_have_text(re.compile("Runs|can't be shown"))


@pytest.mark.soak
def test_extreme_values_can_be_drawn(tmp_path, visit):
    nan, inf = float("nan"), float("inf")
    odd = {
        "nan": [nan] * 4, "inf": [1.0, inf, -inf, 2.0], "huge": [1e300, -1e300, 1e308, 1.0],
        "tiny": [1e-300, 5e-324, 0.0, 1e-308],
        "near": [1e15, 1e15 + 0.125, 1e15, 1e15 + 0.25], "below": [-1.0, -2.0, 0.0, -3.0], "same": [0.1] * 4,
    }  # fmt: skip
    run = Run.create(tmp_path / "odd")
    for place in range(4):
        values = {f"train/{name}": numbers[place] for name, numbers in odd.items()}
        run.record.append(Event("epoch", epoch=place + 1, update=place + 1, values=values))
    run.close()
    with serving(tmp_path) as (server, _), visit(server, "#/run/odd?smooth=0.5") as page:
        expect(page.locator(".panel")).to_have_count(len(odd))
        for log in (False, True):
            for name in odd:
                panel = page.get_by_role("region", name=name, exact=True)
                panel.scroll_into_view_if_needed()
                expect(panel.locator("canvas")).to_be_visible()
            below = page.get_by_role("region", name="below", exact=True).locator(".message")
            expect(below).to_have_text("no positive values for a logarithmic scale" if log else "")
            page.keyboard.press("l")


@pytest.mark.soak
def test_many_metrics_are_found_with_the_search(tmp_path, visit):
    run = Run.create(tmp_path / "wide")
    run.record.append(Event("epoch", epoch=1, update=1, values={f"train/m{number}": 1.0 for number in range(3000)}))
    run.close()
    with serving(tmp_path) as (server, _), visit(server, "#/run/wide") as page:
        expect(page.locator(".panel")).to_have_count(200)
        more = page.locator(".panels > .empty")
        expect(more).to_have_text("2,800 more charts are not shown: search for their names.")
        page.get_by_role("searchbox", name="Search metrics").fill("m2999")
        expect(page.locator(".panel")).to_have_count(1)
        expect(more).to_have_count(0)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_scripts_create_no_markup_from_text_and_ask_no_other_server(path):
    text = path.read_text()
    assert text.count("\n") <= 300, "look for the second idea in this file"
    for wrong in (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "setHTML",
        "createContextualFragment", "eval(", "new Function", "importScripts", "sendBeacon", "WebSocket",
    ):  # fmt: skip
        assert wrong not in text, wrong
    assert set(re.findall(r"https?://[^\"'\s]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert "url(" not in text and "@import" not in text
    assert "//cdn" not in text


def test_the_page_has_no_inline_script_or_style():
    text = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", text) == [] and "<style" not in text
    assert re.findall(r"\s(?:on\w+|style)=", text) == []
    for name in re.findall(r"(?:src|href)=\"/static/([^\"]+)\"", text):
        assert (PAGE / name).is_file(), name


def test_uplot_is_unchanged_and_comes_with_its_licence():
    code = (PAGE / "uplot" / "uPlot.esm.js").read_text()
    assert "innerHTML" not in code and "Leon Sorokin" in code
    assert (PAGE / "uplot" / "LICENSE").read_text().startswith("The MIT License (MIT)")
