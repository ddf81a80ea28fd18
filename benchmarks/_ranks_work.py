"""What one rank measures, under torchrun: every rank does the same, and rank 0 prints the times of the slowest.

torchrun --standalone --nproc-per-node=4 -m benchmarks._ranks_work full
"""

import gc
import json
import os
import statistics
import sys
import time
from functools import partial
from itertools import pairwise

import torch
from torch import nn

import stoker
from benchmarks._harness import BATCH, one_thread, toy
from stoker import callbacks, metrics, optim
from stoker.checkpoint import random_state
from stoker.distributed import Accord, joined
from stoker.distributed._wire import packed, unpacked
from stoker.loop._agree import _NOTHING as NOTHING  # what a fit hands in after most batches
from stoker.loop._merge import added, merged
from stoker.loop._tally import Tally
from stoker.steps import ClassificationOutput

PAUSE = 0.05  # seconds: the step that an agreement is measured beside
COUNTS = (5, 20)  # metrics
EPOCHS = {"full": 13, "quick": 4}  # of 100 updates each; the first one is not counted
CALLS = {"full": (1000, 60, 100), "quick": (100, 8, 20)}  # back to back, beside a step, gathers


def main(size):
    one_thread()
    world = joined()
    found = {**talks(world, *CALLS[size]), "update, plain loop": plain(world, EPOCHS[size])}
    found["update, fit"] = fit(EPOCHS[size])
    everybodys = world.gathered(found)
    if world.is_first:
        slowest = {
            name: [max(times) for times in zip(*(their[name] for their in everybodys), strict=True)] for name in found
        }
        alone = parts() if world.size == 1 else {}
        print(json.dumps({"us": slowest, "descriptors": len(os.listdir("/proc/self/fd")), **alone}))


def talks(world, at_once, beside, gathers):
    """µs of what ranks say to each other, on this one; so many calls of each."""
    accord, own = Accord(world, every=1), checkpointed()
    found = {
        "agreement, beside a step": [us(lambda: accord.hand_in(NOTHING), beside, pause=PAUSE)],
        "agreement, at once": [us(lambda: accord.hand_in(NOTHING), at_once) for _ in range(3)],
        "agreement, waited for": [us(lambda: world.all(True), at_once) for _ in range(3)],
    }
    accord.settle(NOTHING)
    for count in COUNTS:
        found[f"merge, {count} metrics"] = [us(partial(merged, tally_of(count), world), gathers) for _ in range(3)]
    found["gather, checkpoint"] = [us(lambda: world.gathered(own), gathers) for _ in range(3)]
    return found


def us(work, calls, pause=0.0):
    """The median of a call in µs; the first tenth is not counted."""
    spent = []
    for _ in range(calls):
        if pause:
            time.sleep(pause)
        start = time.perf_counter()
        work()
        spent.append((time.perf_counter() - start) * 1e6)
    return statistics.median(spent[calls // 10 :])


def tally_of(count):
    """What a rank has counted when an epoch is over."""
    tally = Tally([metrics.Accuracy(name=f"accuracy {number}") for number in range(count)], torch.device("cpu"))
    output = ClassificationOutput(torch.tensor(0.5), logits=torch.randn(8, 3), targets=torch.randint(0, 3, (8,)))
    tally.add_loss("loss", output.loss, 8)
    tally.add(output)
    return tally


def checkpointed():
    """What differs between ranks, as a checkpoint without an open window has it."""
    return {"random": random_state(), "loader": {}, "tally": tally_of(COUNTS[0]).state_dict(), "window": {}}


def parts():
    """What a merge and a gather are made of on the rank itself: µs and bytes for each rank's state."""
    found = {}
    for count in COUNTS:
        tally = tally_of(count)
        data = packed(tally.state_dict())
        found[f"merge, {count} metrics"] = {"us": us(partial(merge_64, tally, data), 20) / 64, "bytes": len(data)}
    data = packed(checkpointed())
    found["gather, checkpoint"] = {"us": us(lambda: unpacked(data), 200), "bytes": len(data)}
    return {"of each state": found, "us of an event": event()}


def merge_64(tally, data):
    """What a rank does with the states of 64."""
    added(tally.metrics, [unpacked(data) for _ in range(64)])


def event():
    """µs for a line of the record, on rank 0."""
    from benchmarks.record import write

    return statistics.median(write("record", "5"))


# --- a whole update: 100 of them an epoch


def data():
    x, y, model = toy()
    return x.repeat(10, 1), y.repeat(10, 1), model


def plain(world, epochs):
    """µs per update of a loop written by hand: DDP, and each rank's slice of every batch."""
    x, y, model = data()
    ddp = nn.parallel.DistributedDataParallel(model) if world.size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_of, marks, generator = nn.MSELoss(), [], torch.Generator().manual_seed(0)
    start, stop = BATCH * world.rank // world.size, BATCH * (world.rank + 1) // world.size
    for _ in range(epochs):
        total = torch.zeros(())
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            own = rows[start:stop]
            optimizer.zero_grad()
            loss = loss_of(ddp(x[own]), y[own])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        marks.append(time.perf_counter())
    return per_update(marks, len(x))


def fit(epochs):
    """µs per update of `fit`, ends of epochs included."""
    gc.collect()  # the plain loop's DDP
    x, y, model = data()
    marks = []
    clock = callbacks.on(epoch_end=lambda ctx: marks.append(time.perf_counter()))
    learner = stoker.Learner(model, loss=nn.MSELoss(), optimizer=optim.Adam(), lr=1e-3, device="cpu", seed=0)
    learner.fit((x, y), epochs=epochs, batch_size=BATCH, callbacks=[clock], show=False)
    return per_update(marks, len(x))


def per_update(marks, samples):
    return [(b - a) * 1e6 * BATCH / samples for a, b in pairwise(marks)]


if __name__ == "__main__":
    main(sys.argv[1])
