"""Media and matrices: what the server sends, what it refuses, and what a browser makes of it."""

import json
import os

import numpy as np
import pytest
from playwright.sync_api import expect

from stoker.record import Event, Run
from tests.view.ui.serving import serving

SCRIPT = "<script>document.title = 'hacked'</script><img src=x onerror=alert(1)>"
SVG = f'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)">{SCRIPT}</svg>'.encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = Run.create(folder / "media")
    for epoch in (1, 2, 3):
        at = {"epoch": epoch, "update": 10 * epoch}
        run.log_image("samples", np.full((8, 8), epoch / 3), caption=f"{SCRIPT} {epoch}", **at)
        run.log_text(SCRIPT, f"{SCRIPT} at {epoch}", **at)
        run.log_table("mistakes", [{SCRIPT: SCRIPT, "p": epoch / 4}], **at)
        run.log_histogram("weights", np.arange(100.0) * epoch, **at)
        run.log_audio("tone", np.zeros(800), 8000, **at)
        cells = {f"valid/confusion/{row}/{column}": float(epoch + row + column) for row in (0, 1) for column in (0, 1)}
        losses = {"valid/loss": {1: 0.5, 2: 0.1, 3: 0.4}[epoch]}
        run.record.append(Event("epoch", values={**losses, **cells}, **at))
    run.record.append(Event("end", epoch=3, update=30, extra={"seconds": 1.0}))
    run.close()
    with serving(folder) as (server, client):
        yield server, client


def files_of(client, run="media"):
    return {(each["name"], each["update"]): each["file"] for each in client.get(f"api/run/{run}").json()["media"]}


def test_media_are_sent_as_what_they_are_and_never_as_a_page(server):
    _, client = server
    files = files_of(client)
    assert len(files) == 15
    types = {
        "samples": "image/png",
        SCRIPT: "text/plain; charset=utf-8",
        "mistakes": "application/json",
        "weights": "application/json",
        "tone": "audio/wav",
    }
    for name, content_type in types.items():
        answer = client.get("api/media/media", params={"file": files[name, 20]})
        assert answer.status_code == 200 and answer.headers["content-type"] == content_type
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["content-disposition"] == "attachment"
    assert client.get("api/media/media", params={"file": files[SCRIPT, 10]}).text == f"{SCRIPT} at 1"


def test_only_files_that_an_event_names_are_sent(server):
    _, client = server
    wrong = ["", "events.jsonl", "media/../events.jsonl", "/etc/passwd", "media", "media/", "media/no.png", "run.json"]
    for file in (*wrong, "media/..%2f..%2fsecret", "media/\x00.png", "é" * 1000):
        assert client.get("api/media/media", params={"file": file}).status_code == 404, file


def test_hostile_files_are_refused(tmp_path, visit):
    """An event may name anything, and a file may hold anything."""
    folder = tmp_path / "runs"
    run = Run.create(folder / "a")
    media = run.path / "media"
    media.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (media / "link.txt").symlink_to(tmp_path / "secret.txt")
    (media / "page.png").write_bytes(SVG)
    (media / "page.svg").write_bytes(SVG)
    (media / "sound.wav").write_bytes(SVG)
    (media / "table.json").write_text(json.dumps({"columns": 3, "rows": {"x": SCRIPT}}))
    (media / "counts.json").write_text(json.dumps({"edges": [0, "1"], "counts": [SCRIPT]}))
    os.mkfifo(media / "pipe.txt")
    named = {
        "image": ["media/page.png", "media/page.svg", "media/../../../secret.txt", "/etc/passwd"],
        "text": ["media/link.txt", "media/pipe.txt", "media/none.txt", "media/page.png", "../../secret.txt"],
        "audio": ["media/sound.wav"],
        "table": ["media/table.json"],
        "histogram": ["media/counts.json"],
        "page": ["media/page.svg"],
    }
    for kind, files in named.items():
        for file in files:
            extra = {"name": f"{kind} {file}", "type": kind, "file": file, "caption": SCRIPT}
            run.record.append(Event("media", epoch=1, update=1, extra=extra))
    run.record.append(Event("media", epoch=1, update=1, extra={"name": 3, "type": [], "file": {}}))
    run.close()
    with serving(folder) as (server, client):
        harmless = {"media/table.json", "media/counts.json"}
        for file in (file for files in named.values() for file in files):
            answer = client.get("api/media/a", params={"file": file})
            assert (answer.status_code == 200) == (file in harmless), file
            assert "secret" not in answer.text or answer.status_code == 404
        with visit(server, "#/run/a?tab=media", expected=["422", "404"]) as page:
            for broken in ("table media/table.json", "histogram media/counts.json"):
                expect(page.get_by_role("region", name=broken)).to_contain_text("This file is damaged.")
            expect(page.get_by_role("region", name="image media/page.png")).to_contain_text(
                "This image can't be shown."
            )
            expect(page.get_by_role("region", name="text media/link.txt")).to_contain_text("link.txt")
            assert page.title() == "a · stoker"


