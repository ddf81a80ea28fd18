"""One run, in a real browser."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import expect

from stoker import metrics
from stoker.checkpoint import Place, Store
from stoker.record import Event, Run
from tests.view.ui.serving import PLAN, panel, serving, train


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = train(folder / "digits", epochs=4, end=False)
    run.record.append(Event("checkpoint", epoch=1, extra={"reason": "end of the epoch"}))
    run.record.append(Event("warning", epoch=2, text="two batches were empty"))
    run.record.append(Event("end", epoch=4, update=200, extra={"epochs": 4, "seconds": 20.0}))
    run.close()
    going = train(folder / "going", epochs=2, planned=4, end=False)
    with serving(folder) as (server, _):
        yield server
    going.close()


def chart(page, title, what):
    """Something about a plot, as uPlot has it."""
    return panel(page, title).evaluate(f"(element) => {{ const u = element.panel.chart; return {what}; }}")


def until(page, title, what):
    """Waits for something to be so in a plot; the page's own rules forbid to send it as a text to be run there."""
    for _ in range(400):
        if chart(page, title, f"Boolean(u && ({what}))"):
            return
        page.wait_for_timeout(25)
    pytest.fail(f"{title}: {what} never came")


def drawn(page, title):
    expect(panel(page, title).locator("canvas")).to_be_visible()


def across(page, title, start, end):
    """Drags over a plot, from one share of its width to another."""
    box = panel(page, title).locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + start * box["width"], box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()


def test_train_and_valid_share_a_chart_in_their_colors(server, visit):
    with visit(server) as page:
        page.get_by_role("link", name="digits").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("digits")
        expect(page.locator(".title .state")).to_have_text("✓finished")
        expect(page.locator(".facts")).to_contain_text(re.compile(r"Epochs4 / 4.*Update200.*valid/loss, epoch 4"))
        drawn(page, "loss")
        expect(panel(page, "loss").locator(".legend")).to_contain_text(
            re.compile(r"train/loss0\.6\d+.*valid/loss0\.6\d+|train/loss.*valid/loss")
        )
        assert chart(page, "loss", "u.series.slice(1).map((each) => each.stroke())") == ["#0072B2", "#E69F00"]
        expect(page.locator(".warnings")).to_contain_text("two batches were empty")
        assert page.title() == "digits · stoker"


@pytest.mark.soak
def test_the_tabs_of_a_run(server, visit):
    with visit(server, "#/run/digits") as page:
        page.get_by_role("tab", name="Config").click()
        expect(page.get_by_role("row", name="model.norm layer")).to_be_visible()
        expect(page.locator(".plan li")).to_have_text(PLAN)
        page.get_by_role("tab", name="Config").press("ArrowRight")
        expect(page.get_by_role("tab", name="System")).to_be_focused()
        drawn(page, "gpu_memory")
        expect(panel(page, "loss")).to_have_count(0)
        page.get_by_role("tab", name="Log").click()
        expect(page.locator("pre")).to_contain_text("warning: two batches were empty")
        expect(page.locator("#tab-body h2")).to_have_text(["log.txt", "Notes and warnings"])
        expect(page.locator("#tab-body tbody tr")).to_have_count(1)
        page.get_by_role("tab", name="Checkpoints").click()
        expect(page.get_by_text("None yet.")).to_be_visible()
        page.go_back()
        expect(page.get_by_role("tab", name="Log")).to_have_attribute("aria-selected", "true")


