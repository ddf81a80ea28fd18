"""Several runs beside each other, in a real browser."""

import json
import os
import re

import pytest
from playwright.sync_api import expect

from tests.view.ui.serving import long_run, serving, train


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, lr, hidden in (("slow", 0.003, 32), ("medium", 0.01, 64), ("fast", 0.1, 64)):
        train(folder / name, lr=lr, hidden=hidden, epochs=3)
    with serving(folder) as (server, _):
        yield server


def table(page, heading):
    return page.locator("section", has=page.get_by_role("heading", name=heading)).locator("table").first


def test_runs_are_compared_with_their_differences_and_the_best_value(server, visit):
    with visit(server) as page:
        for name in ("slow", "medium", "fast"):
            page.get_by_label(f"Compare {name}").check()
        page.get_by_role("button", name="Compare 3").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("3 runs")
        plot = page.get_by_role("region", name="valid/loss", exact=True)
        expect(plot.locator("canvas")).to_be_visible()
        series = plot.evaluate("(element) => element.panel.chart.series.slice(1).map((each) => each.stroke())")
        assert series == ["#0072B2", "#E69F00", "#009E73"]
        ended = table(page, "Best values").get_by_role("row", name=re.compile(r"^valid\/loss"))
        expect(ended.locator("td").nth(2)).to_have_class("number best")
        expect(ended.get_by_role("img", name="best")).to_have_count(1)
        different = table(page, "Different settings")
        expect(different.get_by_role("row", name="lr 0.003 0.01 0.1")).to_be_visible()
        expect(different.get_by_role("row", name="model.hidden 32 64 64")).to_be_visible()
        page.get_by_text("2 settings are the same").click()
        expect(page.get_by_role("row", name="model.norm layer")).to_be_visible()
        page.get_by_role("button", name="Remove medium").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("2 runs")
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_have_text("3 runs")
        page.go_back()
        expect(page.get_by_role("checkbox", checked=True)).to_have_count(3)
        page.get_by_label("Compare slow").uncheck()
        page.reload()
        expect(page.get_by_role("button", name="Compare 2")).to_be_visible()


@pytest.mark.soak
def test_a_range_on_a_parallel_axis_selects_runs(server, visit):
    with visit(server, "#/compare?id=slow&id=medium&id=fast") as page:
        axis = page.locator("[data-axis='model.hidden'] line")
        box = axis.bounding_box()
        x, top, bottom = box["x"] + box["width"] / 2, box["y"], box["y"] + box["height"]
        page.mouse.move(x, top - 5)
        page.mouse.down()
        page.mouse.move(x, (top + bottom) / 2, steps=4)
        page.mouse.up()
        expect(page.locator(".parallel path.line.faded")).to_have_count(1)
        expect(page.locator(".runs-legend li.faded")).to_contain_text("slow")
        legend = page.get_by_role("region", name="valid/loss", exact=True).locator(".legend li")
        expect(legend).to_have_count(2)
        page.keyboard.press("Escape")
        expect(page.locator(".parallel path.line.faded")).to_have_count(0)
        expect(legend).to_have_count(3)


@pytest.mark.soak
def test_comparing_fewer_than_two_runs(server, visit):
    with visit(server, "#/compare") as page:
        expect(page.locator("main")).to_contain_text("choose two or more")


@pytest.mark.soak
def test_many_runs_and_metrics_stay_bounded(tmp_path, visit):
    """40 runs with 30 numbers; four of them with 3,000 points of each, the same file by several names."""
    for kind, points, copies in (("long", 3000, 4), ("short", 20, 36)):
        made = long_run(tmp_path / f"{kind}-00", names=30, points=points)
        for number in range(1, copies):
            copy = tmp_path / f"{kind}-{number:02}"
            copy.mkdir()
            (copy / "config.json").write_text(json.dumps({"seed": number}))
            os.link(made / "events.jsonl", copy / "events.jsonl")
    runs = [path.name for path in sorted(tmp_path.iterdir())]
    with serving(tmp_path) as (server, _), visit(server) as page:
        expect(page.locator("tbody tr")).to_have_count(40)
        page.goto(f"{server.address}#/compare?{'&'.join(f'id={name}' for name in runs)}")
        first = page.get_by_role("region", name="train/m0", exact=True)
        first.scroll_into_view_if_needed()
        expect(first.locator("canvas")).to_be_visible()
        drawn(page, lines=40, points=40 * 400)
        page.goto(f"{server.address}#/run/long-00")
        expect(page.locator(".panel")).to_have_count(30)
        expect(page.locator(".panel canvas").first).to_be_visible()
        drawn(page, lines=1, points=1200)
        assert page.locator(".panel canvas").count() < 20, "plots outside of the window are not loaded"


def drawn(page, *, lines, points):
    """Every plot that was loaded has so many lines, and no more than so many points; all that came are drawn."""
    counts = page.locator(".panel:has(canvas)").evaluate_all(
        """(panels) => panels.map(({ panel }) => [panel.data.size,
            [...panel.data.values()].reduce((sum, { x }) => sum + x.length, 0), +panel.mount.dataset.points])"""
    )
    assert counts
    for came, sent, shown in counts:
        assert came == lines and 0 < sent == shown <= points, counts
