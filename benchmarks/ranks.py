"""What training together costs beside the training: agreement, merges, gathers, and a whole update.

    python -m benchmarks.ranks                  gloo, with 1, 2, 4 and 8 processes on this machine
    python -m benchmarks.ranks --help           other numbers of processes, fewer passes, no file; --quick for a look
    python -m benchmarks.ranks --estimate       what is kept, carried on to 1024 ranks, into docs/scaling.md

Each number of processes is a launch of torchrun, one after the other and several times over, one thread a process. A
time is the median of many calls on the slowest rank. Where there are more processes than cores, they take turns: a flag
that travels from one to the next does not mind, and work that all of them do at once is slower by that. A whole update
is the toy's, in `fit` and in a loop written by hand around DDP. What was measured is kept in benchmarks/results/.
"""

import argparse
import json
import os
import re
import statistics
import sys
from pathlib import Path

from benchmarks._harness import RESULTS, in_turn, installed, keep
from benchmarks._ranks_model import pieces, table

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"

SIZES = ("1", "2", "4", "8")
LABELS = {
    "agreement, beside a step": "agreement, beside a step of 50 ms",
    "agreement, at once": "agreement, back to back",
    "agreement, waited for": "agreement that is waited for",
    "merge, 5 metrics": "merge of 5 metrics",
    "merge, 20 metrics": "merge of 20 metrics",
    "gather, checkpoint": "gather for a checkpoint",
    "update, plain loop": "update, DDP by hand",
    "update, fit": "update, fit",
}


def launch(size, how):
    """Becomes torchrun with so many processes; rank 0 prints what they measured."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    os.execv(sys.executable, [sys.executable, *torchrun, "-m", "benchmarks._ranks_work", how])


def run(sizes, passes, how):
    """The results by number of processes, the times of all passes together."""
    done = in_turn("benchmarks.ranks", [(size, how) for _ in range(passes) for size in sizes])
    return {size: _together(done[size, how]) for size in sizes}


def _together(results):
    times = {name: [us for each in results for us in each["us"][name]] for name in results[0]["us"]}
    return {**results[0], "us": times}


def report(found):
    """Medians in µs, with `fit` as a ratio to the loop that is written by hand."""
    medians = {
        size: {name: statistics.median(times) for name, times in each["us"].items()} for size, each in found.items()
    }
    print(f"\ngloo on this machine, medians in µs\n  {'processes':<36}" + "".join(f"{size:>10}" for size in found))
    for name, label in LABELS.items():
        print(f"  {label:<36}" + "".join(f"{each[name]:10.1f}" for each in medians.values()))
    ratios = [each["update, fit"] / each["update, plain loop"] for each in medians.values()]
    print(f"  {'ratio':<36}" + "".join(f"{ratio:10.2f}" for ratio in ratios))
    print(f"  {'descriptors of a process':<36}" + "".join(f"{each['descriptors']:10d}" for each in found.values()))


def newest():
    """What was kept last, by number of processes."""
    paths = sorted(RESULTS.glob("ranks-*.json"))
    if not paths:
        sys.exit("nothing is kept yet: run python -m benchmarks.ranks first")
    return json.loads(paths[-1].read_text())["processes"]


def written(page, found):
    """The text of docs/scaling.md with its figures drawn anew: none of them is typed in by hand."""
    for name, lines in {"measured": pieces(found), "estimate": table(found)}.items():
        drawn = f"<!-- {name} -->\n" + "\n".join(lines) + "\n<!-- end -->"
        page, times = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, drawn=drawn: drawn, page, flags=re.DOTALL)
        if times != 1:
            sys.exit(f"docs/scaling.md has {times} places for what is called {name!r}, and one is expected")
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="numbers of processes (default: 1 2 4 8)")
    parser.add_argument("--passes", type=int, default=2, help="launches for each of them (default: 2)")
    parser.add_argument("--no-file", action="store_true", help="print only, keep nothing in benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="1 and 2 processes, once, print only")
    parser.add_argument("--estimate", action="store_true", help="measure nothing: draw docs/scaling.md anew")
    parser.add_argument("--measure", nargs=2, metavar=("PROCESSES", "HOW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        launch(*arguments.measure)
    if arguments.estimate:
        PAGE.write_text(written(PAGE.read_text(), newest()))
        print("\n".join(table(newest())))
        return
    if arguments.quick:
        report(run(("1", "2"), 1, "quick"))
        return
    found = run(arguments.sizes, arguments.passes, "full")
    report(found)
    if not arguments.no_file:
        keep("ranks", {distribution: installed(distribution) for distribution in ("stoker", "torch")}, processes=found)


if __name__ == "__main__":
    main()
