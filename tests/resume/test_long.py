"""Long runs: a hundred thousand updates leave memory and files as they were, and a resume costs the same anywhere."""

import json
import os
import subprocess
import sys

import torch
from torch import nn

import stoker
from stoker import data, optim
from stoker.checkpoint import Store
from stoker.record import Record, Run

UPDATES = 100_000

# In a process of its own: what other tests have left in this one would be counted as well.
PROGRAM = """
import gc, json, os, sys
import torch, stoker
from torch import nn
from stoker import data, optim

class Gauge(stoker.Callback):
    transient = True
    readings = []

    def on_update(self, ctx):
        if ctx.update % 20_000 == 0:
            gc.collect()
            resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            files = len(os.listdir("/proc/self/fd"))
            self.readings.append((resident, files, len(gc.get_objects()), len(ctx.record)))

x = torch.randn(1000, 1)
learner = stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), optimizer=optim.SGD(), lr=1e-3, seed=0)
fitted = learner.fit(
    data.Loader((x, 2 * x), batch_size=1, shuffle=0), updates=int(sys.argv[2]), run=sys.argv[1],
    checkpoint=stoker.Checkpoint(every=5000), callbacks=[Gauge()], show=False,
)
print(json.dumps([Gauge.readings, fitted.updates, fitted.history["train/loss"]]))
"""


def test_a_hundred_thousand_updates_leave_memory_and_files_as_they_were(tmp_path):
    run = tmp_path / "run"
    command = [sys.executable, "-c", PROGRAM, run, str(UPDATES)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    readings, updates, losses = json.loads(done.stdout)
    assert updates == UPDATES
    (bytes_early, files_early, objects_early, _), *_, (bytes_late, files_late, objects_late, events) = readings
    assert files_late == files_early
    assert objects_late - objects_early < 8 * events + 500, "something is kept for every update"
    assert bytes_late - bytes_early < 50 * (UPDATES - 20_000), "memory grows with the updates"
    again = Record.open(run)
    assert again.series("train/loss") == losses and len(losses) == 100
    assert len(Store(run / "checkpoints", run=Run.open(run).id).saved()) == 2


class Numbers:
    """Ten million samples that are made when they are asked for, and counted."""

    def __init__(self, count=10_000_000):
        self.count, self.asked = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        self.asked += 1
        x = torch.tensor([number / self.count])
        return x, 2 * x


def calls_of_a_resume(run, *, limit):
    """How much Python a resumed fit of two more updates executes, in calls; and how many samples it asked for."""
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
    return calls, numbers.asked


def moved_to(run, update):
    """The checkpoint of a run as it would be that far into the epoch, with everything else as it was."""
    store = Store(run / "checkpoints", run=Run.open(run).id)
    found = store.newest(lambda saved: saved.resumable)
    state = found.state
    state["progress"] |= {"update": update, "batch": update}
    place = {"epoch": found.saved.epoch, "batch": update, "update": update}
    store.write(state, stoker.checkpoint.Place(**place, reason="moved"))


def test_a_resume_costs_the_same_at_update_ten_and_at_a_million(tmp_path):
    costs = []
    for place in (10, 1_000_000):
        run = tmp_path / str(place)
        calls_of_a_resume(run, limit=3)
        moved_to(run, place)
        costs.append(calls_of_a_resume(run, limit=place + 2))
    (early, asked_early), (late, asked_late) = costs
    assert asked_early == asked_late == 8  # two batches of four: nothing before them was read again
    assert abs(late - early) <= 0.02 * early
