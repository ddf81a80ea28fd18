"""Makes the pictures of `stoker watch` and `stoker ui` in docs/pictures, from made-up runs; needs chromium."""

import asyncio
import math
import os
import random
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from stoker.data import digits
from stoker.record import Annotations, Event, Follower, Run, write_annotations
from stoker.view.ui import Server
from stoker.view.watch._app import Dashboard

PICTURES = Path(__file__).resolve().parent / "pictures"
METRICS = {"loss": {"direction": "min", "unit": ""}, "accuracy": {"direction": "max", "unit": ""}}
BATCHES = 50


def train(path: str, *, lr: float, hidden: int, seed: int, epochs: int, hours_ago: float, state: str) -> Run:
    """A run that learns faster with a larger learning rate: "finished", "died", or "running" and still open."""
    config = {"lr": lr, "model": {"hidden": hidden, "norm": "layer"}, "seed": seed}
    run, noise = Run.create(path, config=config), random.Random(f"{seed} {lr}")
    began, write = time.time() - 3600 * hours_ago, run.record.append
    planned = epochs if state == "finished" else 20
    begin = {"model": "Digits", "parameters": 133_738, "device": "cpu", "epochs": planned, "batches": BATCHES}
    write(Event("begin", began, extra={**begin, "metrics": METRICS, "monitor": "valid/loss"}))
    last = epochs * BATCHES + (25 if state == "running" else 0)
    luck = noise.uniform(0.8, 1.25)
    for update in range(5, last + 1, 5):
        epoch, batch = divmod(update - 1, BATCHES)
        loss = 0.08 + 2.2 / (1 + update * lr * luck * 1.5)
        at = {"time": began + update / 10, "epoch": epoch + 1, "batch": batch + 1, "update": update}
        rate = lr * min(1.0, update / 100) * math.cos(update / planned / BATCHES * 1.5)
        values = {"train/loss": loss * noise.uniform(0.85, 1.15), "lr": rate}
        extra = {"phase": "train", "batches": BATCHES, "samples_per_second": 6400.0}
        write(Event("progress", values=values, extra=extra, **at))
        if batch + 1 == BATCHES:
            values |= {"train/loss": loss, "valid/loss": 1.1 * loss * noise.uniform(0.95, 1.05)}
            values |= {"train/accuracy": 1 - loss / 3, "valid/accuracy": 1 - loss / 2.8 * noise.uniform(0.95, 1.05)}
            wrong = 40 * loss
            cells = {
                (a, b): 178 - 9 * wrong if a == b else wrong * noise.random() * 2 for a in range(10) for b in range(10)
            }
            matrix = {f"valid/confusion/{a}/{b}": float(max(0, round(each))) for (a, b), each in cells.items()}
            write(Event("epoch", values=values | matrix, extra={"seconds": 5.0}, **at))
            run.log(f"epoch {epoch + 1:>2}/{planned}  train loss {loss:.4f}  valid loss {values['valid/loss']:.4f}")
    if state == "finished":
        write(Event("end", began + last / 10, epoch=epochs, update=last, extra={"epochs": epochs}))
    if state != "running":
        run.close()
    return run


def log_media(run: Run) -> None:
    """Images, a histogram, a text and a table after three epochs."""
    images, labels = digits("test", size=64).tensors
    draw = np.random.default_rng(0)
    for epoch in (4, 8, 12):
        at = {"epoch": epoch, "update": epoch * BATCHES}
        run.log_image("samples", images[:, None], caption=f"64 digits after epoch {epoch}", **at)
        run.log_histogram("weights/hidden", draw.normal(0, 0.02 * epoch, 20_000), **at)
        mistakes = [
            {"target": int(labels[i]), "predicted": int(labels[-i]), "probability": 0.6 - i / 20} for i in range(5)
        ]
        run.log_table("mistakes", mistakes, **at)
        run.log_text("summary", f"After epoch {epoch}, {60 - 4 * epoch} of 360 digits are wrong.", **at)


def draw_watch(path: str, svg: Path) -> None:
    """The screen of `stoker watch` as an SVG file."""

    async def draw() -> None:
        app = Dashboard([Follower(path)])
        async with app.run_test(size=(150, 44)) as pilot:
            while app.snapshot is None:
                await pilot.pause(0.1)
            await pilot.pause(0.5)
            app.save_screenshot(str(svg))

    asyncio.run(draw())


def take(page: Page, address: str, path: Path) -> None:
    """A picture of the page, with few colors: a quarter of the bytes."""
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_timeout(2500)
    page.evaluate("document.getElementById('folder').textContent = '~/digits/runs'")
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def take_watch(page: Page, path: Path) -> None:
    """A picture of watch.svg, with few colors."""
    page.goto(Path("watch.svg").absolute().as_uri())
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def join(parts: list[Path], path: Path) -> None:
    """Pictures of the same size side by side."""
    images = [Image.open(part).convert("RGB") for part in parts]
    width, height = images[0].size
    joined = Image.new("RGB", ((width + 16) * len(images) - 16, height), "#888888")
    for place, image in enumerate(images):
        joined.paste(image, (place * (width + 16), 0))
    joined.quantize(256).save(path, optimize=True)


def draw_all() -> None:
    """Writes all pictures."""
    sweep = [(lr, hidden, seed) for lr, hidden in ((0.1, 256), (0.03, 128), (0.01, 64)) for seed in range(3)]
    for hours_ago, (lr, hidden, seed) in enumerate(sweep, 4):
        options = {"lr": lr, "hidden": hidden, "seed": seed, "epochs": 20, "state": "finished"}
        train(f"digits/runs/sweep/lr-{lr}-seed-{seed}", hours_ago=hours_ago, **options)
    train("digits/runs/too-fast", lr=0.5, hidden=64, seed=0, epochs=4, hours_ago=2, state="died")
    write_annotations("digits/runs/sweep/lr-0.1-seed-0", Annotations(tags=("baseline",), note="the one in the paper"))
    running = train("digits/runs/digits", lr=0.02, hidden=64, seed=0, epochs=12, hours_ago=0.1, state="running")
    log_media(running)
    draw_watch("digits/runs/digits", Path("watch.svg"))
    server = Server("digits/runs", port=0)
    thread = threading.Thread(target=server.run)
    thread.start()
    compared = "&".join(f"id=sweep/lr-{lr}-seed-0" for lr in ("0.01", "0.03", "0.1"))
    views = {
        "ui": "run/digits?smooth=0.6",
        "ui-runs": "runs?group=config.lr&col=best.valid/loss&col=seconds",
        "ui-compare": f"compare?{compared}",
        "ui-media": "run/digits?tab=media",
    }
    with sync_playwright() as playwright:
        path = os.environ.get("STOKER_CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--no-proxy-server"])
        for scheme, ending in (("light", ""), ("dark", "-dark")):
            page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            for name, view in views.items():
                take(page, f"{server.address}#/{view}", PICTURES / f"{name}{ending}.png")
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="light")
        parts = [Path(f"narrow-{place}.png") for place in range(3)]
        for part, view in zip(parts, ("runs", "run/digits?smooth=0.6", "run/digits?tab=media"), strict=True):
            take(page, f"{server.address}#/{view}", part)
        join(parts, PICTURES / "ui-narrow.png")
        page = browser.new_page(viewport={"width": 1848, "height": 1124})
        take_watch(page, PICTURES / "watch.png")
        browser.close()
    server.stop()
    thread.join()
    running.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        draw_all()
