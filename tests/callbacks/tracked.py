"""A small real fit with a tracker, which can be cut off as a kill would, and gone on with."""

import math

import torch
from torch import nn

import stoker
from stoker.callbacks import Callback
from stoker.record import Run

PATIENCE = 240  # seconds: a real tracker is always waited for, however busy the machine is
CONFIG = {"model": {"hidden": 4}, "lr": 0.05}


class CutOff(Callback):
    """Ends a fit after an epoch's numbers are told and before they are saved: they are void when it goes on."""

    transient = True

    def __init__(self, epoch):
        self._epoch = epoch

    def on_epoch_end(self, ctx):
        if ctx.epoch == self._epoch:
            raise KeyboardInterrupt


def fit(tracker, *, run=None, epochs=3, cut_off=None, resume=False, more=()):
    """Four updates an epoch; the run afterwards, or the fitted where there is none."""
    torch.manual_seed(0)
    data = torch.randn(16, 3), torch.randn(16, 1)
    learner = stoker.Learner(nn.Linear(3, 1), optimizer=stoker.optim.SGD(), lr=0.05, loss=nn.MSELoss(), seed=0)
    callbacks = [tracker, *more, *([CutOff(cut_off)] if cut_off else [])]
    where = {} if run is None else {"run": run, "config": CONFIG, "resume": resume}
    try:
        fitted = learner.fit(data, valid=data, epochs=epochs, batch_size=4, callbacks=callbacks, show=False, **where)
    except KeyboardInterrupt:
        assert cut_off
        fitted = None
    return fitted if run is None else Run.open(run)


def cut_off_and_resumed(make, run):
    """Epochs 1 to 3, of which the third is not saved; then epochs 3 to 4 by another process, as it were."""
    fit(make(), run=run, epochs=4, cut_off=3)
    return fit(make(), run=run, epochs=4, resume=True)


def points(run):
    """What a tracker has to hold: every final number of the record, by name, as (update, value)."""
    return {name: run.record.all(name) for name in run.record.columns}


def same(a, b, *, bits=64):
    """Whether two tables of points are the same, at the precision of the tracker."""
    near = 1e-6 if bits == 32 else 0
    return set(a) == set(b) and all(
        [x for x, _ in a[name]] == [x for x, _ in b[name]]
        and all(math.isclose(p, q, rel_tol=near, abs_tol=0) for (_, p), (_, q) in zip(a[name], b[name], strict=True))
        for name in a
    )


def warnings(run):
    return [event.text for event in run.record.events_of("warning")]


def offline(monkeypatch, home):
    """No tracker may reach for the network: here it fails at once, also from a process of the tracker's."""
    for name in ("WANDB_API_KEY", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_DIR"):
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
