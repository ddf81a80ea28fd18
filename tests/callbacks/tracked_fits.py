"""A small fit with a tracker, which can be cut off as a kill would and then resumed."""

import math

import torch
from torch import nn

import stoker
from stoker.record import Run
from tests.hooks import crash_at

PATIENCE = 240  # seconds; a real tracker always gets the time it needs on a busy machine
CONFIG = {"model": {"hidden": 4}, "lr": 0.05}


def fit(tracker, *, run=None, epochs=3, cut_off=None, resume=False, more=()):
    """Trains four updates per epoch; returns the run, or the `Fitted` if there is none. `cut_off` is an epoch."""
    torch.manual_seed(0)
    data = torch.randn(16, 3), torch.randn(16, 1)
    learner = stoker.Learner(nn.Linear(3, 1), optimizer=stoker.optim.SGD(), lr=0.05, loss=nn.MSELoss(), seed=0)
    callbacks = [tracker, *more, *([crash_at(epoch=cut_off, error=KeyboardInterrupt)] if cut_off else [])]
    arguments = {} if run is None else {"run": run, "config": CONFIG, "resume": resume}
    try:
        fitted = learner.fit(
            data, valid=data, epochs=epochs, batch_size=4, callbacks=callbacks, show=False, **arguments
        )
    except KeyboardInterrupt:
        assert cut_off
        fitted = None
    return fitted if run is None else Run.open(run)


def log_media(ctx):
    """Logs an item of each type."""
    ctx.log_image("picture", torch.rand(3, 4, 6), caption="a picture")
    ctx.log_histogram("weights", torch.arange(100.0), bins=10)
    ctx.log_text("words", "<b>bold</b>")
    ctx.log_table("table", {"a": [1]})
    ctx.log_audio("sound", torch.zeros(800), 8000)


def cut_off_and_resume(make, run):
    """Trains epochs 1 to 3, of which the third is not saved, and then epochs 3 to 4 with another tracker."""
    fit(make(), run=run, epochs=4, cut_off=3)
    return fit(make(), run=run, epochs=4, resume=True)


def points(run):
    """Every final value of the record by name, as (update, value)."""
    return {name: run.record.all(name) for name in run.record.columns}


def same(a, b, *, bits=64):
    """Whether two tables of points are equal, at the precision of the tracker."""
    tolerance = 1e-6 if bits == 32 else 0
    return set(a) == set(b) and all(
        [x for x, _ in a[name]] == [x for x, _ in b[name]]
        and all(
            math.isclose(p, q, rel_tol=tolerance, abs_tol=0) for (_, p), (_, q) in zip(a[name], b[name], strict=True)
        )
        for name in a
    )


def warnings(run):
    return [event.text for event in run.record.events_of("warning")]


def offline(monkeypatch, home):
    """Makes every attempt of a tracker to use the network fail at once, also from its own processes."""
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    nowhere = "http://127.0.0.1:9"
    for name, value in {
        "HTTP_PROXY": nowhere,
        "HTTPS_PROXY": nowhere,
        "ALL_PROXY": nowhere,
        "http_proxy": nowhere,
        "https_proxy": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
        "HOME": str(home),
        "WANDB_CACHE_DIR": str(home / "wandb"),
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