@pytest.mark.soak
def test_words_are_quoted_for_a_shell_and_unknown_facts_are_left_out(tmp_path, visit):
    command = ["python", "train.py", "--name", "it's a", "--lr=0.1", ""]
    Run.create(tmp_path / "request", facts={"command": command, "git": None}).close()
    with serving(tmp_path) as (server, _), visit(server, "#/run/request?tab=config") as page:
        expect(page.get_by_role("row", name=re.compile("^command"))).to_have_text(
            r"commandpython train.py --name 'it'\''s a' --lr=0.1 ''"
        )
        expect(page.get_by_role("row", name="host")).to_be_visible()
        expect(page.get_by_role("row", name="git")).to_have_count(0)
        page.get_by_role("tab", name="System").click()
        message = page.locator("main .empty", has_text="pip install 'stoker[monitor]'")
        expect(message).to_be_visible()  # not the empty messages of the tab before, which leaves a moment later
        named = re.findall(r"metrics\.(\w+)\(\)", message.text_content())
        assert set(named) == {name for name in metrics.__all__ if re.match("CPU|GPU|MemoryUse", name)}


@pytest.mark.soak
def test_the_table_of_epochs(server, visit):
    with visit(server, "#/run/digits") as page:
        page.get_by_role("tab", name="Epochs").click()
        expect(page.locator("tbody th")).to_have_text(["4", "3", "2", "1"])
        heads = page.locator("thead th").all_text_contents()
        assert heads[0] == "Epoch" and {"train/loss", "valid/accuracy", "lr", "cpu"} < set(heads)
        best = page.locator("tbody tr").first.locator("td.best")
        expect(best).to_have_text(re.compile(r"^★0\.\d+$"))
        assert heads[best.evaluate("(cell) => cell.cellIndex")] == "valid/loss"


@pytest.mark.soak
def test_the_progress_bar_is_as_wide_as_the_page(server, visit):
    with visit(server, "#/run/going", width=375) as page:
        bar = page.get_by_role("progressbar", name="Progress of the run")
        expect(bar).to_be_visible()
        assert bar.bounding_box()["width"] == page.locator(".run").bounding_box()["width"]
        expect(page.get_by_role("button", name="Archive")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.soak
def test_a_drag_zooms_and_a_double_click_resets(server, visit):
    with visit(server, "#/run/digits") as page:
        drawn(page, "loss")
        drawn(page, "accuracy")
        with page.expect_request(lambda request: "/api/points/" in request.url and "from=" in request.url) as request:
            across(page, "loss", 0.25, 0.5)
        found = {name: float(value) for name, value in re.findall(r"(from|to)=([\d.]+)", request.value.url)}
        assert 50 < found["from"] < 65 and 95 < found["to"] < 110, found
        page.wait_for_url(re.compile("from="))
        until(page, "loss", "u.scales.x.max < 110")
        assert chart(page, "accuracy", "u.scales.x.min") == pytest.approx(found["from"])
        page.go_back()
        until(page, "loss", "u.scales.x.max === 200")
        page.go_forward()
        until(page, "loss", "u.scales.x.max < 110")
        panel(page, "loss").locator(".u-over").dblclick()
        until(page, "loss", "u.scales.x.max === 200")
        assert "from=" not in page.url


@pytest.mark.soak
def test_zooming_by_keyboard(server, visit):
    with visit(server, "#/run/digits") as page:
        drawn(page, "loss")
        page.keyboard.press("j")
        expect(panel(page, "loss")).to_be_focused()
        page.keyboard.press("+")
        page.wait_for_url(re.compile("from="))
        until(page, "loss", "u.scales.x.min > 50")
        before = chart(page, "loss", "u.scales.x.max")
        page.keyboard.press("ArrowRight")
        until(page, "loss", f"u.scales.x.max > {before}")
        page.keyboard.press("Escape")
        until(page, "loss", "u.scales.x.min === 10")
        assert "from=" not in page.url
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


@pytest.mark.soak
def test_log_scale_smoothing_and_axes(server, visit):
    with visit(server, "#/run/digits") as page:
        drawn(page, "loss")
        assert chart(page, "loss", "[u.scales.y.distr, u.series.length]") == [1, 3]
        page.keyboard.press("l")
        expect(page.get_by_role("button", name="log scale")).to_have_attribute("aria-pressed", "true")
        assert chart(page, "loss", "u.scales.y.distr") == 3
        page.keyboard.press("s")
        expect(page.locator(".slider output")).to_have_text("0.60")
        assert chart(page, "loss", "u.series.slice(1).map((each) => each.alpha)") == [0.4, 1, 0.4, 1]
        raw, smooth = chart(page, "loss", "[1, 2].map((each) => [...u.data[each]].filter((y) => y !== undefined))")
        wobble = [sum(abs(a - b) for a, b in pairwise(line)) for line in (raw, smooth)]
        assert len(raw) == len(smooth) and wobble[1] < wobble[0]
        page.get_by_label("Horizontal axis").select_option("epoch")
        until(page, "loss", "u.scales.x.max === 4")
        page.get_by_label("Horizontal axis").select_option("time")
        until(page, "loss", "u.scales.x.max === 20")
        assert page.url.endswith("?log=1&smooth=0.6&by=time")


@pytest.mark.soak
def test_hovering_one_chart_reads_all_charts(server, visit):
    with visit(server, "#/run/digits") as page:
        drawn(page, "loss")
        drawn(page, "accuracy")
        box = panel(page, "loss").locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
        page.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + 50)
        expect(panel(page, "loss").locator(".readout")).to_have_text(re.compile(r"update \d+"))
        expect(panel(page, "accuracy").locator(".readout")).to_have_text(re.compile(r"update \d+"))
        page.mouse.move(5, 5)
        expect(panel(page, "accuracy").locator(".readout")).to_have_text("")


