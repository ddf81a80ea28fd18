"""Makes the pictures of `stoker watch` and `stoker ui` in docs/pictures, from made-up runs; needs chromium."""

import asyncio
import math
import os
import random
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from stoker.record import Event, Follower, Run
from stoker.view.ui import Server
from stoker.view.watch._app import Dashboard

PICTURES = Path(__file__).resolve().parent / "pictures"
METRICS = {"loss": {"direction": "min", "unit": ""}, "accuracy": {"direction": "max", "unit": ""}}
BATCHES = 50


def train(path: str, *, lr: float, hidden: int, seed: int, epochs: int, hours_ago: float, state: str) -> Run:
    """A run that learns faster with a larger learning rate: "finished", "died", or "running" and still open."""
    config = {"lr": lr, "model": {"hidden": hidden, "norm": "layer"}, "seed": seed}
    run, noise = Run.create(path, config=config), random.Random(seed)
    began, write = time.time() - 3600 * hours_ago, run.record.append
    planned = epochs if state == "finished" else 20
    begin = {"model": "Digits", "parameters": 133_738, "device": "cpu", "epochs": planned, "batches": BATCHES}
    write(Event("begin", began, extra={**begin, "metrics": METRICS, "monitor": "valid/loss"}))
    last = epochs * BATCHES + (25 if state == "running" else 0)
    for update in range(10, last + 1, 5):
        epoch, batch = divmod(update - 1, BATCHES)
        loss = 0.08 + 2.2 / (1 + update * lr * 1.5)
        at = {"time": began + update / 10, "epoch": epoch + 1, "batch": batch + 1, "update": update}
        values = {"train/loss": loss * noise.uniform(0.85, 1.15), "lr": lr * math.cos(update / 900)}
        extra = {"phase": "train", "batches": BATCHES, "samples_per_second": 6400.0}
        write(Event("progress", values=values, extra=extra, **at))
        if batch + 1 == BATCHES:
            values |= {"train/loss": loss, "valid/loss": 1.1 * loss + 0.02 * noise.random()}
            values |= {"train/accuracy": 1 - loss / 3, "valid/accuracy": 1 - loss / 2.8}
            write(Event("epoch", values=values, extra={"seconds": 5.0}, **at))
            run.log(f"epoch {epoch + 1:>2}/{planned}  train loss {loss:.4f}  valid loss {values['valid/loss']:.4f}")
    if state == "finished":
        write(Event("end", began + last / 10, epoch=epochs, update=last, extra={"epochs": epochs}))
    if state != "running":
        run.close()
    return run


def draw_watch(path: str, svg: Path) -> None:
    """The screen of `stoker watch` as an SVG file."""

    async def draw() -> None:
        app = Dashboard([Follower(path)])
        async with app.run_test(size=(120, 34)) as pilot:
            while app.snapshot is None:
                await pilot.pause(0.1)
            await pilot.pause(0.5)
            app.save_screenshot(str(svg))

    asyncio.run(draw())


def draw_all() -> None:
    """Writes all pictures."""
    for hours_ago, (name, lr, hidden) in enumerate(
        [("lr-0.1", 0.1, 256), ("lr-0.03", 0.03, 128), ("lr-0.01", 0.01, 64), ("lr-0.003", 0.003, 32)], 2
    ):
        options = {"lr": lr, "hidden": hidden, "seed": 6 - hours_ago, "epochs": 20, "state": "finished"}
        train(f"digits/runs/sweep/{name}", hours_ago=6 * hours_ago, **options)
    train("digits/runs/baseline", lr=0.005, hidden=64, seed=0, epochs=12, hours_ago=4, state="finished")
    train("digits/runs/too-fast", lr=0.5, hidden=64, seed=0, epochs=4, hours_ago=2, state="died")
    running = train("digits/runs/digits", lr=0.02, hidden=64, seed=0, epochs=12, hours_ago=0.1, state="running")
    draw_watch("digits/runs/digits", Path("watch.svg"))
    server = Server("digits/runs", port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    compared = "&".join(f"id=sweep/lr-{lr}" for lr in ("0.003", "0.01", "0.03", "0.1"))
    columns = ("state", "progress", "best", "last.valid/accuracy", "config.lr", "seconds", "began")
    listed = "&".join(f"col={name}" for name in columns)
    views = {"ui": "run/digits?smooth=0.6", "ui-runs": f"runs?{listed}", "ui-compare": f"compare?{compared}"}
    with sync_playwright() as playwright:
        path = os.environ.get("STOKER_CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--no-proxy-server"])
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            for name, view in views.items():
                page.goto("about:blank")
                page.goto(f"{server.address}#/{view}")
                page.wait_for_timeout(2500)
                page.evaluate("document.getElementById('folder').textContent = '~/digits/runs'")
                page.screenshot(path=PICTURES / f"{name}{ending}.png")
        page = browser.new_page(viewport={"width": 1482, "height": 880})
        page.goto(Path("watch.svg").absolute().as_uri())
        page.screenshot(path=PICTURES / "watch.png")
        browser.close()
    server.stop()
    thread.join()
    running.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        draw_all()
