"""What it costs to record everything about a run, and how fast many runs are listed and drawn.

    python -m benchmarks.monitoring             some minutes; 1,000 runs of 50 metrics × 10,000 points on disk
    python -m benchmarks.monitoring --quick     small fits and ten runs, no file

Cost: the same fit with a run directory, once with everything (dense curves with learning rates, system metrics, and an
image, a histogram, a table and a text in every epoch) and once without, alternating; processor time of the process,
of which noise adds only, so the minimum of each. The target is 2 %. Reading: `find_runs(read=False)`, and one curve of
every run; the targets are 2 seconds, 1 second and 500 MB. The runs share one file of events on disk.
"""

import argparse
import json
import os
import resource
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks._harness import collect, save_results, use_one_thread, versions

WORKLOADS = {"small": (64, 64), "medium": (128, 256)}  # batch size and width; updates of about 0.5 ms and 1 ms
SHARE, LIST, PANEL, MEGABYTES = 0.02, 2.0, 1.0, 500.0  # the targets


def measure_cost(workload, updates, rounds):
    """Processor seconds of the fit without and with everything, the minima of some rounds."""
    import torch
    from torch import nn

    import stoker
    from stoker.callbacks import Callback
    from stoker.engine._curve import Curve  # the benchmark turns it off, which users can't

    class Media(Callback):
        def on_epoch_end(self, ctx):
            ctx.log_image("samples", images)
            ctx.log_histogram("weights", ctx.model[0].weight)
            ctx.log_table("mistakes", {"target": list(range(50)), "predicted": list(range(50))})
            ctx.log_text("words", "some words " * 100)

    use_one_thread()
    batch, width = WORKLOADS[workload]
    batches = updates // 4
    torch.manual_seed(0)
    data = torch.randn(batch * batches, 128), torch.randint(0, 10, (batch * batches,))
    images = torch.rand(16, 1, 28, 28)
    add_points = Curve.add_if_due

    def fit(folder, *, everything):
        model = nn.Sequential(
            nn.Linear(128, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )
        learner = stoker.Learner(model, loss=nn.functional.cross_entropy, lr=1e-3, seed=0)
        Curve.add_if_due = add_points if everything else lambda *_: None
        options = {"checkpoint": False, "show": False, "run": folder, "system_metrics": everything}
        start = time.process_time()
        learner.fit(data, epochs=4, batch_size=batch, callbacks=[Media()] if everything else [], **options)
        return time.process_time() - start

    times = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for everything in (False, True):
                seconds = fit(f"{folder}/{number}-{everything}", everything=everything)
                times[everything] += [seconds] if number else []  # the first round warms up
    return {"without": min(times[False]), "with": min(times[True]), "updates": updates}


def make_runs(folder, *, runs, metrics, points):
    """Writes one run through the record's own writer, and links its events into the others."""
    from stoker.record import Event, Run

    rng = np.random.default_rng(0)
    first = Run.create(folder / "0000", config={"lr": 0.001})
    record = first.record
    record.append(Event("begin", 1e9, extra={"epochs": 100, "batches": points // 100, "monitor": "valid/loss"}))
    names = [f"train/metric-{number}" for number in range(metrics - 1)]
    each = points // 100
    for epoch in range(1, 101):
        place = (1e9 + epoch, epoch, each, epoch * each)
        values = {name: rng.random(each).tolist() for name in names}
        updates = list(range((epoch - 1) * each + 1, epoch * each + 1))
        columns = {"update": updates, "time": [1e9 + epoch] * each, "values": values}
        record.append(Event("progress", *place, extra={"phase": "train", "points": columns, "window": {}}))
        record.append(Event("valid", *place, values={"valid/loss": float(rng.random())}))
        record.append(Event("epoch", *place, values={"valid/loss": 1 / epoch}, extra={"seconds": 1.0}))
    record.append(Event("stop", *place, text="Completed 100 epochs"))
    record.append(Event("end", *place, extra={"epochs": 100, "seconds": 100.0}))
    first.close()
    for number in range(1, runs):
        copy = folder / f"{number:04d}"
        copy.mkdir()
        for name in ("run.json", "config.json", "index.bin"):
            if (first.path / name).exists():
                shutil.copy(first.path / name, copy / name)
        os.link(first.path / "events.jsonl", copy / "events.jsonl")


def measure_reading(folder):
    """Seconds to list all runs and to read a curve of each, by the clock and of the processor, and megabytes."""
    from stoker.record import find_runs

    marks = [(time.perf_counter(), time.process_time())]
    runs = find_runs(folder, read=False)
    marks.append((time.perf_counter(), time.process_time()))
    found = [run.points(run.names[0]) for run in runs]
    marks.append((time.perf_counter(), time.process_time()))
    assert all(len(points) for points in found)
    (list_s, list_cpu), (panel_s, panel_cpu) = (
        (after[0] - before[0], after[1] - before[1]) for before, after in pairwise(marks)
    )
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    times = {"list": list_s, "list, processor": list_cpu, "panel": panel_s, "panel, processor": panel_cpu}
    return {"runs": len(runs), **times, "MB": size}


def report(costs, reading):
    print(f"\n{'':<10}{'without, s':>12}{'with, s':>10}{'cost':>9}")
    for name, each in costs.items():
        share = each["with"] / each["without"] - 1
        met = "met" if share <= SHARE else "not met"
        print(f"{name:<10}{each['without']:12.3f}{each['with']:10.3f}{100 * share:8.2f} %   {met}")
    best = min(reading, key=lambda each: each["list"])
    met = "met" if best["list"] <= LIST and best["panel"] <= PANEL and best["MB"] <= MEGABYTES else "not met"
    print(f"\n{best['runs']} runs: list {best['list']:.2f} s, one curve of each {best['panel']:.2f} s", end="")
    processor = f"processor {best['list, processor']:.2f} s and {best['panel, processor']:.2f} s"
    print(f" ({processor}), {best['MB']:.0f} MB   {met}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--passes", type=int, default=3, help="processes of each measurement (default: 3)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="small fits, few runs, no file")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, *rest = arguments.measure
        is_reading = what == "reading"
        print(json.dumps(measure_reading(*rest) if is_reading else measure_cost(what, *map(int, rest))))
        return
    passes, updates, rounds = (1, 40, 1) if arguments.quick else (arguments.passes, 2000, 5)
    tasks = [(name, str(updates), str(rounds)) for name in WORKLOADS]
    with tempfile.TemporaryDirectory() as folder:
        size = {"runs": 10, "metrics": 5, "points": 1000} if arguments.quick else {}
        make_runs(Path(folder), **{"runs": 1000, "metrics": 50, "points": 10_000, **size})
        done = collect("benchmarks.monitoring", [*tasks, ("reading", folder)] * passes)
        reading = done["reading", folder]
    costs = {task[0]: min(done[task], key=lambda each: each["with"] / each["without"]) for task in tasks}
    report(costs, reading)
    if not arguments.quick and not arguments.no_file:
        save_results(
            "monitoring", versions("stoker", "torch", "numpy", "msgspec"), cost=done_costs(done), reading=reading
        )


def done_costs(done):
    """All measurements of the cost by workload."""
    return {task[0]: results for task, results in done.items() if task[0] in WORKLOADS}


if __name__ == "__main__":
    main()
