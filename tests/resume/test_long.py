"""Long runs: memory and open files do not grow, and a resume costs the same at any position."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import stoker
from stoker import data, optim
from stoker.checkpoint import Store
from stoker.record import Record, Run

UPDATES = 40_000

# In its own process: objects of other tests would be counted too.
PROGRAM = """
import gc, json, os, sys
import torch, stoker
from torch import nn
from stoker import data, optim

class Gauge(stoker.Callback):
    transient = True
    readings = []

    def on_update(self, ctx):
        if ctx.update % 8_000 == 0:
            gc.collect()
            resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            files = len(os.listdir("/proc/self/fd"))
            self.readings.append((resident, files, len(gc.get_objects()), len(ctx.record)))

x = torch.randn(1000, 1)
learner = stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), optimizer=optim.SGD(), lr=1e-3, seed=0)
fitted = learner.fit(
    data.Loader((x, 2 * x), batch_size=1, shuffle=0), updates=int(sys.argv[2]), run=sys.argv[1],
    checkpoint=stoker.Checkpoint(every=2000), callbacks=[Gauge()], show=False,
)
print(json.dumps([Gauge.readings, fitted.updates, fitted.history["train/loss"]]))
"""


@pytest.mark.soak
def test_memory_and_open_files_do_not_grow_with_the_updates(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", PROGRAM, run, str(UPDATES)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    readings, updates, losses = json.loads(done.stdout)
    assert updates == UPDATES
    # The first reading is left out: the allocator takes about 1.5 MB once, before the second.
    _, (bytes_early, files_early, objects_early, _), *_, (bytes_late, files_late, objects_late, events) = readings
    assert files_late == files_early
    assert objects_late - objects_early < 8 * events + 500, "objects grow with the updates"
    assert bytes_late - bytes_early < 50 * (UPDATES - 16_000), "memory grows with the updates"
    again = Record.open(run)
    assert again.series("train/loss") == losses and len(losses) == 40
    assert len(Store(run / "checkpoints", run=Run.open(run).id).saved()) == 2


class Numbers:
    """Ten million samples that are computed when they are read; counts the reads."""

    def __init__(self, count=10_000_000):
        self.count, self.reads = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.reads += 1
        x = torch.tensor([number / self.count])
        return x, 2 * x


def count_calls(run, *, limit):
    """The Python calls of a resumed fit, and the samples that it reads."""
    numbers, calls = Numbers(), 0

    def count(frame, kind, argument):
        nonlocal calls
        calls += kind == "call"

    learner = stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), optimizer=optim.SGD(), lr=1e-3, seed=0)
    sys.setprofile(count)
    try:
        learner.fit(data.Loader(numbers, batch_size=4), updates=limit, run=run, resume=True, show=False)
    finally:
        sys.setprofile(None)
    return calls, numbers.reads


def move_checkpoint(run, update):
    """Changes the position of the newest checkpoint, and nothing else."""
    store = Store(run / "checkpoints", run=Run.open(run).id)
    found = store.newest(lambda saved: saved.resumable)
    state = found.state
    state["progress"] |= {"update": update, "batch": update}
    place = {"epoch": found.saved.epoch, "batch": update, "update": update}
    store.write(state, stoker.checkpoint.Place(**place, reason="moved"))


def test_a_resume_costs_the_same_at_update_10_and_at_a_million(tmp_path):
    costs = []
    for place in (10, 1_000_000):
        run = tmp_path / str(place)
        count_calls(run, limit=3)
        move_checkpoint(run, place)
        costs.append(count_calls(run, limit=place + 2))
    (early, reads_early), (late, reads_late) = costs
    assert reads_early == reads_late == 8  # two batches of four samples: earlier ones are not read
    assert abs(late - early) <= 0.02 * early
