"""Fits with a run directory, what a kill would leave of it, and what is compared between two of them."""

import shutil

import torch

from stoker import Callback, Checkpoint, callbacks, schedule
from stoker.checkpoint import Store
from stoker.record import Run
from tests.engine.fits import learner, samples

EVERY = Checkpoint(every=4, keep_last=2, background=False)  # inside an epoch: there are six updates to one


def fit(run=None, *, epochs=3, of=None, data=None, **settings):
    """A small fit with dropout, batch norm and a schedule, saved every four updates where it has a run."""
    given = learner(lr=schedule.cosine(1e-2, steps=40)) if of is None else of
    if run is not None:
        settings = {"run": run, "resume": True, "checkpoint": EVERY, **settings}
    wish = {"epochs": epochs, "valid": samples(40), "batch_size": 16, "show": False, **settings}
    return given.fit(samples(96) if data is None else data, **wish)


def came_out(fitted):
    """Everything that a fit gives, as values that can be compared: no tolerance anywhere."""
    history = fitted.history
    return {
        "weights": {name: _plain(value) for name, value in fitted.model.state_dict().items()},
        "history": {name: history[name] for name in history.columns},
        "best": fitted.best,
        "length": (fitted.epochs, fitted.updates),
        "stopped": fitted.stopped,
    }


def _plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else value


def files(folder):
    """Every file and folder with its size and time: whatever is written shows here."""
    found = [folder, *sorted(folder.rglob("*"))]
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def texts(record, kind="warning"):
    return [event.text for event in record.events_of(kind)]


def until(epoch, batch=0, reason="stopped by the test"):
    """Stops the fit after a batch, or after an epoch where no batch is named."""

    def stop(ctx):
        if (ctx.epoch, ctx.batch_number if batch else 0) == (epoch, batch):
            ctx.stop(reason)

    return callbacks.on(train_batch_end=stop) if batch else callbacks.on(epoch_end=stop)


class Killed(Callback):
    """Copies the run as it lies on the disk after a batch: what a kill at that moment would leave."""

    transient = True

    def __init__(self, run, to, epoch, batch):
        self.run, self.to, self.at = run, to, (epoch, batch)

    def on_train_batch_end(self, ctx):
        if (ctx.epoch, ctx.batch_number) == self.at:
            shutil.copytree(self.run, self.to)


def killed(tmp_path, epoch=2, batch=4, name="killed", **settings):
    """A run that was killed after a batch, and the outcome of the one that was not."""
    begun, left = tmp_path / f"{name} not", tmp_path / name
    extra = settings.pop("callbacks", [])
    whole = fit(begun, callbacks=[*extra, Killed(begun, left, epoch, batch)], **settings)
    return left, came_out(whole)


def damage(path):
    """Changes one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def saved(run):
    """The checkpoints of a run, as its store sees them."""
    return Store(run / "checkpoints", run=Run.open(run).id).saved()
