"""Small models, data and fits; runs that are killed or damaged; and what is compared between two of them."""

import shutil

import torch
import torch.nn.functional as F
from torch import nn

import stoker
from stoker import Callback, Checkpoint, callbacks, optim, schedule
from stoker.checkpoint import Store
from stoker.record import Run

EVERY = Checkpoint(every=4, keep_last=2, background=False)  # inside an epoch, which has six updates


class Net(nn.Module):
    """Has dropout and batch norm, so that random numbers and running statistics matter."""

    def __init__(self, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(self.body(x))


def samples(count=150):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 6, generator=generator)
    return x, torch.randint(0, 4, (count,), generator=generator)


def line(count=64):
    """A regression that a linear model can learn."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(count, 3, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]])


def learner(model=Net, **settings):
    return stoker.Learner(
        model, **{"loss": F.cross_entropy, "optimizer": optim.AdamW(), "lr": 1e-2, "seed": 3, **settings}
    )


def linear(**settings):
    return stoker.Learner(
        settings.pop("model", None) or nn.Linear(3, 1),
        **{"loss": nn.MSELoss(), "optimizer": optim.SGD(), "lr": 0.05, "seed": 0, **settings},
    )


def same(a, b):
    """Whether every parameter and buffer is equal, bit for bit."""
    left, right = (each if isinstance(each, dict) else each.state_dict() for each in (a, b))
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


def copy_state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def fit(run=None, *, epochs=3, of=None, data=None, **arguments):
    """A small fit with dropout, batch norm and a schedule; with a run, it is saved every four updates."""
    given = learner(lr=schedule.cosine(1e-2, updates=80)) if of is None else of
    if run is not None:
        arguments = {"run": run, "resume": True, "checkpoint": EVERY, **arguments}
    arguments = {"epochs": epochs, "valid": samples(40), "batch_size": 16, "show": False, **arguments}
    return given.fit(samples(96) if data is None else data, **arguments)


def result_of(fitted, *, weights=True):
    """Everything that a fit returns, as values that can be compared exactly."""
    history = fitted.history
    state = fitted.model.state_dict() if weights else {}
    return {
        "weights": {name: getattr(value, "tolist", lambda value=value: value)() for name, value in state.items()},
        "history": {name: history[name] for name in history.columns},
        "best": fitted.best,
        "length": (fitted.epochs, fitted.updates),
        "stopped": fitted.stopped,
    }


def list_files(folder):
    """Every file and folder with its size and time, which shows whatever is written."""
    found = [folder, *sorted(folder.rglob("*"))]
    return {str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def checkpoint_names(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def saved_checkpoints(run):
    return Store(run / "checkpoints", run=Run.open(run).id).saved()


def texts(record, kind="warning"):
    return [event.text for event in record.events_of(kind)]


def stop_after(epoch, batch=0, reason="stopped by the test"):
    """Stops the fit after a batch, or after an epoch if no batch is given."""

    def stop(ctx):
        if (ctx.epoch, ctx.batch_number if batch else 0) == (epoch, batch):
            ctx.stop(reason)

    return callbacks.on(train_batch_end=stop) if batch else callbacks.on(epoch_end=stop)


class CopyRun(Callback):
    """Copies the run directory after a batch: a kill at that moment would leave the same files."""

    transient = True

    def __init__(self, run, to, epoch, batch):
        self.run, self.to, self.position = run, to, (epoch, batch)

    def on_train_batch_end(self, ctx):
        if (ctx.epoch, ctx.batch_number) == self.position:
            shutil.copytree(self.run, self.to)


def killed_run(tmp_path, epoch=2, batch=4, name="killed", **arguments):
    """The directory of a run that was killed after a batch, and the result of the run that was not."""
    run, left = tmp_path / f"{name} not", tmp_path / name
    extra = arguments.pop("callbacks", [])
    whole = fit(run, callbacks=[*extra, CopyRun(run, left, epoch, batch)], **arguments)
    return left, result_of(whole)


def damage(path):
    """Changes one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
