"""The list of runs, in a real browser."""

import json
import re

import pytest
from playwright.sync_api import expect

from stoker.record import Annotations, read_annotations, write_annotations
from tests.view.ui.serving import panel, serving, train

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


def lines(page, title):
    """The labels of a chart's lines, and the numbers of points that are drawn."""
    return panel(page, title).evaluate(
        "({ panel }) => panel.drawn().map(({ label, y, low }) => [label, y.length, Boolean(low)])"
    )


def test_charts_beside_the_list_follow_the_search_and_the_chosen_runs(server, visit):
    with visit(server, "#/runs?metric=valid/loss") as page:
        expect(panel(page, "valid/loss").locator(".legend li")).to_have_count(4)
        page.get_by_role("searchbox", name="Search runs").fill("sweep")
        legend = panel(page, "valid/loss").locator(".legend .label")
        expect(legend).to_have_text([FAST, MEDIUM])
        expect(panel(page, "valid/loss").locator("canvas")).to_be_visible()
        page.get_by_label("Compare medium").check()
        expect(legend).to_have_text([MEDIUM])
        page.get_by_role("button", name="Charts").click()
        expect(panel(page, "valid/loss")).to_have_count(0)
        expect(page.get_by_role("button", name="Charts")).to_have_attribute("aria-pressed", "false")


def test_runs_are_grouped_by_a_setting_with_their_mean_and_range(server, visit):
    with visit(server, "#/runs?metric=valid/loss&col=best.valid/loss&col=state&charts=1") as page:
        page.get_by_label("Group by").select_option("group by model.hidden")
        expect(page.locator("tbody tr")).to_have_count(3)
        group = page.locator("tbody tr", has_text="model.hidden = 64")
        expect(group).to_contain_text("2 runs")
        expect(group.locator("td").nth(1)).to_have_text(re.compile(r"^[\d.]+[\d.]+ – [\d.]+$"))
        expect(panel(page, "valid/loss").locator("canvas")).to_be_visible()
        found = {label: band for label, _, band in lines(page, "valid/loss")}
        assert found == {"model.hidden = 32": False, "model.hidden = 64": True, "model.hidden = 256": False}
        rows = page.evaluate("fetch('/api/runs').then((answer) => answer.json())")["runs"]
        bests = [each["bests"]["valid/loss"] for each in rows if each["config"]["model.hidden"] == 64]
        mean = group.locator("td").nth(1).evaluate("(cell) => Number(cell.firstChild.textContent)")
        assert mean == pytest.approx(sum(bests) / 2, rel=1e-3)
        page.get_by_role("button", name="Runs with model.hidden = 64").click()
        expect(page.get_by_role("link", name="dead")).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(5)


@pytest.mark.soak
def test_sorting_and_columns_by_the_best_value_of_any_metric(server, visit):
    with visit(server, "#/runs?col=best.train/loss&col=train/loss&charts=0") as page:
        page.get_by_role("button", name="best train/loss").click()
        expect(page.get_by_role("columnheader", name="best train/loss")).to_have_attribute("aria-sort", "descending")
        expect(page.locator("tbody tr th a").last).to_have_text(FAST)
        page.get_by_role("searchbox", name="Search runs").fill("best.train/loss<0.5")
        expect(page.locator("tbody tr")).to_have_count(1)


@pytest.mark.soak
def test_settings_are_found_wherever_they_were_given(tmp_path, visit):
    train(tmp_path / "config", lr=0.1, epochs=1)
    run = train(tmp_path / "learner", lr=0.001, epochs=1)
    facts = json.loads((run.path / "run.json").read_text())
    (run.path / "config.json").unlink()
    (run.path / "run.json").write_text(json.dumps({**facts, "settings": {"lr": 0.001, "hparams": {"hidden": 7}}}))
    with serving(tmp_path) as (server, _), visit(server, "#/runs?charts=0") as page:
        search = page.get_by_role("searchbox", name="Search runs")
        for text, expected in (
            ("lr<0.005", "learner"),
            ("lr>0.005", "config"),
            ("hidden=7", "learner"),
            ("hidden=64", "config"),
        ):
            search.fill(text)
            expect(page.locator("tbody tr th a")).to_have_text([expected])


@pytest.fixture
def folder(tmp_path):
    for name in ("first", "second", "third"):
        train(tmp_path / name, epochs=1)
    return tmp_path


def test_runs_are_tagged_archived_and_deleted_with_undo(folder, visit):
    with serving(folder) as (server, _), visit(server, "#/runs?sort=name&charts=0") as page:
        page.get_by_label("Compare first").check()
        page.get_by_label("Compare second").check()
        page.get_by_role("button", name="Tag", exact=True).click()
        dialog = page.get_by_role("dialog", name="Tag 2 runs")
        dialog.get_by_label("Tags").fill("<b>paper</b>, ok")
        dialog.get_by_label("Token").fill(server.token)
        dialog.get_by_role("button", name="Add").click()
        expect(row(page, "second").locator(".tag")).to_have_text(["<b>paper</b>", "ok"])
        assert read_annotations(folder / "first").tags == ("<b>paper</b>", "ok")
        page.get_by_role("searchbox", name="Search runs").fill("tags=ok")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.get_by_role("searchbox", name="Search runs").fill("")

        page.get_by_label("Compare third").check()
        page.get_by_role("button", name="Archive", exact=True).click()
        expect(page.locator("#toast")).to_contain_text("Archived third.")
        expect(page.locator("tbody tr th a")).to_have_text(["first", "second"])
        page.get_by_role("button", name="1 archived").click()
        expect(page.locator("tbody tr")).to_have_count(3)

        page.get_by_label("Compare first").check()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator("#toast")).to_contain_text("Deleted first.")
        expect(page.locator("tbody tr th a")).to_have_text(["second", "third"])
        assert not (folder / "first").exists()
        page.locator("#toast").get_by_role("button", name="Undo").click()
        expect(page.locator("#toast")).to_contain_text("Restored first.")
        expect(page.locator("tbody tr th a")).to_have_text(["first", "second", "third"])
        assert read_annotations(folder / "first").tags == ("<b>paper</b>", "ok")


@pytest.mark.soak
def test_a_run_is_renamed_and_described_on_its_page(folder, visit):
    write_annotations(folder / "second", Annotations(title="<i>Second</i>", note="line\n<b>two</b>"))
    with serving(folder) as (server, _), visit(server, "#/run/first", expected=["403"]) as page:
        page.get_by_role("button", name="Edit").click()
        dialog = page.get_by_role("dialog", name="Title, tags and note")
        dialog.get_by_label("Title").fill("The best <b>one</b>")
        dialog.get_by_label("Note").fill("Why:\n<script>alert(1)</script>")
        dialog.get_by_label("Token").fill("wrong")
        dialog.get_by_role("button", name="Save").click()
        expect(dialog.get_by_role("alert")).to_contain_text("wrong token")
        dialog.get_by_label("Token").fill(server.token)
        dialog.get_by_role("button", name="Save").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("The best <b>one</b>")
        expect(page.locator(".note")).to_have_text("Why: <script>alert(1)</script>")
        page.get_by_role("link", name="Runs").click()
        expect(page.locator("tbody tr th a")).to_contain_text(["The best <b>one</b>"])
        page.get_by_role("link", name="<i>Second</i>").click()
        expect(page.locator(".note")).to_have_text("line <b>two</b>")
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
        expect(page.locator("tbody tr")).to_have_count(2)
        assert page.locator("main b, main i:not(.swatch), main script").count() == 0
