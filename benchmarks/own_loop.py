"""A loop of one's own: stoker's parts beside plain torch, the same work in one run, as µs per update and ratios.

    make bench                                  all workloads
    python -m benchmarks.own_loop --help        fewer rounds, one workload, no file

Every contender runs in processes of its own, one after the other and several times over, on one thread. The time is
of whole epochs in steady state: batches, forward, backward, update. What was measured is kept in benchmarks/results/.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
BATCH = 100

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


def workload(name):
    """Tensors, a model, a loss and the norm to clip to."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    if name == "toy":
        x, y = torch.randn(1000, 3, generator=generator), torch.randn(1000, 1, generator=generator)
        return x, y, nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1)), nn.MSELoss(), None
    x = torch.randn(4000, 784, generator=generator)
    y = torch.randint(0, 10, (4000,), generator=generator)
    return x, y, nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)), nn.CrossEntropyLoss(), 1.0


def by_hand(name, *, dataloader=False, fused=None):
    """An epoch of the loop that people write."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    x, y, model, criterion, limit = workload(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)

    def indexed():
        order = torch.randperm(len(x))
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            yield x[rows], y[rows]

    def epoch():
        total = 0.0
        for inputs, targets in loader if dataloader else indexed():
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            if limit is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            if dataloader:
                total += loss.item()

    return epoch, len(x) // BATCH


def on_the_parts(name, *, fused=None):
    """The same epoch on stoker's parts."""
    import stoker
    from stoker import data, optim

    x, y, model, criterion, limit = workload(name)
    optimizer = optim.Adam(fused=fused).init(model)
    loader = data.Loader((x, y), batch_size=BATCH, shuffle=0)

    def epoch():
        for inputs, targets in loader:
            grads = stoker.backward(criterion(model(inputs), targets), model)
            if limit is not None:
                grads = grads.clip_norm(limit)
            optimizer.step(grads, lr=1e-3)

    return epoch, len(loader)


def measure(contender, name, rounds):
    """Microseconds per update, one number a round; a round lasts about half a second."""
    import torch

    torch.set_num_threads(1)
    fused = True if "fused" in contender else None
    if contender.startswith("stoker"):
        epoch, updates = on_the_parts(name, fused=fused)
    else:
        epoch, updates = by_hand(name, dataloader=contender == "dataloader", fused=fused)
    start = time.perf_counter()
    for _ in range(5):  # warm-up, and how long an epoch takes
        epoch()
    epochs = max(1, round(0.5 / ((time.perf_counter() - start) / 5)))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(epochs):
            epoch()
        times.append((time.perf_counter() - start) / (epochs * updates) * 1e6)
    return times


def in_its_own_process(contender, name, rounds):
    command = [sys.executable, "-m", "benchmarks.own_loop", "--measure", contender, name, str(rounds)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{contender} on {name} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {"cpu": cpu or platform.processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def run(names, passes, rounds):
    """All contenders in turn, `passes` times over, so that a slow minute of the machine hits all of them."""
    found = {name: {contender: [] for contender in CONTENDERS} for name in names}
    total, done = len(names) * passes * len(CONTENDERS), 0
    for name in names:
        for _ in range(passes):
            for contender in CONTENDERS:
                done += 1
                print(f"\r  measuring {done} of {total}: {name}, {contender:<40}", end="", file=sys.stderr, flush=True)
                found[name][contender] += in_its_own_process(contender, name, rounds)
    print(f"\r{'':<72}\r", end="", file=sys.stderr)
    return found


def report(found):
    for name, times in found.items():
        medians = {contender: statistics.median(values) for contender, values in times.items()}
        print(f"\n{name}: {WORKLOADS[name]}; one thread, µs per update")
        print(f"  {'':<56} {'median':>8} {'spread':>15}   × indexing   × DataLoader")
        for contender, label in CONTENDERS.items():
            low, high = min(times[contender]), max(times[contender])
            ratios = [medians[contender] / medians[other] for other in (BASELINE, "dataloader")]
            spread = f"{low:7.1f}–{high:<7.1f}"
            print(f"  {label:<56} {medians[contender]:8.1f} {spread}   {ratios[0]:10.3f}   {ratios[1]:12.3f}")


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
        import torch

        import stoker

        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"own_loop-{date.today()}.json"
        versions = {"torch": torch.__version__, "stoker": stoker.__version__}
        path.write_text(
            json.dumps({"machine": machine(), "versions": versions, "µs per update": found}, indent=1) + "\n"
        )
        print(f"\nkept in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


if __name__ == "__main__":
    main()