def test_a_media_folder_that_is_a_link_hides_the_run(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    run = Run.create(tmp_path / "runs" / "a")
    run.close()
    (run.path / "media").symlink_to(outside)
    with serving(tmp_path / "runs") as (_, client):
        assert "its media is not a regular file" in client.get("api/runs").json()["problems"][0]


def test_matrices_by_epoch(server):
    _, client = server
    assert client.get("api/run/media").json()["matrices"] == {"valid/confusion": [1, 2, 3]}
    assert not any("confusion" in name for name in client.get("api/run/media").json()["names"])
    best = client.get("api/matrix/media", params={"name": "valid/confusion"}).json()
    assert best == {
        "name": "valid/confusion", "values": [[2, 3], [3, 4]], "labels": [], "epoch": 2, "update": 20,
        "epochs": [1, 2, 3],
    }  # fmt: skip
    last = client.get("api/matrix/media", params={"name": "valid/confusion", "epoch": 3}).json()
    assert last["values"] == [[3, 4], [4, 5]]
    for query in ("name=no", "name=valid/confusion&epoch=9"):
        assert client.get(f"api/matrix/media?{query}").status_code == 404
    assert client.get("api/matrix/media?name=valid/confusion&epoch=x").status_code == 400


def test_the_media_tab_has_a_slider_over_updates_and_shows_text_as_text(server, visit):
    with visit(server[0], "#/run/media?tab=media") as page:
        text = page.get_by_role("region", name=SCRIPT)
        expect(text.locator("pre")).to_have_text(f"{SCRIPT} at 3")
        samples = page.get_by_role("region", name="samples", exact=True)
        expect(samples.locator(".message")).to_have_text(f"{SCRIPT} 3")
        expect(page.get_by_role("region", name="mistakes").locator("td.number")).to_have_text("0.75")
        expect(page.get_by_role("region", name="mistakes").locator("td.text")).to_have_text(SCRIPT)
        expect(page.get_by_role("img", name="weights: 100 values from 0 to 297")).to_be_visible()
        expect(page.get_by_role("region", name="tone").locator("audio")).to_be_visible()
        page.get_by_role("slider", name="Update").focus()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        expect(text.locator("pre")).to_have_text(f"{SCRIPT} at 1")
        expect(samples.locator(".readout")).to_have_text("update 10, epoch 1")
        expect(samples.locator("img")).to_have_js_property("naturalWidth", 8)
        assert page.locator("main script, main [onerror]").count() == 0 and page.title() == "media · stoker"


def test_a_matrix_is_one_picture_with_a_slider_over_epochs(server, visit):
    with visit(server[0], "#/run/media") as page:
        panel = page.get_by_role("region", name="valid/confusion", exact=True)
        expect(
            panel.get_by_role("img", name="valid/confusion, epoch 2: 2 × 2 labels, 50 % on the diagonal")
        ).to_be_visible()
        expect(panel.locator("output")).to_have_text("2 (best)")
        expect(page.locator(".panel")).to_have_count(2)
        panel.get_by_role("slider").focus()
        page.keyboard.press("ArrowRight")
        expect(panel.get_by_role("img", name="valid/confusion, epoch 3:")).to_be_visible()
        expect(panel.locator("output")).to_have_text("3")
        with page.expect_download() as download:
            panel.get_by_role("button", name="Save valid/confusion as PNG").click()
        assert download.value.suggested_filename == "valid-confusion.png"