@pytest.mark.soak
def test_metrics_can_be_searched_and_lines_hidden(server, visit):
    with visit(server, "#/run/digits") as page:
        drawn(page, "loss")
        panel(page, "loss").get_by_role("button", name="train/loss").click()
        until(page, "loss", "u.series.length === 2")
        page.keyboard.press("/")
        page.keyboard.type("ACC")
        expect(page.locator(".panel")).to_have_count(1)
        drawn(page, "accuracy")
        page.keyboard.type("x")
        expect(page.get_by_text("No metric has such a name.")).to_be_visible()


@pytest.mark.soak
def test_a_missing_run(server, visit):
    with visit(server, "#/run/digit", expected=["404"]) as page:
        expect(page.locator("main")).to_contain_text("there is no run 'digit'")
        page.get_by_role("link", name="All runs").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Runs")


def test_stop_and_save_need_the_token_once(server, visit):
    control = server.folder / "going" / "control.json"
    with visit(server, "#/run/going", expected=["403"]) as page:
        page.get_by_role("button", name="Stop").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Stop this run?")
        dialog.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_label("Token").fill("wrong")
        dialog.get_by_role("button", name="Stop it").click()
        expect(dialog.get_by_role("alert")).to_contain_text("wrong token")
        assert not control.exists()
        page.get_by_label("Token").fill(server.token)
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        assert json.loads(control.read_text())["ask"] == "stop"
        expect(page.locator(".asked")).to_have_text("Asked to stop, waiting for the next update …")
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        expect(page.get_by_role("button", name="Save a checkpoint")).to_be_disabled()
        page.reload()  # forgets the request, but not the token
        page.get_by_role("button", name="Save a checkpoint").click()
        expect(page.get_by_label("Token")).to_be_hidden()
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_hidden()
        request = json.loads(control.read_text())
        assert (request["ask"], request["by"]) == ("save", "ui")


