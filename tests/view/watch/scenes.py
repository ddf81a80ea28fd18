"""Runs written by hand, and the text of the screen that shows them."""

import asyncio
import io
import json
import math
from pathlib import Path

from rich.console import Console

from stoker.record import Event, Follower, Run
from stoker.view.watch._app import Dashboard  # the app behind `watch`, driven by Textual's pilot

METRICS = {
    "loss": {"direction": "min", "unit": ""},
    "accuracy": {"direction": "max", "unit": ""},
    "gpu_memory": {"direction": None, "unit": "GB"},
}
PLAN = ["model      Net, 1,234 parameters", "length     20 epochs", "device     cpu, found"]
START = 1_700_000_000.0


def begin(run, **extra):
    facts = {"model": "Net", "parameters": 1234, "device": "cpu", "epochs": 20, "batches": 50, "monitor": "valid/loss"}
    run.record.append(Event("begin", START, extra={**facts, "metrics": METRICS, "plan": PLAN, **extra}))


def epoch(run, number, *, worse=0.0):
    """The events of an epoch of 50 batches and 10 seconds, with a falling loss."""
    at = START + 10 * number
    for batch in range(5, 50, 5):
        update = 50 * (number - 1) + batch
        progress(run, number, batch, at=at - 10 + batch / 5, loss=loss_at(update, worse))
    update = 50 * number
    loss = loss_at(update, worse)
    place = {"epoch": number, "batch": 50, "update": update}
    train = {"train/loss": loss, "train/accuracy": 1 - loss / 3}
    valid = {"valid/loss": 1.1 * loss + 0.05, "valid/accuracy": 1 - loss / 2.5}
    run.record.append(Event("train", at, values=train, **place))
    run.record.append(Event("valid", at, values=valid, extra={"name": "valid"}, **place))
    others = {"lr": 0.001 * (1 - number / 40), "gpu_memory": 3.5}
    run.record.append(Event("epoch", at, values={**train, **valid, **others}, extra={"seconds": 10.0}, **place))


def progress(run, number, batch, *, at, loss=0.5, phase="train"):
    update = 50 * (number - 1) + (batch if phase == "train" else 50)
    extra = {"phase": phase, "batches": 50, "samples_per_second": 6400.0}
    values = {f"{phase}/loss": loss}
    run.record.append(Event("progress", at, epoch=number, batch=batch, update=update, values=values, extra=extra))


def loss_at(update, worse=0.0):
    return 2.3 * math.exp(-update / 150) + 0.1 + worse + 0.05 * math.sin(update * 1.7)


def make(path, *, epochs=6, worse=0.0, end=False, **extra):
    """A run of some epochs; its state is "running" until it is closed."""
    run = Run.create(path, config={"lr": 0.001, "model": {"hidden": 128}}, facts={"seed": 0})
    begin(run, **extra)
    for number in range(1, epochs + 1):
        epoch(run, number, worse=worse)
    if end:
        at = {"epoch": epochs, "update": 50 * epochs}
        run.record.append(Event("stop", START + 10 * epochs, text=f"Completed {epochs} epochs", **at))
        run.record.append(Event("end", START + 10 * epochs, extra={"epochs": epochs, "seconds": 10.0 * epochs}, **at))
        run.close()
    return run


def text_of(app):
    """The text on the screen."""
    width, height = app.size
    console = Console(
        width=width, height=height, file=io.StringIO(), force_terminal=True, record=True, legacy_windows=False
    )
    console.print(app.screen._compositor.render_update(full=True))
    return console.export_text(styles=False)


async def settled(pilot, *, until=None):
    """Waits until the chosen view is on the screen and `until(app)` is true; returns the screen's text."""
    app = pilot.app
    while app.snapshot is None or app.snapshot.view != app.view or (until is not None and not until(app)):
        await pilot.pause(0.01)
    await pilot.pause()
    return text_of(app)


def watching(paths, story, *, size=(80, 24), **given):
    """Runs a story (an async function of the pilot) on a screen that shows these runs or followers."""

    async def tell():
        app = Dashboard([path if isinstance(path, Follower) else Follower(path) for path in paths], **given)
        async with app.run_test(size=size, notifications=True) as pilot:
            await settled(pilot)
            return await story(pilot)

    return asyncio.run(tell())


def control_of(path):
    return json.loads(Path(path, "control.json").read_text())
