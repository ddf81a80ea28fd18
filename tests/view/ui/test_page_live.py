"""A page that stays open while runs train, end and vanish, and while its server goes away."""

import json
import shutil
import subprocess
import sys
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect

from stoker.record import Event, Run
from tests.record.examples import WITHOUT_TORCH
from tests.view.ui.serving import serving, train

# A training process: appends a point for every line that it is sent.
PROGRAM = (
    WITHOUT_TORCH
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


def test_points_and_the_end_of_another_process_appear(tmp_path, process, visit):
    with serving(tmp_path) as (server, _), visit(server) as page:
        row = page.locator("tbody tr")
        expect(row).to_contain_text("●running")
        tell(process, 0.75)
        tell(process, 0.625)
        expect(row).to_contain_text("0 / 4")  # complete epochs
        page.get_by_role("link", name="live").click()
        value = page.get_by_role("region", name="loss", exact=True).locator(".legend .value")
        expect(value).to_have_text("0.625")
        tell(process, 0.5)
        expect(value).to_have_text("0.5")
        expect(page.locator(".facts")).to_contain_text("Update3")
        expect(page.locator(".facts")).to_contain_text("epoch 1, train, batch 3 / 10")
        process.kill()
        process.wait()
        expect(page.locator(".title .state")).to_have_text("✕died")
        expect(page.locator(".reason")).to_contain_text("ended without finishing the run")


@pytest.mark.soak
def test_a_request_is_shown_until_the_run_has_done_it(tmp_path, visit):
    path = tmp_path / "going"
    run = train(path, epochs=1, planned=4, end=False)
    with serving(tmp_path) as (server, _), visit(server, "#/run/going") as page:
        save, stop = page.get_by_role("button", name="Save a checkpoint"), page.get_by_role("button", name="Stop")
        save.click()
        page.get_by_label("Token").fill(server.token)
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.locator(".asked")).to_have_text("Asked to save a checkpoint, waiting for the next update …")
        expect(save).to_be_disabled()
        page.get_by_role("link", name="Runs").click()
        page.get_by_role("link", name="going").click()
        expect(save).to_be_disabled()
        checkpoint(run, update=50)
        expect(page.locator(".asked")).to_have_text("✓ Saved 00000050 after update 50.")
        expect(save).to_be_enabled()
        stop.click()
        page.get_by_role("button", name="Stop it").click()
        expect(page.locator(".asked")).to_contain_text("Asked to stop")
        expect(stop).to_be_disabled()
        run.record.append(Event("stop", epoch=1, update=50, text="Stop requested by ui"))
        run.record.append(Event("end", epoch=1, update=50, extra={"seconds": 5.0, "interrupted": True}))
        run.close()
        expect(page.locator(".title .state")).to_contain_text("stopped")
        expect(page.locator(".asked")).to_have_text("The run has ended (stopped).")


def checkpoint(run, *, update):
    """A checkpoint as far as a viewer sees it."""
    folder = run.path / "checkpoints" / f"{update:08}"
    folder.mkdir(parents=True)
    manifest = {
        "name": folder.name,
        "update": update,
        "epoch": 1,
        "reason": "asked for by ui",
        "bytes": 10,
        "time": 1.0,
    }
    manifest |= {"values": {}, "run": run.facts.get("id", "")}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run.record.append(Event("checkpoint", epoch=1, update=update, extra={"reason": manifest["reason"]}))


@pytest.mark.soak
def test_facts_do_not_flicker_between_two_epochs(tmp_path, visit):
    run = Run.create(tmp_path / "going")
    write = run.record.append
    write(Event("begin", 100.0, extra={"epochs": 4, "batches": 25}))
    at = {"epoch": 1, "values": {"train/loss": 0.5}}
    write(Event("progress", 101.0, batch=10, update=10, extra={"phase": "train", "batches": 25}, **at))
    pace = {"phase": "train", "batches": 25, "samples_per_second": 640.0}
    write(Event("progress", 102.0, batch=20, update=20, extra=pace, **at))
    with serving(tmp_path) as (server, _), visit(server, "#/run/going") as page:
        facts = page.locator(".facts")
        expect(facts).to_contain_text("batch 20 / 25")
        expect(facts).to_contain_text("Samples / s640")
        names = facts.locator("dt").all_text_contents()
        write(Event("epoch", 103.0, update=25, **at))
        expect(facts).to_contain_text("batch 25 / 25")
        expect(facts).to_contain_text("Samples / s640")
        assert facts.locator("dt").all_text_contents() == names
    run.close()


@pytest.mark.soak
def test_runs_appear_and_disappear_in_the_list(tmp_path, visit):
    train(tmp_path / "first", epochs=1)
    with serving(tmp_path) as (server, _), visit(server) as page:
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="first").focus()
        train(tmp_path / "second", epochs=1)
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(page.get_by_role("link", name="first")).to_be_focused()
        shutil.rmtree(tmp_path / "second")
        expect(page.locator("tbody tr")).to_have_count(1)


@pytest.mark.soak
def test_a_run_that_is_deleted_while_it_is_shown(tmp_path, visit):
    train(tmp_path / "digits", epochs=2)
    with serving(tmp_path) as (server, _), visit(server, "#/run/digits", expected=["404"]) as page:
        expect(page.locator(".panel canvas").first).to_be_visible()
        shutil.rmtree(tmp_path / "digits")
        expect(page.locator(".title .state")).to_have_text("○gone")
        expect(page.locator(".reason")).to_have_text("the run's directory does not exist any more")
        expect(page.get_by_text("the run's directory does not exist any more")).to_have_count(1)


@pytest.mark.soak
def test_a_lost_connection_is_shown_and_restored(tmp_path, visit):
    train(tmp_path / "digits", epochs=2)
    lost = ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"]
    with ExitStack() as stack:
        with serving(tmp_path) as (server, _):
            page = stack.enter_context(visit(server, expected=lost))
            expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("#lost")).to_contain_text("Connection lost")
        shutil.rmtree(tmp_path / "digits")
        train(tmp_path / "meanwhile", epochs=1)
        stack.enter_context(serving(tmp_path, port=server.port))
        expect(page.locator("tbody tr th")).to_have_text(["meanwhile"])
        expect(page.locator("#lost")).to_be_hidden()
