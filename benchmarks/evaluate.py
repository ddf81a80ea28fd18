"""`Fitted.predict` and `Fitted.evaluate` compared with plain loops over the same rows, as µs per batch and ratios.

    make bench                                   both, with batches of 32 and of 1,024
    python -m benchmarks.evaluate --help         one of them, fewer rows or rounds, no file

The model is small, so that what surrounds it shows. The plain loop slices the columns and, to evaluate, adds up the
loss and the right predictions. Both run in one process and in turns, so that a slow second affects both. The time is
CPU time of one thread. Results are written to benchmarks/results/.
"""

import argparse
import json
import statistics
import time

from benchmarks._harness import check_names, collect, save_results, use_one_thread, versions

TASKS = {"predict": "the outputs for all rows", "evaluate": "the loss and the accuracy"}
ROWS, COLUMNS, BATCHES = 200_000, 16, (32, 1024)


def make_contenders(task, batch_size, rows):
    """A plain loop and stoker's method, as functions without arguments that return the same."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import stoker
    from stoker import metrics, optim

    torch.manual_seed(0)
    x = torch.randn(rows, COLUMNS)
    y = (x.sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(COLUMNS, 32), nn.ReLU(), nn.Linear(32, 2))
    learner = stoker.Learner(
        model, loss=nn.CrossEntropyLoss(), optimizer=optim.SGD(), lr=0.1, metrics=[metrics.Accuracy()], seed=0
    )
    fitted = learner.fit((x[:1024], y[:1024]), epochs=1, batch_size=32, show=False)

    def batches():
        for start in range(0, rows, batch_size):
            yield x[start : start + batch_size], y[start : start + batch_size]

    @torch.no_grad()
    def predict():
        return torch.cat([model(inputs) for inputs, _ in batches()])

    @torch.no_grad()
    def evaluate():
        loss, right = 0.0, 0
        for inputs, targets in batches():
            logits = model(inputs)
            loss += F.cross_entropy(logits, targets).item() * len(targets)
            right += (logits.argmax(1) == targets).sum().item()
        return {"loss": loss / rows, "accuracy": right / rows}

    if task == "predict":
        return {"plain": predict, "stoker": lambda: fitted.predict(x, batch_size=batch_size)}
    return {"plain": evaluate, "stoker": lambda: fitted.evaluate((x, y), batch_size=batch_size)}


def measure(task, batch_size, rows, rounds):
    """µs per batch, one number for each round over all rows."""
    import torch

    use_one_thread()
    contenders = make_contenders(task, batch_size, rows)
    found = {each: [] for each in contenders}
    for round_ in range(rounds + 1):
        results = []
        for each, run in contenders.items():
            start = time.process_time()
            results.append(run())
            if round_:  # the first one warms up
                found[each].append((time.process_time() - start) / (rows / batch_size) * 1e6)
        torch.testing.assert_close(*results)
    return found


def report(found, rows):
    print(f"\n{rows:,} rows of {COLUMNS} numbers; one thread, µs per batch (medians); the ratio is that of each round")
    print(f"  {'':<42} {'batch':>7} {'plain loop':>11} {'stoker':>8} {'ratio':>7}")
    for task, by_size in found.items():
        for size, times in by_size.items():
            plain, stoker = times["plain"], times["stoker"]
            ratio = statistics.median(ours / theirs for ours, theirs in zip(stoker, plain, strict=True))
            medians = f"{statistics.median(plain):11.1f} {statistics.median(stoker):8.1f}"
            print(f"  {f'{task}: {TASKS[task]}':<42} {size:>7} {medians} {ratio:7.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("tasks", nargs="*", metavar="task", help=f"of {', '.join(TASKS)} (default: both)")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"rows of data (default: {ROWS})")
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each contender (default: 7)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--measure", nargs=4, metavar=("TASK", "BATCH", "ROWS", "ROUNDS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        task, batch_size, rows, rounds = arguments.measure
        print(json.dumps(measure(task, int(batch_size), int(rows), int(rounds))))
        return
    check_names(parser, "task", arguments.tasks, TASKS)
    names = arguments.tasks or list(TASKS)
    tasks = [(name, str(size), str(arguments.rows), str(arguments.rounds)) for name in names for size in BATCHES]
    found = {name: {} for name in names}
    for (name, size, *_), [result] in collect("benchmarks.evaluate", tasks).items():
        found[name][size] = result
    report(found, arguments.rows)
    if not arguments.no_file:
        save_results("evaluate", versions("torch", "stoker"), **{"µs per batch": found})


if __name__ == "__main__":
    main()
