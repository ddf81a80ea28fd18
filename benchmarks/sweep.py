"""How the time of a batch depends on rows, batch size, metrics and more: stoker and the plain indexing loop.

    python -m benchmarks.sweep                      all sweeps
    python -m benchmarks.sweep rows metrics         some of them
    python -m benchmarks.sweep --quick              checks that everything runs; the times mean nothing
    python -m benchmarks.sweep --device cuda        on a GPU

`rows`, `batch` and `accumulate` train the toy's model, `metrics` and `keeping` the digits CNN, `memory` the tabular
MLP. The time of a batch is a difference: a long fit minus a short one, without what a fit does once. `keeping` compares
a fit without output with one that has a run directory, background checkpoints after each epoch, and the live display on
a terminal. `start` is a new process that makes one update of the toy.
"""

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import tempfile
from dataclasses import replace
from itertools import count
from pathlib import Path

from benchmarks._compare import CONTENDERS, check_target, load_fit, versions_of, why_missing
from benchmarks._harness import (
    ONE_THREAD,
    Clock,
    check_names,
    run_tasks,
    save_results,
    seconds_since_start,
    spread,
    timed,
    use_one_thread,
)

_BOTH = ("indexing", "stoker")
# sweep: (what varies, its settings, the contenders)
SWEEPS = {
    "rows": ("rows of data", ["1000", "10000", "100000", "1000000", "10000000"], _BOTH),
    "batch": ("samples in a batch", ["16", "64", "256", "1024", "4096"], _BOTH),
    "accumulate": ("batches to an update", ["1", "4"], _BOTH),
    "metrics": ("metrics", ["all"], ("stoker",)),
    "keeping": ("run directory, checkpoints, console", ["all"], ("stoker",)),
    "start": ("start to the first update", ["toy"], ("dataloader", "indexing", "lightning", "jax", "stoker")),
    "memory": ("rows of data", ["100000", "1000000"], _BOTH),
}
PASSES = {"start": 3}  # the other sweeps repeat inside one process
MOST_EXTRA_START = 0.3  # seconds that stoker's first update may come after the plain loop's
SHORT_FIT = 40  # batches of the fit that is subtracted

# --- measuring, in one process for each setting and contender


def measure(sweep, setting, name, *, device="cpu", rounds=None, seconds=1.0):
    """The numbers of one setting of a sweep, for one contender."""
    if device == "cpu":
        use_one_thread()
    if sweep == "start":
        return measure_start(name, device)
    if sweep == "memory":
        return measure_memory(int(setting), name, device)
    if sweep in ("metrics", "keeping"):
        return measure_settings(sweep, device, rounds or 21, seconds)
    work, accumulate = varied_toy(sweep, int(setting), device)
    return time_batches({setting: make_trainer(name, work, accumulate=accumulate)}, rounds or 3, seconds)[setting]


def varied_toy(sweep, setting, device):
    """The toy's model on random numbers, with the rows or batch size of the setting; and the batches to an update."""
    import torch

    from benchmarks._workloads import workload

    sizes = {"rows": 100_000, "batch": 100, "accumulate": 1, sweep: setting}
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(sizes["rows"], 3, generator=generator), torch.randn(sizes["rows"], 1, generator=generator)
    toy = workload("toy", device=device)
    return replace(toy, make=lambda: data, samples=sizes["rows"], batch=sizes["batch"]), sizes["accumulate"]


def make_trainer(name, work, *, accumulate=1, fit_settings=None, **settings):
    """A function that trains a new model for a number of batches; `settings` are the Learner's."""
    return (
        _plain_trainer(work, accumulate)
        if name == "indexing"
        else _stoker_trainer(work, accumulate, fit_settings, settings)
    )


def _plain_trainer(work, accumulate):
    import torch

    x, y = work.data_on_device()

    def train(batches):
        model, done = work.model(), 0
        optimizer = work.optimizer(model)
        while done < batches:
            order = torch.randperm(len(x), device=x.device)
            for rows in order.split(work.batch)[: batches - done]:
                (work.loss(model(x[rows]), y[rows]) / accumulate).backward()
                done += 1
                if done % accumulate == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    return train


