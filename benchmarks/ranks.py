"""The overhead of training with several processes: agreement, merging of metrics, gathering, and whole updates.

    python -m benchmarks.ranks                  gloo, with 1, 2, 4 and 8 processes on this machine
    python -m benchmarks.ranks --help           other numbers of processes, fewer passes, no file; --quick for a check
    python -m benchmarks.ranks --updates        `fit` against DDP by hand on 2 processes: the toy, and 10M parameters
    python -m benchmarks.ranks --estimate       extrapolates the newest results to 1024 ranks, in docs/scaling.md

Each number of processes is one launch of torchrun, one after the other and several times, with one thread for each
process. A time is the median of many calls on the slowest rank. With more processes than cores the processes take
turns: work that all of them do at once is slower for that reason; a flag that travels from one to the next is not. A
whole update is the toy's, in `fit`, in `fit` with `compile=True`, and in a loop written by hand with DDP. Results are
written to benchmarks/results/. `--updates` alternates between `fit` and the loop in the same two processes, several
times, so that a busy machine slows both.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

from benchmarks._harness import RESULTS, collect, fill_page, save_results, timed, use_one_thread, versions
from benchmarks._ranks_model import LABELS, estimate_table, measured_table

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
SIZES = ("1", "2", "4", "8")

# --- one rank, under torchrun

STEP = 0.05  # seconds of the step during which an agreement is measured
METRICS = (5, 20)
EPOCHS = {"full": 13, "quick": 2}  # of 100 updates each; the first one is not timed
CALLS = {"full": (1000, 60, 100), "quick": (20, 4, 4)}  # back to back, during a step, gathers
BATCH = 100
ROUNDS = 5  # of `--updates`


def run_rank(size):
    """Measures on one rank; rank 0 prints the times of the slowest."""
    from stoker.distributed import join

    use_one_thread()
    world = join()
    if size == "updates":
        of_all = world.all_gather(compare_updates(world))
        if world.is_first:
            print(json.dumps({name: slowest_of([each[name] for each in of_all]) for name in of_all[0]}))
        return
    found = {**measure_messages(world, *CALLS[size]), "update, plain loop": measure_plain_updates(world, EPOCHS[size])}
    found["update, fit"] = measure_fit_updates(EPOCHS[size])
    found["update, compiled fit"] = measure_fit_updates(EPOCHS[size], compile=True)
    of_all = world.all_gather(found)
    if world.is_first:
        slowest = {name: slowest_of([each[name] for each in of_all]) for name in found}
        alone = measure_parts() if world.size == 1 else {}
        print(json.dumps({"us": slowest, "descriptors": len(os.listdir("/proc/self/fd")), **alone}))


def slowest_of(times_of_ranks):
    return [max(times) for times in zip(*times_of_ranks, strict=True)]


def compare_updates(world):
    """µs on this rank of updates in a loop written by hand with DDP and in `fit`, in turns."""
    found = {}
    for _ in range(ROUNDS):
        for name, make, epochs in (("toy", make_data, 7), ("10M MLP", make_large_data, 4)):
            for loop, measure in (("DDP by hand", partial(measure_plain_updates, world)), ("fit", measure_fit_updates)):
                found.setdefault(f"{name}, {loop}", []).extend(measure(epochs, make=make))
    return found


def measure_messages(world, back_to_back, during_steps, gathers):
    """µs on this rank of what ranks send each other."""
    from stoker.distributed import Agreement

    agreement, state = Agreement(world, every_batch=True), rank_state()
    found = {
        "agreement, beside a step": [microseconds(lambda: agreement.exchange({}), during_steps, pause=STEP)],
        "agreement, at once": [microseconds(lambda: agreement.exchange({}), back_to_back) for _ in range(3)],
        "agreement, waited for": [microseconds(lambda: world.all(True), back_to_back) for _ in range(3)],
    }
    agreement.exchange({}, wait=True)
    for count in METRICS:
        merge = partial(running_totals(count).merge_ranks, world)
        found[f"merge, {count} metrics"] = [microseconds(merge, gathers) for _ in range(3)]
    found["gather, checkpoint"] = [microseconds(lambda: world.all_gather(state), gathers) for _ in range(3)]
    return found


def microseconds(function, calls, pause=0.0):
    """The median of a call in µs, without the first tenth of the calls."""
    times = []
    for _ in range(calls):
        if pause:
            time.sleep(pause)
        times.append(timed(function) * 1e6)
    return statistics.median(times[calls // 10 :])


def make_metrics(count):
    from stoker import metrics

    return [metrics.Accuracy(name=f"accuracy {number}") for number in range(count)]


def running_totals(count):
    """The loss and metrics of a rank at the end of an epoch."""
    import torch

    from stoker import ClassificationOutput
    from stoker.engine import RunningTotals

    totals = RunningTotals(make_metrics(count), torch.device("cpu"))
    output = ClassificationOutput(torch.tensor(0.5), logits=torch.randn(8, 3), targets=torch.randint(0, 3, (8,)))
    totals.add_loss("loss", output.loss, 8)
    totals.update(output)
    return totals


def rank_state():
    """What differs between ranks in a checkpoint outside of an accumulation window."""
    from stoker.checkpoint import random_state

    totals = running_totals(METRICS[0]).state_dict()
    return {"random": random_state(), "loader": {}, "totals": totals, "accumulators": {}}


def measure_parts():
    """The work for each rank's state in a merge and in a gather: µs and bytes."""
    from stoker.distributed import pack, unpack

    found = {}
    for count in METRICS:
        metrics, message = make_metrics(count), pack(running_totals(count).state_dict())

        def merge_64(metrics=metrics, message=message):
            first, *others = (unpack(message)["metrics"] for _ in range(64))
            for other in others:
                first = {each.name: each.merge(first[each.name], other[each.name]) for each in metrics}

        found[f"merge, {count} metrics"] = {"us": microseconds(merge_64, 20) / 64, "bytes": len(message)}
    message = pack(rank_state())
    found["gather, checkpoint"] = {"us": microseconds(lambda: unpack(message), 200), "bytes": len(message)}
    from benchmarks.record import measure_writing

    return {"of each state": found, "us of an event": statistics.median(measure_writing("record", "5"))}