@pytest.mark.soak
def test_a_read_only_page_has_no_buttons(server, visit):
    with serving(server.folder, read_only=True) as (reading, _), visit(reading, "#/run/going") as page:
        expect(page.locator(".title .state")).to_have_text("●running")
        drawn(page, "loss")
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    with visit(server, "#/run/digits") as page:
        expect(page.locator(".title .state")).to_have_text("✓finished")
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_a_chart_is_enlarged_scaled_and_saved(server, visit):
    with visit(server, "#/run/digits", expected=["403"]) as page:
        drawn(page, "loss")
        assert chart(page, "loss", "u.axes.map((axis) => axis.label)") == ["update", "loss"]
        small = chart(page, "loss", "u.height")
        panel(page, "loss").get_by_role("button", name="Enlarge loss").click()
        expect(panel(page, "loss")).to_have_class("panel big")
        until(page, "loss", f"u.height > 2 * {small}")
        page.keyboard.press("Escape")
        until(page, "loss", f"u.height === {small}")
        panel(page, "loss").locator("summary").click()
        panel(page, "loss").get_by_label("upper end of the y axis").fill("2")
        panel(page, "loss").get_by_label("lower end of the y axis").fill("-1")
        page.keyboard.press("Enter")
        until(page, "loss", "u.scales.y.min === -1 && u.scales.y.max === 2")
        assert chart(page, "accuracy", "u.scales.y.max") < 2, "the range is the chart's own"
        page.reload()
        drawn(page, "loss")
        until(page, "loss", "u.scales.y.max === 2")
        panel(page, "loss").locator("summary").click()
        panel(page, "loss").get_by_label("Order of the legend").select_option("highest first")
        boxes = [
            panel(page, "loss").get_by_role("button", name=f"{each}/loss").bounding_box()["x"]
            for each in ("valid", "train")
        ]
        assert boxes == sorted(boxes), "the validation loss is higher"
        with page.expect_download() as download:
            panel(page, "loss").get_by_role("button", name="Save CSV").click()
        rows = [line.split(",") for line in Path(download.value.path()).read_text().splitlines()]
        assert rows[0] == ["update", "train/loss", "valid/loss"] and len(rows) == 21
        points = page.evaluate("fetch('/api/points/digits?name=valid/loss').then((answer) => answer.json())")["series"][
            "valid/loss"
        ]
        assert {int(x): float(y) for x, _, y in rows[1:] if y} == dict(zip(points["x"], points["y"], strict=True))
        with page.expect_download() as download:
            panel(page, "loss").get_by_role("button", name="Save PNG").click()
        assert download.value.suggested_filename == "loss.png"
        assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


@pytest.mark.soak
def test_the_learning_rate_is_drawn_as_it_was_whatever_the_settings(server, visit):
    with visit(server, "#/run/digits?log=1&smooth=0.9") as page:
        drawn(page, "lr")
        drawn(page, "loss")
        scales = "[u.scales.y.distr, u.series.length]"
        assert (chart(page, "lr", scales), chart(page, "loss", scales)) == ([1, 2], [3, 5])


@pytest.mark.soak
def test_a_dead_run_shows_how_to_resume_it_and_its_best_checkpoint(tmp_path, visit):
    run = train(tmp_path / "it's dead", epochs=3, planned=9, end=False)
    for update, value in ((50, 0.5), (100, 0.25), (150, 0.75)):
        place = Place(
            epoch=update // 50, batch=0, update=update, reason="end of the epoch", values={"valid/loss": value}
        )
        Store(run.path / "checkpoints", run=run.id).write({"x": 1}, place)
    run.close()
    with (
        serving(tmp_path) as (server, _),
        visit(server, "#/run/it's dead", permissions=["clipboard-read", "clipboard-write"]) as page,
    ):
        command = shlex.join(["stoker", "resume", str(run.path)])
        expect(page.locator(".resume code")).to_contain_text("stoker resume")
        page.get_by_role("button", name="Copy the command").click()
        expect(page.get_by_role("button", name="Copy the command")).to_have_text("Copied")
        assert shlex.split(page.evaluate("navigator.clipboard.readText()")) == shlex.split(command)
        page.get_by_role("tab", name="Checkpoints").click()
        best = page.locator("tbody tr.best")
        expect(best.locator("th")).to_have_text("★00000100")
        expect(best).to_contain_text("0.25")
        best.get_by_role("button", name="Copy the path of 00000100").click()
        expect(best.get_by_role("button", name="Copy the path of 00000100")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == str(run.path / "checkpoints" / "00000100")
