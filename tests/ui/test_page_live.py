"""A page that stays open while runs go on, end and vanish, and while its server goes away."""

import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from tests.record.stories import LIGHT
from tests.ui.conftest import served
from tests.ui.page_runs import train

# A training process: appends a point for every line that it is sent.
PROGRAM = (
    LIGHT
    + """
import time
from stoker.record import Event, Run
began = time.time()  # of progress, only one event a second is kept, by its own time
run = Run.create(sys.argv[1])
run.record.append(Event("begin", extra={"epochs": 4, "batches": 10, "monitor": "train/loss",
    "metrics": {"loss": {"direction": "min", "unit": ""}}}))
print("ready", flush=True)
for update, line in enumerate(sys.stdin, 1):
    run.record.append(Event("progress", began + 2 * update, epoch=1, batch=update, update=update,
        values={"train/loss": float(line)}, extra={"phase": "train", "batches": 10}))
"""
)


@pytest.fixture
def process(tmp_path):
    path = tmp_path / "live"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def tell(process, loss):
    process.stdin.write(f"{loss}\n")


def test_points_of_another_process_come_by_themselves_and_its_death_too(tmp_path, process, visit):
    with served(tmp_path) as server, visit(server) as page:
        row = page.locator("tbody tr")
        expect(row).to_contain_text("●running")
        tell(process, 0.75)
        tell(process, 0.625)
        expect(row).to_contain_text("1 / 4")
        page.get_by_role("link", name="live").click()
        value = page.get_by_role("region", name="loss", exact=True).locator(".legend .value")
        expect(value).to_have_text("0.625")
        tell(process, 0.5)
        expect(value).to_have_text("0.5")
        expect(page.locator(".facts")).to_contain_text("Update3")
        expect(page.locator(".facts")).to_contain_text("train, batch 3 / 10")
        process.kill()
        process.wait()
        expect(page.locator(".title .state")).to_have_text("✕died")
        expect(page.locator(".reason")).to_contain_text("went away without a word")


def test_runs_come_and_go_in_the_list(tmp_path, visit):
    train(tmp_path / "first", epochs=1)
    with served(tmp_path) as server, visit(server) as page:
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="first").focus()
        train(tmp_path / "second", epochs=1)
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(page.get_by_role("link", name="first")).to_be_focused()
        shutil.rmtree(tmp_path / "second")
        expect(page.locator("tbody tr")).to_have_count(1)


def test_a_run_that_is_deleted_while_it_is_shown(tmp_path, visit):
    train(tmp_path / "digits", epochs=2)
    with served(tmp_path) as server, visit(server, "#/run/digits", expected=["404"]) as page:
        expect(page.locator(".panel canvas").first).to_be_visible()
        shutil.rmtree(tmp_path / "digits")
        expect(page.locator(".title .state")).to_have_text("○gone")
        expect(page.locator(".reason")).to_have_text("the run's directory is gone")


def test_a_lost_connection_is_said_and_taken_up_again(tmp_path, visit):
    train(tmp_path / "digits", epochs=2)
    lost = ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"]
    with ExitStack() as stack:
        with served(tmp_path) as server:
            page = stack.enter_context(visit(server, expected=lost))
            expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("#lost")).to_contain_text("Connection lost")
        shutil.rmtree(tmp_path / "digits")
        train(tmp_path / "meanwhile", epochs=1)
        stack.enter_context(served(tmp_path, port=server.port))
        expect(page.locator("tbody tr th")).to_have_text(["meanwhile"])
        expect(page.locator("#lost")).to_be_hidden()
