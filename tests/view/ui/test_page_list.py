"""The list of runs, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.view.ui.serving import serving, train

SLOW, MEDIUM, FAST = "slow", "sweep/medium", "sweep/fast"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "slow", lr=0.003, hidden=32, epochs=3)
    train(folder / "sweep" / "medium", lr=0.01, hidden=64, epochs=3)
    train(folder / "sweep" / "fast", lr=0.1, hidden=256, epochs=3)
    train(folder / "dead", lr=0.02, hidden=64, epochs=1, planned=3, end=False).close()
    with serving(folder) as (server, _):
        yield server


def names(page):
    return page.locator("tbody tr th a").all_text_contents()


def row(page, name):
    return page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))


def test_every_run_is_listed_with_its_state_and_values(server, visit):
    with visit(server) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        expect(page.locator("tbody tr")).to_have_count(4)
        expect(row(page, FAST)).to_contain_text("✓finished")
        expect(row(page, FAST)).to_contain_text("3 / 3")
        expect(row(page, FAST)).to_contain_text(re.compile(r"0\.2\d+valid/loss"))
        expect(row(page, "dead")).to_contain_text("✕died")
        expect(row(page, "dead").get_by_role("progressbar")).to_have_attribute("aria-label", "Progress of dead")
        assert page.title() == "Runs · stoker"


@pytest.mark.soak
def test_search_by_words_and_conditions_is_kept_in_the_url(server, visit):
    with visit(server) as page:
        search = page.get_by_role("searchbox", name="Search runs")
        search.fill("sweep")
        expect(page.locator("tbody tr")).to_have_count(2)
        search.fill("lr<=0.01 hidden=")
        expect(page.locator("tbody tr")).to_have_count(2)
        assert set(names(page)) == {SLOW, MEDIUM}
        search.fill("valid/loss<0.3")
        expect(page.locator("tbody tr")).to_have_count(1)
        assert names(page) == [FAST]
        page.reload()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(search).to_have_value("valid/loss<0.3")
        search.fill("nobody")
        expect(page.get_by_text("No run matches.")).to_be_visible()


@pytest.mark.soak
def test_malformed_conditions_are_explained_and_a_number_is_not_compared_with_a_word(server, visit):
    with visit(server) as page:
        expect(page.locator("tbody tr")).to_have_count(4)
        for wrong in ("lr<<x", "lr<", "lr>=<3", "lr==0.01", "state>>x"):
            page.get_by_role("searchbox", name="Search runs").fill(f"{wrong} sweep")
            expect(page.locator("tbody tr")).to_have_count(0)
            expect(page.locator(".empty")).to_have_text(
                f"{wrong} is malformed: write a name, one sign and a value, such as lr<0.01."
            )
        page.get_by_role("searchbox", name="Search runs").fill("lr<x")
        expect(page.locator(".empty")).to_have_text("No run matches.")


@pytest.mark.soak
def test_a_damaged_run_is_marked(server, visit):
    def damaged(route):
        answer = route.fetch().json()
        for each in answer["runs"]:
            each["problem"] = "3 damaged lines were skipped" if each["id"] == SLOW else ""
        route.fulfill(json=answer)

    with visit(server) as page:
        expect(page.locator("tbody tr")).to_have_count(4)
        page.route("**/api/runs", damaged)
        page.route("**/api/events*", lambda route: route.fulfill(content_type="text/event-stream", body=": none\n\n"))
        page.reload()
        expect(row(page, SLOW).locator("th")).to_have_text("slow⚠ 3 damaged lines were skipped")
        expect(page.locator("tbody .problem:visible")).to_have_count(1)


@pytest.mark.soak
def test_sorting_by_a_column_both_ways(server, visit):
    with visit(server) as page:
        page.get_by_role("button", name="Best").click()
        best = page.get_by_role("columnheader", name="Best")
        expect(best).to_have_attribute("aria-sort", "descending")
        assert names(page)[0] == SLOW and names(page)[-1] == FAST
        page.get_by_role("button", name="Best").click()
        expect(best).to_have_attribute("aria-sort", "ascending")
        assert names(page)[0] == FAST
        assert page.url.endswith("#/runs?sort=best")


@pytest.mark.soak
def test_filters_can_be_added_and_removed(server, visit):
    with visit(server) as page:
        for field, sign, wanted in (("model.hidden", "=", "64"), ("valid/loss", "<", "0.9")):
            page.locator("summary", has_text="Filter").click()
            page.get_by_label("Filter by").select_option(label=field)
            page.get_by_label("Is", exact=True).select_option(sign)
            page.get_by_label("Value", exact=True).fill(wanted)
            page.get_by_role("button", name="Add").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        assert names(page) == [MEDIUM]
        page.get_by_role("button", name="Remove the filter valid/loss < 0.9").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("button", name="Remove the filter model.hidden = 64").click()
        expect(page.locator("tbody tr")).to_have_count(4)


@pytest.mark.soak
def test_columns_can_be_chosen(server, visit):
    with visit(server) as page:
        page.locator("summary", has_text="Columns").click()
        page.get_by_role("checkbox", name="valid/accuracy", exact=True).check()
        page.get_by_label("Began", exact=True).uncheck()
        heads = page.locator("thead th")
        expect(heads.filter(has_text="valid/accuracy")).to_have_count(1)
        expect(heads.filter(has_text="Began")).to_have_count(0)
        page.reload()
        expect(heads.filter(has_text="valid/accuracy")).to_have_count(1)
        expect(row(page, FAST).locator("td").last).to_have_text(re.compile(r"0\.9\d+"))


@pytest.mark.soak
def test_the_list_by_keyboard(server, visit):
    with visit(server, "#/runs?sort=name") as page:
        expect(page.locator("tbody tr")).to_have_count(4)
        page.keyboard.press("/")
        page.keyboard.type("sweep")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        expect(page.get_by_role("link", name=FAST)).to_be_focused()
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("x")
        page.keyboard.press("j")
        page.keyboard.press("x")
        expect(page.get_by_role("button", name="Compare 2")).to_be_visible()
        page.keyboard.press("c")
        expect(page.get_by_role("heading", level=1)).to_have_text("2 runs")
        page.keyboard.press("Escape")
        expect(page.get_by_role("searchbox", name="Search runs")).to_have_value("sweep")
        expect(page.get_by_role("button", name="Compare 2")).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(2)
        page.keyboard.press("k")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(MEDIUM)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog", name="Keys")).to_be_hidden()
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


@pytest.mark.soak
def test_a_phone_does_not_scroll_sideways(server, visit):
    with visit(server, width=375) as page:
        page.get_by_label("Sort by").select_option("name")
        expect(page.locator("tbody tr").first).to_contain_text("dead")
        for fragment in ("runs", "run/slow", "run/slow?tab=config", "run/slow?tab=epochs", "compare?id=slow&id=dead"):
            page.goto(f"{server.address}#/{fragment}")
            expect(page.locator("tbody tr, .panel, h2").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.soak
def test_dark_and_light_themes(server, visit):
    def paper(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    with visit(server, color_scheme="dark") as page:
        assert paper(page) == "rgb(19, 21, 25)"
        page.get_by_role("button", name="Theme: system").click()
        assert paper(page) == "rgb(251, 251, 250)"
        page.get_by_role("button", name="Theme: light").click()
        page.reload()
        expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
        assert paper(page) == "rgb(19, 21, 25)"


@pytest.mark.soak
def test_an_empty_folder_says_how_to_start(tmp_path, visit):
    with serving(tmp_path) as (server, _), visit(server) as page:
        expect(page.locator(".empty")).to_contain_text(f"There are no runs in {tmp_path} yet.")
