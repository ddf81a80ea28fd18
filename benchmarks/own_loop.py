"""A loop of one's own: stoker's parts beside plain torch, the same work in one run, as µs per update and ratios.

    make bench                                  all workloads
    python -m benchmarks.own_loop --help        fewer rounds, one workload, no file

Every contender runs in processes of its own, one after the other and several times over, on one thread. The time is
of whole epochs in steady state: batches, forward, backward, update. What was measured is kept in benchmarks/results/.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace

from benchmarks._harness import TOY, in_turn, installed, keep, one_thread, spread

WORKLOADS = {
    "toy": TOY,
    "digits": "4000 × 784 → 128 → 10, batch 100, Adam, cross-entropy, gradients clipped to norm 1",
}
CONTENDERS = {
    "dataloader": "plain torch, DataLoader over a TensorDataset, loss.item()",
    "indexing": "plain torch, indexing the tensors",
    "stoker": "stoker's parts: Loader, backward, step",
    "indexing, fused": "plain torch, indexing, fused Adam",
    "stoker, fused": "stoker's parts, fused Adam",
}
BASELINE = "indexing"


def workload(name):
    """The toy, or one with random digits and a norm to clip to."""
    import torch
    from torch import nn

    from benchmarks._models import mlp
    from benchmarks._workloads import workload as known

    toy = known("toy")
    if name == "toy":
        return toy
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 784, generator=generator)
    y = torch.randint(0, 10, (4000,), generator=generator)
    return replace(
        toy,
        make=lambda: (x, y),
        net=lambda: mlp(784, 128, 10),
        loss=nn.CrossEntropyLoss(),
        samples=len(x),
        metric=None,
        clip_norm=1.0,
    )


def by_hand(work, *, dataloader=False, fused=None):
    """An epoch of the loop that people write."""
    from benchmarks.peers.plain import epoch_by_hand

    return epoch_by_hand(work, work.model(), dataloader=dataloader, fused=fused)


def on_the_parts(work, *, fused=None):
    """The same epoch on stoker's parts."""
    import stoker
    from stoker import data, optim

    model = work.model()
    optimizer = optim.Adam(fused=fused).init(model)
    loader = data.Loader(work.data(), batch_size=work.batch, shuffle=0)

    def epoch():
        for inputs, targets in loader:
            grads = stoker.backward(work.loss(model(inputs), targets), model)
            if work.clip_norm is not None:
                grads = grads.clip_norm(work.clip_norm)
            optimizer.step(grads, lr=work.lr)

    return epoch


def measure(contender, name, rounds):
    """Microseconds per update, one number a round; a round lasts about half a second."""
    one_thread()
    fused, work = True if "fused" in contender else None, workload(name)
    if contender.startswith("stoker"):
        epoch = on_the_parts(work, fused=fused)
    else:
        epoch = by_hand(work, dataloader=contender == "dataloader", fused=fused)
    start = time.perf_counter()
    for _ in range(5):  # warm-up, and how long an epoch takes
        epoch()
    epochs = max(1, round(0.5 / ((time.perf_counter() - start) / 5)))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(epochs):
            epoch()
        times.append((time.perf_counter() - start) / (epochs * work.updates) * 1e6)
    return times


def run(names, passes, rounds):
    """All contenders in turn, `passes` times over, so that a slow minute of the machine hits all of them."""
    order = [(contender, name, str(rounds)) for name in names for _ in range(passes) for contender in CONTENDERS]
    found = {name: {} for name in names}
    for (contender, name, _), results in in_turn("benchmarks.own_loop", order).items():
        found[name][contender] = [each for result in results for each in result]
    return found


def report(found):
    for name, times in found.items():
        medians = {contender: statistics.median(values) for contender, values in times.items()}
        print(f"\n{name}: {WORKLOADS[name]}; one thread, µs per update")
        print(f"  {'':<58} {'median':>8} {'spread':>15}   × indexing   × DataLoader")
        for contender, label in CONTENDERS.items():
            ratios = [medians[contender] / medians[other] for other in (BASELINE, "dataloader")]
            print(f"  {label:<58} {spread(times[contender])}   {ratios[0]:10.3f}   {ratios[1]:12.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="workload", help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--passes", type=int, default=3, help="processes for each contender (default: 3)")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds in each process (default: 7)")
    parser.add_argument("--no-file", action="store_true", help="print only, keep nothing in benchmarks/results/")
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "WORKLOAD", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        contender, name, rounds = arguments.measure
        print(json.dumps(measure(contender, name, int(rounds))))
        return
    unknown = set(arguments.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no such workload: {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    found = run(arguments.workloads or list(WORKLOADS), arguments.passes, arguments.rounds)
    report(found)
    if not arguments.no_file:
        versions = {distribution: installed(distribution) for distribution in ("torch", "stoker")}
        keep("own_loop", versions, **{"µs per update": found})


if __name__ == "__main__":
    main()
