"""Scripts for torchrun: `python -m tests.distributed.scripts NAME FOLDER`, the same on every rank."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

import stoker
from stoker import Callback, Checkpoint, Parallel, callbacks, data, optim
from stoker.distributed import join
from torture.runs import digest

TIMEOUT = 15  # seconds that a rank waits for the others
SAMPLES, BATCH = 96, 12
BATCHES = SAMPLES // BATCH


def network():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def samples():
    """The first column is the sample's number."""
    x = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.arange(SAMPLES)
    return x, x.sum(1, keepdim=True)


def shake(x, y):
    return torch.cat([x[:1], x[1:] + 0.1 * torch.randn(2)]), y


def fit(*hooks, epochs=4, timeout=TIMEOUT, **settings):
    learner = stoker.Learner(
        network, loss=nn.MSELoss(), optimizer=optim.AdamW(), lr=1e-3, seed=0, parallel=Parallel(timeout=timeout)
    )
    loader = data.Loader(samples(), batch_size=BATCH, shuffle=3, transform=shake)
    return learner.fit(loader, valid=samples(), epochs=epochs, callbacks=hooks, show=False, **settings)


def durable(folder, *hooks, **settings):
    """A fit that continues where an earlier start stopped."""
    every = Checkpoint(every=3, background=False)
    return fit(*hooks, run=Path(folder, "run"), resume=True, checkpoint=every, **settings)


def print_digests(fitted, folder):
    """Rank 0 prints the digests of all ranks' results."""
    end = digest(fitted, Path(folder, "run"))
    ends = join().all_gather(end)
    if stoker.world().is_first:
        print("digest", *ends, flush=True)


def at(rank, epoch, batch, act):
    """A hook of one rank only."""

    def hook(ctx):
        if (stoker.world().rank, ctx.epoch, ctx.batch_number) == (rank, epoch, batch):
            act(ctx)

    return callbacks.on(train_batch_end=hook)


# --- what torchrun starts


def plain(folder):
    print_digests(durable(folder), folder)


def slow(folder):
    """Trains slowly until the file `fast` exists."""

    def wait(ctx):
        if not Path(folder, "fast").exists():
            time.sleep(0.2)
        if ctx.update == BATCHES + 3 and stoker.world().is_first:
            Path(folder, "inside").touch()

    print_digests(durable(folder, callbacks.on(train_batch_end=wait), timeout=5), folder)


def fit_and_die_once(folder):
    """Rank 1 is killed within an epoch at its first start."""

    def die(ctx):
        if not Path(folder, "died").exists():
            Path(folder, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return durable(folder, at(1, 2, 5, die))


def dies_once(folder):
    print_digests(fit_and_die_once(folder), folder)


def fails(folder):
    def fail(ctx):
        raise ValueError("the disk of this node is gone")

    durable(folder, at(1, 2, 5, fail))


class Seen(Callback):
    """Records which samples this rank has trained on, and slows down a rank without peers."""

    transient = True

    def __init__(self, folder):
        self.generation = join(timeout=TIMEOUT).broadcast_object(time.time_ns())  # the same on all ranks of a start
        self.file = Path(folder, f"seen-{os.getpid()}.jsonl").open("a")  # noqa: SIM115  until the process ends

    def on_train_batch_end(self, ctx):
        size, ids = stoker.world().size, ctx.batch[0][:, 0].int().tolist()
        print(
            json.dumps([self.generation, size, ctx.epoch, ctx.batch_number, ids]), file=self.file, flush=True
        )  # a kill leaves whole lines
        time.sleep(0.25 if size == 1 else 0.05)


def counts(folder):
    print_digests(durable(folder, Seen(folder), epochs=6), folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]](sys.argv[2])
