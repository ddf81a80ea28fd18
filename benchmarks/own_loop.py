"""A training loop of your own: stoker's parts compared with plain torch, as µs per update and ratios.

    make bench                                  all workloads
    python -m benchmarks.own_loop --help        fewer rounds, one workload, no file

Every contender runs several times, each time in a new process, one after the other, on one thread. The time covers
whole epochs in steady state: batches, forward, backward, update. Results are written to benchmarks/results/.
"""

import argparse
import json
import statistics
from dataclasses import replace

from benchmarks._harness import check_names, collect, save_results, spread, timed, use_one_thread, versions

WORKLOADS = {
    "toy": "1000 × 3 → 32 → 1, batch 100, Adam, mean squared error",
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


def make_workload(name):
    """The toy, or random digits with a norm to clip to."""
    import torch
    from torch import nn

    from benchmarks._models import mlp
    from benchmarks._workloads import workload

    toy = workload("toy")
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


def epoch_of(contender, work):
    """A function that trains for one epoch."""
    fused = True if "fused" in contender else None
    if contender.startswith("stoker"):
        return _epoch_with_parts(work, fused)
    from benchmarks.peers.plain import make_epoch

    return make_epoch(work, work.model(), dataloader=contender == "dataloader", fused=fused)


def _epoch_with_parts(work, fused):
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
    """Microseconds per update, one number for each round of about half a second."""
    use_one_thread()
    work = make_workload(name)
    epoch = epoch_of(contender, work)
    warm_up = timed(lambda: [epoch() for _ in range(5)]) / 5
    epochs = max(1, round(0.5 / warm_up))
    return [timed(lambda: [epoch() for _ in range(epochs)]) / (epochs * work.updates) * 1e6 for _ in range(rounds)]


def run(names, passes, rounds):
    """All contenders in turn, `passes` times, so that a slow minute of the machine affects all of them."""
    order = [(contender, name, str(rounds)) for name in names for _ in range(passes) for contender in CONTENDERS]
    found = {name: {} for name in names}
    for (contender, name, _), results in collect("benchmarks.own_loop", order).items():
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
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "WORKLOAD", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        contender, name, rounds = arguments.measure
        print(json.dumps(measure(contender, name, int(rounds))))
        return
    check_names(parser, "workload", arguments.workloads, WORKLOADS)
    found = run(arguments.workloads or list(WORKLOADS), arguments.passes, arguments.rounds)
    report(found)
    if not arguments.no_file:
        save_results("own_loop", versions("torch", "stoker"), **{"µs per update": found})


if __name__ == "__main__":
    main()
