"""What saving a checkpoint costs the training loop: in the background, blocking, and `torch.save` with fsync.

    python -m benchmarks.save                   10 MB, 500 MB and 2 GB of state: a model and Adam's moments
    python -m benchmarks.save --help            fewer rounds, one size, no file; --quick for a short check

Every contender runs several times, each time in a new process, one after the other, on one thread, and writes to the
directory for temporary files (TMPDIR). `held` is the time for which one save blocks the training thread; `whole` the
time until it is on the disk (stoker also reads it back and deletes the previous one); `beside` how much slower updates
are meanwhile; `lost` the total time that the loop loses. Results are written to benchmarks/results/.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks._harness import check_names, collect, save_results, timed, use_one_thread, versions

SIZES = {"1 MB": 1e6, "10 MB": 1e7, "500 MB": 5e8, "2 GB": 2e9}  # bytes of state
FULL, QUICK = ["10 MB", "500 MB", "2 GB"], ["1 MB"]
CONTENDERS = {
    "torch.save": "torch.save, then fsync",
    "blocking": "stoker, background=False",
    "background": "stoker, background=True",
}
BASELINE = "torch.save"


def make_training(size):
    """A function that returns the state to save, and an update that changes all of it."""
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

    update()  # creates Adam's moments
    return lambda: {"model": layers.state_dict(), "optimizer": optimizer.state_dict()}, update


class TorchSave:
    """`torch.save` with fsync, which replaces the previous file."""

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

    def is_finished(self):
        return True

    def wait(self):
        pass


class Stoker:
    """stoker's `Store` and `Saver`."""

    def __init__(self, folder, *, background):
        from stoker.checkpoint import Checkpoint, Saver, Store

        self._saver = Saver(Store(folder), Checkpoint(keep_last=1).policy(), background=background)

    def save(self, state, number):
        from stoker.checkpoint import Place

        self._saver.save(state, Place(epoch=1, batch=number, update=number))

    def is_finished(self):
        return bool(self._saver.take_finished())

    def wait(self):
        self._saver.wait()
        self._saver.take_finished()


def milliseconds(function):
    return timed(function) * 1e3


def measure(name, size, rounds):
    """Milliseconds of each round; see the description of the columns above."""
    use_one_thread()
    state, update = make_training(size)
    found = {"held": [], "whole": [], "beside": [], "lost": []}
    with tempfile.TemporaryDirectory() as folder:
        saver = TorchSave(folder) if name == "torch.save" else Stoker(folder, background=name == "background")
        saver.save(state(), 0)  # warm-up: memory for the copies is allocated once
        saver.wait()
        alone = statistics.median(milliseconds(update) for _ in range(max(5, round(1e3 / milliseconds(update)))))
        for number in range(1, rounds + 1):
            start = time.perf_counter()
            held = milliseconds(lambda number=number: saver.save(state(), 2 * number))
            saver.wait()
            found["whole"].append((time.perf_counter() - start) * 1e3)
            saver.save(state(), 2 * number + 1)
            meanwhile = []
            while not saver.is_finished():
                meanwhile.append(milliseconds(update))
            found["held"].append(held)
            found["beside"].append(statistics.mean(meanwhile) / alone if meanwhile else 1.0)
            found["lost"].append(held + sum(meanwhile) - len(meanwhile) * alone)
    return found | {"update": [alone]}


def run(sizes, passes, rounds):
    """All contenders in turn, `passes` times, so that a slow minute of the machine affects all of them."""
    order = [(name, size, str(rounds)) for size in sizes for _ in range(passes) for name in CONTENDERS]
    found = {size: {} for size in sizes}
    for (name, size, _), results in collect("benchmarks.save", order).items():
        found[size][name] = {key: [each for result in results for each in result[key]] for key in results[0]}
    return found


def report(found):
    for size, measured in found.items():
        medians = {
            name: {key: statistics.median(values) for key, values in each.items()} for name, each in measured.items()
        }
        alone = statistics.median(each["update"] for each in medians.values())
        print(f"\n{size} of state, an update takes {alone:.1f} ms; one thread, medians in ms")
        print(f"  {'':<26} {'held':>9} {'× torch.save':>13} {'lost':>9} {'× torch.save':>13}", end="")
        print(f" {'whole':>9} {'beside':>8}")
        for name, label in CONTENDERS.items():
            own, base = medians[name], medians[BASELINE]
            ratios = {key: own[key] / base[key] for key in ("held", "lost")}
            print(f"  {label:<26} {own['held']:9.2f} {ratios['held']:13.3f}", end="")
            print(f" {own['lost']:9.2f} {ratios['lost']:13.3f} {own['whole']:9.1f} {own['beside']:7.2f}×")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "sizes", nargs="*", metavar="size", help=f"of {', '.join(map(repr, SIZES))} (default: the last 3)"
    )
    parser.add_argument("--passes", type=int, default=3, help="processes for each contender (default: 3)")
    parser.add_argument("--rounds", type=int, default=3, help="timed saves of each kind in each process (default: 3)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="1 MB, once, no file")
    parser.add_argument("--measure", nargs=3, metavar=("CONTENDER", "SIZE", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, size, rounds = arguments.measure
        print(json.dumps(measure(name, size, int(rounds))))
        return
    check_names(parser, "size", arguments.sizes, SIZES)
    if arguments.quick:
        report(run(QUICK, passes=1, rounds=1))
        return
    found = run(arguments.sizes or FULL, arguments.passes, arguments.rounds)
    report(found)
    if not arguments.no_file:
        save_results("save", versions("torch", "stoker"), ms=found)


if __name__ == "__main__":
    main()
