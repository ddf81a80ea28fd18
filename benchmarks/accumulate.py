"""What a micro-batch costs that adds its gradients to a window and does not update, relative to an update.

    python -m benchmarks.accumulate             the toy, on one thread of the CPU, accumulate=4
    python -m benchmarks.accumulate --no-file   print only

With `accumulate=4` an epoch of 10 batches has 3 updates. Its time, less that of 3 batches with `accumulate=1`, is the
time of 7 batches that do not update. A plain loop, with torch's fused Adam, calls `loss.backward()` for each of them:
forward and backward are the least that a micro-batch can cost. Every contender runs several times, each time in a new
process, one after the other; the fastest epoch counts.
"""

import argparse
import json
import math
import time
from itertools import pairwise

from benchmarks._harness import collect, save_results, use_one_thread, versions

ACCUMULATE = 4
EPOCHS = 600
CONTENDERS = {"plain": "plain torch, indexing, fused Adam", "stoker": "stoker", "compiled": "stoker, compile=True"}


def measure(contender, accumulate):
    """The time of the fastest epoch, in µs per batch."""
    use_one_thread()
    from benchmarks._workloads import workload

    work, ends = workload("toy"), []
    if contender == "plain":
        _fit_plain(work, accumulate, lambda: ends.append(time.perf_counter()))
    else:
        ends += _fit_stoker(work, accumulate, compile=contender == "compiled")
    return min(end - start for start, end in pairwise(ends)) / work.updates * 1e6


def _fit_plain(work, accumulate, end_epoch):
    import torch

    model, (x, y) = work.model(), work.data()
    optimizer = work.optimizer(model, fused=True)
    for _ in range(EPOCHS):
        batches = torch.randperm(len(x)).split(work.batch)
        for number, rows in enumerate(batches, start=1):
            loss = work.loss(model(x[rows]), y[rows])
            (loss / accumulate if accumulate > 1 else loss).backward()
            if number % accumulate == 0 or number == len(batches):
                optimizer.step()
                optimizer.zero_grad()
        end_epoch()


def _fit_stoker(work, accumulate, *, compile):
    """The times at which epochs ended."""
    from benchmarks.peers.stoker import make_learner

    learner = make_learner(work, accumulate=accumulate, compile=compile)
    fitted = learner.fit(work.data(), epochs=EPOCHS, batch_size=work.batch, show=False)
    return [event.time for event in fitted.record.events_of("epoch")]


def run(passes):
    """µs per batch with an update, and per batch without one, by contender."""
    tasks = [(contender, str(number)) for _ in range(passes) for contender in CONTENDERS for number in (1, ACCUMULATE)]
    best = {task: min(results) for task, results in collect("benchmarks.accumulate", tasks).items()}
    from benchmarks._workloads import workload

    batches = workload("toy").updates
    updates = math.ceil(batches / ACCUMULATE)
    found = {}
    for contender in CONTENDERS:
        update, batch = best[contender, "1"], best[contender, str(ACCUMULATE)]
        found[contender] = {"update": update, "micro-batch": (batches * batch - updates * update) / (batches - updates)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--passes", type=int, default=3, help="processes for each contender (default: 3)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--measure", nargs=2, metavar=("CONTENDER", "ACCUMULATE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        contender, accumulate = arguments.measure
        print(json.dumps(measure(contender, int(accumulate))))
        return
    found = run(arguments.passes)
    print(f"{'µs':<36} {'update':>8} {'micro-batch':>12} {'× update':>9}")
    for contender, label in CONTENDERS.items():
        update, micro = found[contender].values()
        print(f"{label:<36} {update:8.1f} {micro:12.1f} {micro / update:9.2f}")
    if not arguments.no_file:
        save_results("accumulate", versions("torch", "stoker"), accumulate=ACCUMULATE, microseconds=found)


if __name__ == "__main__":
    main()
