"""What a save costs the loop: in the background, blocking, and torch.save of the same state with fsync, side by side.

    python -m benchmarks.save                   10 MB, 500 MB and 2 GB of state: a model and Adam's moments
    python -m benchmarks.save --help            fewer rounds, one size, no file; --quick for a look

Every contender runs in processes of its own, one after the other and several times over, on one thread, into the
folder for temporary files (TMPDIR). `held` is how long the training thread stands still for one save; `whole` how long
until it is on the disk (stoker's is then read back as well, and the one before it deleted); `beside` how much slower
updates are meanwhile; `lost` what all of this takes from the loop. What was measured is kept in benchmarks/results/.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks._harness import in_turn, installed, keep, one_thread

SIZES = {"1 MB": 1e6, "10 MB": 1e7, "500 MB": 5e8, "2 GB": 2e9}  # bytes of state
FULL, QUICK = ["10 MB", "500 MB", "2 GB"], ["1 MB"]
CONTENDERS = {
    "torch.save": "torch.save, then fsync",
    "blocking": "stoker, background=False",
    "background": "stoker, background=True",
}
BASELINE = "torch.save"


def workload(size):
    """The state that is saved, and an update that changes all of it."""
    import torch
    from torch import nn

    side = 1024 if SIZES[size] > 1e8 else 256
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(side, side, bias=False) for _ in range(round(SIZES[size] / (3 * 4 * side**2))))
    optimizer, x = torch.optim.Adam(layers.parameters(), lr=1e-4), torch.randn(16, side)

    def update():
        optimizer.zero_grad()
        sum(layer(x).square().mean() for layer in layers).backward()
        optimizer.step()

    update()  # Adam has no moments before
    return lambda: {"model": layers.state_dict(), "optimizer": optimizer.state_dict()}, update


class TorchSave:
    """What people write, with the care that it is on the disk; the file before it is replaced."""

    def __init__(self, folder):
        self._path = Path(folder) / "checkpoint.pt"

    def save(self, state, number):
        import torch

        part = self._path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._path)

    def is_over(self):
        return True

    def wait(self):
        pass

    def read(self):
        import torch

        return torch.load(self._path, weights_only=True)


class Stoker:
    """The same with stoker's parts."""

    def __init__(self, folder, *, background):
        from stoker.checkpoint import Saver, Store, keep_last

        self._store = Store(folder)
        self._saver = Saver(self._store, keep_last(1), background=background)

    def save(self, state, number):
        from stoker.checkpoint import Place

        self._saver.save(state, Place(epoch=1, batch=number, update=number))

    def is_over(self):
        return bool(self._saver.finished())

    def wait(self):
        self._saver.wait()
        self._saver.finished()

    def read(self):
        return self._store.newest().state


def contender(name, folder):
    return TorchSave(folder) if name == "torch.save" else Stoker(folder, background=name == "background")


def measure(name, size, rounds):
    """Milliseconds, one number a round: what a save holds up, what it takes, and what updates lose beside it."""
    one_thread()
    state, update = workload(size)
    found = {"held": [], "whole": [], "beside": [], "lost": []}
    with tempfile.TemporaryDirectory() as folder:
        saver = contender(name, folder)
        saver.save(state(), 0)  # warm-up: memory for the copies is taken once
        saver.wait()
        alone = statistics.median(timed(update) for _ in range(max(5, round(1.0 / timed(update) * 1e3))))
        for number in range(1, rounds + 1):
            start = time.perf_counter()
            held = timed(lambda number=number: saver.save(state(), 2 * number))
            saver.wait()
            found["whole"].append((time.perf_counter() - start) * 1e3)
            saver.save(state(), 2 * number + 1)
            beside = []
            while not saver.is_over():
                beside.append(timed(update))
            found["held"].append(held)
            found["beside"].append(statistics.mean(beside) / alone if beside else 1.0)
            found["lost"].append(held + sum(beside) - len(beside) * alone)
    return found | {"update": [alone]}


def timed(work):
    """Milliseconds."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def run(sizes, passes, rounds):
    """All contenders in turn, `passes` times over, so that a slow minute of the machine hits all of them."""
    order = [(name, size, str(rounds)) for size in sizes for _ in range(passes) for name in CONTENDERS]
    found = {size: {} for size in sizes}
    for (name, size, _), results in in_turn("benchmarks.save", order).items():
        found[size][name] = {key: [each for result in results for each in result[key]] for key in results[0]}
    return found


def report(found):
    for size, measured in found.items():
        medians = {
            name: {key: statistics.median(values) for key, values in each.items()} for name, each in measured.items()
        }
        alone = statistics.median(each["update"] for each in medians.values())
        print(f"\n{size} of state, an update takes {alone:.1f} ms; one thread, medians in ms")
        print(
            f"  {'':<26} {'held':>9} {'× torch.save':>13} {'lost':>9} {'× torch.save':>13} {'whole':>9} {'beside':>8}"
        )
        for name, label in CONTENDERS.items():
            own, base = medians[name], medians[BASELINE]
            ratios = {key: own[key] / base[key] for key in ("held", "lost")}
            print(
                f"  {label:<26} {own['held']:9.2f} {ratios['held']:13.3f} {own['lost']:9.2f} {ratios['lost']:13.3f} "
                f"{own['whole']:9.1f} {own['beside']:7.2f}×"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "sizes", nargs="*", metavar="size", help=f"of {', '.join(map(repr, SIZES))} (default: the last 3)"
    )
    parser.add_argument("--passes", type=int, default=3, help="processes for each contender (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="timed saves of each kind in each process (default: 3)")
    parser.add_argument("--no-file", action="store_true", help="print only, keep nothing in benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="1 MB, once, print only")
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "SIZE", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, size, rounds = arguments.measure
        print(json.dumps(measure(name, size, int(rounds))))
        return
    unknown = set(arguments.sizes) - set(SIZES)
    if unknown:
        parser.error(f"no such size: {', '.join(unknown)}; there are {', '.join(SIZES)}")
    if arguments.quick:
        report(run(QUICK, passes=1, rounds=1))
        return
    found = run(arguments.sizes or FULL, arguments.passes, arguments.rounds)
    report(found)
    if not arguments.no_file:
        versions = {distribution: installed(distribution) for distribution in ("torch", "stoker")}
        keep("save", versions, ms=found)


if __name__ == "__main__":
    main()