def make_data():
    """The toy, repeated to 100 updates an epoch."""
    from benchmarks._workloads import workload

    toy = workload("toy")
    x, y = toy.data()
    return x.repeat(10, 1), y.repeat(10, 1), toy.model()


def make_large_data():
    """Ten batches an epoch, for a model of 10 million parameters: more than one bucket of gradients."""
    import torch
    from torch import nn

    def model():
        torch.manual_seed(0)
        sizes = (784, 2048, 2048, 2048, 10)
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(*layers[:-1])

    generator = torch.Generator().manual_seed(0)
    return torch.randn(10 * BATCH, 784, generator=generator), torch.randn(10 * BATCH, 10, generator=generator), model()


def measure_plain_updates(world, epochs, make=make_data):
    """µs per update of a loop written by hand: DDP, and each rank's slice of every batch."""
    import torch
    from torch import nn

    x, y, model = make()
    ddp = nn.parallel.DistributedDataParallel(model) if world.size > 1 else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    loss_function, marks, generator = nn.MSELoss(), [], torch.Generator().manual_seed(0)
    start, stop = BATCH * world.rank // world.size, BATCH * (world.rank + 1) // world.size
    for _ in range(epochs):
        total = torch.zeros(())
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            own = rows[start:stop]
            optimizer.zero_grad()
            loss = loss_function(ddp(x[own]), y[own])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        marks.append(time.perf_counter())
    return per_update(marks, len(x))


def measure_fit_updates(epochs, make=make_data, **settings):
    """µs per update of `fit`, ends of epochs included; the first epoch, which may compile, is not timed."""
    from torch import nn

    import stoker
    from stoker import callbacks, optim

    gc.collect()  # frees the DDP of the plain loop
    x, y, model = make()
    marks = []
    clock = callbacks.on(epoch_end=lambda ctx: marks.append(time.perf_counter()))
    settings = {"loss": nn.MSELoss(), "optimizer": optim.Adam(), "lr": 1e-3, "device": "cpu", "seed": 0, **settings}
    learner = stoker.Learner(model, **settings)
    learner.fit((x, y), epochs=epochs, batch_size=BATCH, callbacks=[clock], show=False)
    return per_update(marks, len(x))


