"""Runs random programs: `python -m simulated_cuda -m tests.random_programs SEED...`, or with `--seconds 600`."""

import argparse
import os
import sys
import time

import torch

from tests.random_programs import Different, check_seed, draw


def main() -> None:
    """Checks the programs of the given seeds, or of one seed after another for some time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--from", dest="first", type=int, default=None)
    parser.add_argument("--show", action="store_true", help="prints the scripts instead of running them")
    parser.add_argument("--whole", action="store_true", help="does not simplify programs that fail")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic=True
    os.fsync = lambda file: None
    first = time.time_ns() % 10**9 if arguments.first is None else arguments.first
    seeds, until, failed, count = list(arguments.seeds), time.monotonic() + arguments.seconds, 0, 0
    while seeds or time.monotonic() < until:
        seed, first = (seeds.pop(0), first) if seeds else (first, first + 1)
        if arguments.show:
            print(draw(seed).script())
            continue
        count += 1
        try:
            check_seed(seed, simplified=not arguments.whole)
        except Different as error:
            failed += 1
            print(f"\n===== {error}\n", flush=True)
    print(f"{count} programs, {failed} failed; the next seed is {first}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
