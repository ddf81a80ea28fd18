"""What is tortured: three whole scripts, as users write them. Started again, each goes on with its run."""

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import stoker
from stoker import callbacks, data, metrics, optim, schedule
from torture._digest import digest

EVERY = 3  # updates between two checkpoints


class Counter(stoker.Callback):
    """Says in a file beside the run how many updates were done; a kill can't take that back."""

    transient = True

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT)

    def on_fit_begin(self, ctx: callbacks.Context) -> None:
        self._say(ctx.update)

    def on_update(self, ctx: callbacks.Context) -> None:
        self._say(ctx.update)

    def _say(self, update: int) -> None:
        if stoker.world().is_first:
            os.pwrite(self._file, update.to_bytes(8, "big"), 0)


def counter_of(folder: Path) -> Path:
    """The file that a run's `Counter` writes."""
    return folder.with_suffix(".updates")


def counted(folder: Path) -> int | None:
    """Updates that the latest process has done, with those that it went on from; None before its fit has begun."""
    there = counter_of(folder)
    written = there.read_bytes() if there.exists() else b""
    return int.from_bytes(written, "big") if written else None


def noisy(x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    return x + 0.1 * torch.randn(12), label


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(192, 12, generator=generator), torch.randint(0, 4, (192,), generator=generator)


def _layers(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 4))


def workers(folder: Path) -> stoker.Fitted:
    """Random augmentation in two processes, windows of two batches, an average of the weights; a thread saves."""
    x, y = samples()
    learner = stoker.Learner(
        lambda: _layers(16),
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.AdamW(),
        lr=schedule.cosine(1e-2, steps=48),
        metrics=[metrics.Accuracy()],
        accumulate=2,
        ema=0.9,
        seed=1,
    )
    return learner.fit(
        data.Loader((x, y), batch_size=8, shuffle=7, transform=noisy, workers=2),
        valid=data.Loader((x[:64], y[:64]), batch_size=32, transform=noisy, workers=1),
        epochs=4,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=2),
        callbacks=[Counter(counter_of(folder))],
        show=False,
    )


def best(folder: Path) -> stoker.Fitted:
    """Validated inside of epochs, with callbacks that count; saves wait for the disk, and the best is kept."""
    x, y = samples()
    learner = stoker.Learner(
        lambda: _layers(16), loss=nn.CrossEntropyLoss(), optimizer=optim.SGD(momentum=0.9), lr=0.02, seed=2
    )
    return learner.fit(
        data.Loader((x, y), batch_size=16, shuffle=7, transform=noisy),
        valid=(x[:64], y[:64]),
        epochs=6,
        validate_every=5,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=1, keep_best="valid/loss", background=False),
        callbacks=[callbacks.EarlyStopping(patience=50), Counter(counter_of(folder))],
        show=False,
    )


def large(folder: Path) -> stoker.Fitted:
    """Some megabytes for each checkpoint, so that nearly every kill hits one that is being written."""
    x, y = samples()
    learner = stoker.Learner(
        lambda: nn.Sequential(
            _layers(256), nn.Linear(4, 512), nn.Dropout(0.1), nn.Linear(512, 1024), nn.Linear(1024, 4)
        ),
        loss=nn.CrossEntropyLoss(),
        optimizer=optim.AdamW(),
        lr=1e-3,
        seed=3,
    )
    return learner.fit(
        data.Loader((x, y), batch_size=16, shuffle=7, transform=noisy),
        valid=(x[:64], y[:64]),
        epochs=4,
        run=folder,
        resume=True,
        checkpoint=stoker.Checkpoint(every=EVERY, keep_last=1),
        callbacks=[Counter(counter_of(folder))],
        show=False,
    )


KINDS: dict[str, Callable[[Path], stoker.Fitted]] = {"workers": workers, "best": best, "large": large}


def train(kind: str, folder: Path) -> None:
    """One start of a script; prints the digest of what came out, if it is let."""
    torch.set_num_threads(1)
    print("digest", digest(KINDS[kind](folder), folder))