def per_update(marks, samples):
    return [(b - a) * 1e6 * BATCH / samples for a, b in pairwise(marks)]


# --- launching and reporting


def launch(processes, size):
    """Replaces this process with torchrun."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", "benchmarks.ranks", "--rank", size])


def run(numbers, passes, size):
    """The results by number of processes, with the times of all passes together."""
    done = collect("benchmarks.ranks", [(processes, size) for _ in range(passes) for processes in numbers])
    return {processes: _joined_passes(done[processes, size]) for processes in numbers}


def _joined_passes(results):
    times = {name: [us for each in results for us in each["us"][name]] for name in results[0]["us"]}
    return {**results[0], "us": times}


def report(found):
    """Prints medians in µs, and the ratio of `fit` to the loop written by hand."""
    medians = {
        processes: {name: statistics.median(times) for name, times in each["us"].items()}
        for processes, each in found.items()
    }
    print(f"\ngloo on this machine, medians in µs\n  {'processes':<40}" + "".join(f"{each:>10}" for each in found))
    for name, label in LABELS.items():
        print(f"  {label:<40}" + "".join(f"{each[name]:10.1f}" for each in medians.values()))
    ratios = [each["update, fit"] / each["update, plain loop"] for each in medians.values()]
    print(f"  {'ratio':<40}" + "".join(f"{ratio:10.2f}" for ratio in ratios))
    print(f"  {'file descriptors of a process':<40}" + "".join(f"{each['descriptors']:10d}" for each in found.values()))


def report_updates(found):
    """Prints the median and the fastest epoch of each loop, and the ratios of `fit` to DDP by hand."""
    print(f"\n2 gloo processes on this machine, µs per update\n  {'':<24}{'median':>10}{'fastest':>10}")
    for name, times in found.items():
        print(f"  {name:<24}{statistics.median(times):10.0f}{min(times):10.0f}")
        if name.endswith("fit"):
            plain = found[name.replace("fit", "DDP by hand")]
            ratios = statistics.median(times) / statistics.median(plain), min(times) / min(plain)
            print(f"  {'ratio':<24}{ratios[0]:10.2f}{ratios[1]:10.2f}")


def newest_results():
    paths = sorted(RESULTS.glob("ranks-*.json"))
    if not paths:
        sys.exit("there are no results yet: run python -m benchmarks.ranks first")
    return json.loads(paths[-1].read_text())["processes"]


def replace_tables(page, found):
    """The text of docs/scaling.md with its tables made from results, none of them typed by hand."""
    return fill_page(page, {"measured": measured_table(found), "estimate": estimate_table(found)})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="numbers of processes (default: 1 2 4 8)")
    parser.add_argument("--passes", type=int, default=2, help="launches for each number (default: 2)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="1 and 2 processes, once, no file")
    parser.add_argument("--updates", action="store_true", help="two processes: updates of `fit` against DDP by hand")
    parser.add_argument("--estimate", action="store_true", help="measure nothing; update the tables of docs/scaling.md")
    parser.add_argument("--measure", nargs=2, metavar=("PROCESSES", "SIZE"), help=argparse.SUPPRESS)
    parser.add_argument("--rank", metavar="SIZE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(arguments.rank)
    elif arguments.measure:
        launch(*arguments.measure)
    elif arguments.estimate:
        PAGE.write_text(replace_tables(PAGE.read_text(), newest_results()))
        print("\n".join(estimate_table(newest_results())))
    elif arguments.updates:
        report_updates(collect("benchmarks.ranks", [("2", "updates")])["2", "updates"][0])
    elif arguments.quick:
        report(run(("1", "2"), 1, "quick"))
    else:
        found = run(arguments.sizes, arguments.passes, "full")
        report(found)
        if not arguments.no_file:
            save_results("ranks", versions("stoker", "torch"), processes=found)


if __name__ == "__main__":
    main()