def _stoker_trainer(work, accumulate, fit_settings, settings):
    from benchmarks.peers.stoker import make_learner

    data = work.data()

    def train(batches):
        learner = make_learner(work, accumulate=accumulate, **settings)
        given = {"show": False} if fit_settings is None else fit_settings()
        learner.fit(data, updates=batches // accumulate, batch_size=work.batch, **given)

    return train


def time_batches(trainers, rounds, seconds):
    """µs for a batch, by trainer: a long fit minus a short one; the trainers take turns in every round."""
    batches = {}
    for key, train in trainers.items():
        timed_fit(train, SHORT_FIT)
        each = max(timed_fit(train, 3 * SHORT_FIT) - timed_fit(train, SHORT_FIT), 1e-6) / (2 * SHORT_FIT)
        batches[key] = max(SHORT_FIT, round(seconds / each / SHORT_FIT) * SHORT_FIT)
    found = {key: [] for key in trainers}
    for _ in range(rounds):
        for key, train in trainers.items():
            extra = timed_fit(train, SHORT_FIT + batches[key]) - timed_fit(train, SHORT_FIT)
            found[key].append(extra / batches[key] * 1e6)
    return found


def timed_fit(train, batches):
    import torch

    def fit():
        train(batches)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    return timed(fit)


def measure_settings(sweep, device, rounds, seconds):
    """µs for a batch of the digits, by setting. All in one process: small differences need the same minute."""
    from benchmarks._workloads import workload

    work = workload("digits", device=device)
    data = work.data()
    work = replace(work, make=lambda: data)
    if sweep == "metrics":
        settings = {str(many): {"metrics": twenty_metrics()[:many]} for many in (0, 5, 20)}
        trainers = {key: make_trainer("stoker", work, **each) for key, each in settings.items()}
        return time_batches(trainers, rounds, seconds)
    with tempfile.TemporaryDirectory() as folder, terminal() as screen, contextlib.redirect_stdout(screen):
        runs = (Path(folder) / str(number) for number in count())
        trainers = {
            "off": make_trainer("stoker", work),
            "on": make_trainer("stoker", work, fit_settings=lambda: {"run": next(runs), "show": True}),
        }
        return time_batches(trainers, rounds, seconds)


def twenty_metrics():
    from stoker import metrics

    averages = ("macro", "micro", "none")
    return [
        *(metrics.Accuracy(), metrics.Hamming(), metrics.Precision(), metrics.Recall(), metrics.FBeta()),
        *(metrics.TopKAccuracy(k) for k in range(2, 9)),
        *(metric(average) for metric in (metrics.Precision, metrics.Recall) for average in averages[1:]),
        *(metrics.FBeta(1.0, average) for average in averages[1:]),
        *(metrics.FBeta(2.0, average) for average in averages[:2]),
    ]


@contextlib.contextmanager
def terminal():
    """A stream on a pseudo-terminal that another process reads, so that the live display is drawn in full."""
    reading_end, writing_end = os.openpty()
    os.environ["TERM"] = "xterm-256color"
    reader = subprocess.Popen(["cat"], stdin=reading_end, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(reading_end)
    try:
        with os.fdopen(writing_end, "w") as screen:
            yield screen
    finally:
        reader.kill()
        reader.wait()


def measure_start(name, device):
    """Seconds until the first update of the toy is done: of the whole process, and after the imports."""
    from benchmarks._workloads import workload

    toy = workload("toy", device=device)
    x, y = toy.data()
    one_batch = replace(toy, make=lambda: (x[: toy.batch], y[: toy.batch]), samples=toy.batch)
    fit, imported = load_fit(name), seconds_since_start()
    clock = Clock(device)
    fit(one_batch, 1, clock)
    return {"process, s": clock.marks[0], "after imports, s": clock.marks[0] - imported}


def measure_memory(rows, name, device):
    """Peak megabytes after a few batches of the table with that many rows."""
    from benchmarks._workloads import table, workload

    data = table(rows)
    work = replace(workload("tabular", device=device), make=lambda: data, samples=rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    make_trainer(name, work)(SHORT_FIT)
    if device == "cuda":
        import torch

        return {"MB": torch.cuda.max_memory_reserved() / 1e6}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"MB": most / 1e3, "over the data, MB": (most - before) / 1e3}


# --- running and reporting


def run(sweep, *, device="cpu", quick=False):
    """The results by setting and contender; prints a line for a contender that failed."""
    _, settings, names = SWEEPS[sweep]
    names = [name for name in names if why_missing(name) is None]
    passes = 1 if quick else PASSES.get(sweep, 1)
    settings = settings[:1] if quick else settings
    size = "quick" if quick else "full"
    tasks = [(sweep, setting, name, device, size) for setting in settings for _ in range(passes) for name in names]
    found = {setting: {} for setting in settings}
    environment = ONE_THREAD if device == "cpu" else {}
    for (_, setting, name, *_), result, failure in run_tasks("benchmarks.sweep", tasks, environment=environment):
        if failure is not None:
            print(f"  {name} failed at {sweep} {setting}: {failure.strip().splitlines()[-1]}")
        elif isinstance(result, dict):
            known = found[setting].setdefault(name, {key: [] for key in result})
            for key, value in result.items():
                known[key] += value if isinstance(value, list) else [value]
        else:
            found[setting].setdefault(name, []).extend(result)
    return found


def report(sweep, found):
    """Prints a sweep as a table, with its target."""
    print(f"\n{sweep}: {SWEEPS[sweep][0]}")
    if sweep in ("rows", "batch", "accumulate"):
        _report_pairs(found)
    elif sweep in ("metrics", "keeping"):
        if "stoker" in found["all"]:
            _report_settings(sweep, found["all"]["stoker"])
    else:
        _report_quantities(found)
    if sweep == "start":
        _check_start(found["toy"])


def _report_pairs(found):
    first = None
    print(f"  {'':>10} {'indexing, µs/batch':>26} {'stoker, µs/batch':>26}  stoker × indexing  stoker × its first")
    for setting, measured in found.items():
        if measured.keys() >= {*_BOTH}:
            plain, own = (statistics.median(measured[name]) for name in _BOTH)
            first = first or own
            both = "  ".join(spread(measured[name]) for name in _BOTH)
            print(f"  {int(setting):>10,}   {both}  {own / plain:17.3f}  {own / first:18.3f}")


def _report_settings(sweep, measured):
    base = next(iter(measured))
    # The ratio is taken in each round, since minutes of the machine differ by more than the settings do.
    ratios = {
        setting: statistics.median(one / other for one, other in zip(times, measured[base], strict=True))
        for setting, times in measured.items()
    }
    print(f"  {'':>10} {'µs/batch':>26}  × {base}, medians of rounds")
    for setting, times in measured.items():
        print(f"  {setting:>10}   {spread(times)}  {ratios[setting]:.3f}")
    most, limit = {"metrics": ("20", 1.05), "keeping": ("on", 1.02)}[sweep]
    print(f"  {check_target(f'{most} instead of {base}', ratios[most], limit)}")


def _report_quantities(found):
    for setting, measured in found.items():
        for name, quantities in measured.items():
            text = ", ".join(
                f"{key.replace(', ', ' ')}: {statistics.median(each):.2f}" for key, each in quantities.items()
            )
            print(f"  {setting:>10}  {CONTENDERS[name].label:<42} {text}")


def _check_start(measured):
    if measured.keys() >= {*_BOTH}:
        for what in ("process, s", "after imports, s"):
            plain, own = (statistics.median(measured[name][what]) for name in _BOTH)
            met = "met" if own <= plain + MOST_EXTRA_START else "NOT met"
            difference = f"stoker {own - plain:+.2f} s relative to indexing, {what.split(',')[0]}"
            print(f"  {difference}; target ≤ +{MOST_EXTRA_START} s: {met}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sweeps", nargs="*", metavar="sweep", help=f"of {', '.join(SWEEPS)} (default: all)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="one setting of each, short, no file")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        *task, device, size = arguments.measure
        short = {"rounds": 1, "seconds": 0.05} if size == "quick" else {}
        print(json.dumps(measure(*task, device=device, **short)))
        return
    check_names(parser, "sweep", arguments.sweeps, SWEEPS)
    results = {}
    for sweep in arguments.sweeps or SWEEPS:
        results[sweep] = run(sweep, device=arguments.device, quick=arguments.quick)
        report(sweep, results[sweep])
    if not (arguments.no_file or arguments.quick):
        names = {name for _, _, names in SWEEPS.values() for name in names}
        found = {"device": arguments.device, "sweeps": results}
        save_results(f"sweep-{arguments.device}", versions_of(names), merge=True, **found)


if __name__ == "__main__":
    main()
