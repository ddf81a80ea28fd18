"""What a batch, a start and the memory depend on: the measures behind benchmarks/sweep.py, each in its own process."""

import contextlib
import os
import resource
import subprocess
import tempfile
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks._clock import Clock
from benchmarks._contenders import fit_of
from benchmarks._harness import one_thread, since_start
from benchmarks._workloads import workload

FEW = 40  # batches of the fit that is taken off: what a fit does once is in both


def measure(sweep, setting, name, *, device="cpu", rounds=None, seconds=1.0):
    """The numbers of one setting of a sweep, for one contender."""
    if device == "cpu":
        one_thread()
    if sweep == "start":
        return start(name, device)
    if sweep == "memory":
        return memory(int(setting), name, device)
    if sweep in ("metrics", "keeping"):
        return alternating(sweep, device, rounds or 21, seconds)
    work, accumulate = varied(sweep, int(setting), device)
    return differences({setting: trainer(name, work, accumulate=accumulate)}, rounds or 3, seconds)[setting]


def varied(sweep, setting, device):
    """The toy's model on random numbers: the rows or the batch as the setting says; batches to an update."""
    import torch

    rows, batch, accumulate = 100_000, 100, 1
    if sweep == "rows":
        rows = setting
    elif sweep == "batch":
        batch = setting
    elif sweep == "accumulate":
        accumulate = setting
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(rows, 3, generator=generator), torch.randn(rows, 1, generator=generator)
    toy = workload("toy", device=device)
    return replace(toy, make=lambda: data, samples=rows, batch=batch), accumulate


def trainer(name, work, *, accumulate=1, **settings):
    """A function that trains a fresh model for so many batches; `settings` are the Learner's or fit's."""
    return _by_hand(work, accumulate) if name == "indexing" else _by_stoker(work, accumulate, **settings)


def _by_hand(work, accumulate):
    import torch

    x, y = work.resident()

    def train(batches):
        model, done = work.model(), 0
        optimizer = work.optimizer(model)
        while done < batches:
            order = torch.randperm(len(x), device=x.device)
            for rows in order.split(work.batch)[: batches - done]:
                (work.loss(model(x[rows]), y[rows]) / accumulate).backward()
                done += 1
                if done % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    return train


def _by_stoker(work, accumulate, *, fit=None, **settings):
    from benchmarks.peers.stoker import learner_of

    data = work.data()

    def train(batches):
        learner = learner_of(work, accumulate=accumulate, **settings)
        asked = {"show": False} if fit is None else fit()
        learner.fit(data, updates=batches // accumulate, batch_size=work.batch, **asked)

    return train


def differences(trainers, rounds, seconds):
    """µs for a batch, by trainer: a long fit less a short one, the trainers taking turns in every round."""
    batches = {}
    for key, train in trainers.items():
        timed(train, FEW)
        each = max(timed(train, 3 * FEW) - timed(train, FEW), 1e-6) / (2 * FEW)
        batches[key] = max(FEW, round(seconds / each / FEW) * FEW)
    found = {key: [] for key in trainers}
    for _ in range(rounds):
        for key, train in trainers.items():
            found[key].append((timed(train, FEW + batches[key]) - timed(train, FEW)) / batches[key] * 1e6)
    return found


def timed(train, batches):
    import torch

    start = time.perf_counter()
    train(batches)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def alternating(sweep, device, rounds, seconds):
    """µs for a batch of the digits, by setting, all in one process: small differences need the same minute."""
    work = workload("digits", device=device)
    data = work.data()
    work = replace(work, make=lambda: data)
    if sweep == "metrics":
        settings = {str(many): {"metrics": twenty_metrics()[:many]} for many in (0, 5, 20)}
        return differences({key: trainer("stoker", work, **each) for key, each in settings.items()}, rounds, seconds)
    with tempfile.TemporaryDirectory() as folder, terminal() as screen, contextlib.redirect_stdout(screen):
        runs = (Path(folder) / str(number) for number in count())
        trainers = {
            "off": trainer("stoker", work),
            "on": trainer("stoker", work, fit=lambda: {"run": next(runs), "show": True}),
        }
        return differences(trainers, rounds, seconds)


def twenty_metrics():
    from stoker import metrics

    averages = ("macro", "micro", "none")
    return [
        *(metrics.Accuracy(), metrics.Hamming(), metrics.Precision(), metrics.Recall(), metrics.FBeta()),
        *(metrics.TopKAccuracy(k) for k in range(2, 9)),
        *(metric(average) for metric in (metrics.Precision, metrics.Recall) for average in averages[1:]),
        *(metrics.FBeta(1.0, average) for average in averages[1:]),
        *(metrics.FBeta(2.0, average) for average in averages[:2]),
    ]


@contextlib.contextmanager
def terminal():
    """A stream that is a terminal, whose other end somebody else reads: the live display is drawn in full."""
    ours, theirs = os.openpty()
    os.environ["TERM"] = "xterm-256color"
    reader = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(ours)
    try:
        with os.fdopen(theirs, "w") as screen:
            yield screen
    finally:
        reader.kill()
        reader.wait()


def start(name, device):
    """Seconds until the first update of the toy is done: of the whole process, and of what follows the imports."""
    toy = workload("toy", device=device)
    x, y = toy.data()
    one = replace(toy, make=lambda: (x[: toy.batch], y[: toy.batch]), samples=toy.batch)
    fit, imported = fit_of(name), since_start()
    clock = Clock(device)
    fit(one, 1, clock)
    return {"process, s": clock.marks[0], "after imports, s": clock.marks[0] - imported}


def memory(rows, name, device):
    """Megabytes at the most, after a few batches of the table with so many rows."""
    from benchmarks._data import table

    data = table(rows)
    work = replace(workload("tabular", device=device), make=lambda: data, samples=rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer(name, work)(FEW)
    if device == "cuda":
        import torch

        return {"MB": torch.cuda.max_memory_reserved() / 1e6}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"MB": most / 1e3, "over the data, MB": (most - before) / 1e3}
