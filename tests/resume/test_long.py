"""Long runs: a hundred thousand updates leave memory and files as they were, and a resume costs the same anywhere."""

import gc
import os
import sys

import torch
from torch import nn

import stoker
from stoker import data, optim
from stoker.checkpoint import Store
from stoker.record import Record, Run

UPDATES = 100_000


class Gauge(stoker.Callback):
    """Reads what the process holds: objects that Python can count, resident bytes, open files."""

    transient = True

    def __init__(self):
        self.readings = {}

    def on_update(self, ctx):
        if ctx.update % 10_000 == 0:
            gc.collect()
            with open("/proc/self/statm") as statm:
                resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            self.readings[ctx.update] = resident, len(os.listdir("/proc/self/fd")), len(gc.get_objects())


def test_a_hundred_thousand_updates_leave_memory_and_files_as_they_were(tmp_path):
    x = torch.randn(1000, 1)
    gauge = Gauge()
    learner = stoker.Learner(nn.Linear(1, 1), loss=nn.MSELoss(), optimizer=optim.SGD(), lr=1e-3, seed=0)
    fitted = learner.fit(
        data.Loader((x, 2 * x), batch_size=1, shuffle=0),
        updates=UPDATES,
        run=tmp_path / "run",
        checkpoint=stoker.Checkpoint(every=5000),
        callbacks=[gauge],
        show=False,
    )
    assert fitted.updates == UPDATES
    (bytes_early, files_early, objects_early), (bytes_late, files_late, objects_late) = (
        gauge.readings[20_000],
        gauge.readings[UPDATES],
    )
    assert files_late == files_early
    events = len(fitted.record)
    assert objects_late - objects_early < 8 * events + 500, "something is kept for every update"
    assert bytes_late - bytes_early < 100 * (UPDATES - 20_000), "more than 100 bytes are kept for every update"
    again = Record.open(tmp_path / "run")
    assert again.series("train/loss") == fitted.history["train/loss"] and len(again.series("train/loss")) == 100
    assert len(Store(tmp_path / "run" / "checkpoints", run=Run.open(tmp_path / "run").id).saved()) == 2


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
    state["loop"] |= {"update": update, "batch": update}
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
