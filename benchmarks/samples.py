"""Reading samples: stoker's `Loader` compared with torch's `DataLoader`, as µs per batch of 32 and ratios.

    make bench                                  all sources, without and with two workers
    python -m benchmarks.samples --help         one source, fewer rounds, no file

Both read the same source in a random order, in one process and in turns, so that a slow second affects both. The time
without workers is CPU time, since the machine may do other things; with workers it is the time that passes, and covers
whole epochs: the start of the workers, too. Results are written to benchmarks/results/.
"""

import argparse
import json
import statistics
import time

from benchmarks._harness import check_names, collect, save_results, use_one_thread, versions

SOURCES = {
    "dataset": "Dataset of tensors: 3 × 32 × 32, and a label",
    "list": "list of tuples: the same samples",
    "mapping": "Dataset of mappings: the same samples",
    "augmented": "Dataset with random flips, crops and noise, by torch",
    "small": "list of tuples: 8 numbers, and a label",
}
SAMPLES, BATCH = 2048, 32
WORKERS = (0, 2)


def make_source(name):
    import torch
    from torch.utils.data import Dataset

    x, y = torch.randn(SAMPLES, 3, 32, 32), torch.randint(0, 10, (SAMPLES,))

    class Samples(Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, number):
            return x[number], y[number]

    class Mappings(Samples):
        def __getitem__(self, number):
            return {"x": x[number], "y": y[number]}

    class Augmented(Samples):
        def __getitem__(self, number):
            image = torch.nn.functional.pad(x[number], (4, 4, 4, 4))
            top, left = torch.randint(0, 9, (2,)).tolist()
            image = image[:, top : top + 32, left : left + 32]
            if torch.rand(()) < 0.5:
                image = image.flip(-1)
            return image + 0.1 * torch.randn(image.shape), y[number]

    if name == "small":
        return [(row, number % 3) for number, row in enumerate(torch.randn(SAMPLES, 8))]
    if name == "list":
        return list(zip(x, y, strict=True))
    return {"dataset": Samples, "mapping": Mappings, "augmented": Augmented}[name]()


def measure(name, workers, rounds):
    """µs per batch, one number for each round of an epoch."""
    from torch.utils.data import DataLoader

    from stoker.data import Loader

    use_one_thread()
    source, clock = make_source(name), time.perf_counter if workers else time.process_time
    contenders = {
        "torch": DataLoader(source, batch_size=BATCH, shuffle=True, num_workers=workers),
        "stoker": Loader(source, batch_size=BATCH, shuffle=0, workers=workers),
    }
    found = {each: [] for each in contenders}
    for round_ in range(rounds + 1):
        for each, loader in contenders.items():
            start = clock()
            batches = sum(1 for _ in loader)
            if round_:  # the first one warms up
                found[each].append((clock() - start) / batches * 1e6)
    return found


def report(found):
    print(f"\nbatches of {BATCH}; one thread, µs per batch (medians); the ratio is the median of those of each round")
    print(f"  {'':<58} {'workers':>7} {'DataLoader':>11} {'Loader':>8} {'ratio':>7}")
    for name, by_workers in found.items():
        for workers, times in by_workers.items():
            torch, stoker = times["torch"], times["stoker"]
            ratio = statistics.median(ours / theirs for ours, theirs in zip(stoker, torch, strict=True))
            medians = f"{statistics.median(torch):11.0f} {statistics.median(stoker):8.0f}"
            print(f"  {SOURCES[name]:<58} {workers:>7} {medians} {ratio:7.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sources", nargs="*", metavar="source", help=f"of {', '.join(SOURCES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="timed epochs of each contender (default: 15)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--measure", nargs=3, metavar=("SOURCE", "WORKERS", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, workers, rounds = arguments.measure
        print(json.dumps(measure(name, int(workers), int(rounds))))
        return
    check_names(parser, "source", arguments.sources, SOURCES)
    names = arguments.sources or list(SOURCES)
    tasks = [(name, str(workers), str(arguments.rounds)) for name in names for workers in WORKERS]
    found = {name: {} for name in names}
    for (name, workers, _), [result] in collect("benchmarks.samples", tasks).items():
        found[name][workers] = result
    report(found)
    if not arguments.no_file:
        save_results("samples", versions("torch", "stoker"), **{"µs per batch": found})


if __name__ == "__main__":
    main()
