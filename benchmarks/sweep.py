"""What the cost of a batch depends on, stoker beside the plain indexing loop: rows, batch size, metrics and the rest.

    python -m benchmarks.sweep                      all sweeps
    python -m benchmarks.sweep rows metrics         some of them
    python -m benchmarks.sweep --quick              shows that everything runs; the times mean nothing
    python -m benchmarks.sweep --device cuda        on a GPU

`rows`, `batch` and `accumulate` train the toy's model, `metrics` and `keeping` the digits CNN, `memory` the tabular
MLP. The time of a batch is a difference: a long fit less a short one, so that what a fit does once is not in it.
`keeping` compares a fit in silence with one that has a run directory, checkpoints in the background after each epoch,
and the live display on a terminal. `start` is a fresh process that makes one update of the toy.
"""

import argparse
import json
import statistics

from benchmarks._bars import verdict
from benchmarks._contenders import CONTENDERS, versions_of, why_left_out
from benchmarks._harness import ONE_THREAD, keep, results_of, spread
from benchmarks.fit import check

_BOTH = ("indexing", "stoker")
# sweep: (what is varied, its settings, the contenders)
SWEEPS = {
    "rows": ("rows of data", ["1000", "10000", "100000", "1000000", "10000000"], _BOTH),
    "batch": ("samples in a batch", ["16", "64", "256", "1024", "4096"], _BOTH),
    "accumulate": ("batches to an update", ["1", "4"], _BOTH),
    "metrics": ("metrics", ["all"], ("stoker",)),
    "keeping": ("run directory, checkpoints, console", ["all"], ("stoker",)),
    "start": ("start to the first update", ["toy"], ("dataloader", "indexing", "lightning", "jax", "stoker")),
    "memory": ("rows of data", ["100000", "1000000"], _BOTH),
}
PASSES = {"start": 3}  # else one: the rounds are inside
LATER = 0.3  # seconds that stoker's first update may come after the plain loop's


def run(sweep, *, device="cpu", quick=False):
    """What was measured, by setting and contender; a contender that fell over is told and left out."""
    _, settings, names = SWEEPS[sweep]
    names = [name for name in names if why_left_out(name) is None]
    passes = 1 if quick else PASSES.get(sweep, 1)
    settings = settings[:1] if quick else settings
    size = "quick" if quick else "full"
    tasks = [(sweep, setting, name, device, size) for setting in settings for _ in range(passes) for name in names]
    environment = ONE_THREAD if device == "cpu" else {}
    found = {setting: {} for setting in settings}
    for (_, setting, name, *_), result, failure in results_of("benchmarks.sweep", tasks, environment=environment):
        if failure is not None:
            print(f"  {name} fell over at {sweep} {setting}: {failure.strip().splitlines()[-1]}")
        elif isinstance(result, dict):
            known = found[setting].setdefault(name, {key: [] for key in result})
            for key, value in result.items():
                known[key] += value if isinstance(value, list) else [value]
        else:
            found[setting].setdefault(name, []).extend(result)
    return found


def report(sweep, found):
    """A sweep as a table, and its bar."""
    print(f"\n{sweep}: {SWEEPS[sweep][0]}")
    if sweep in ("rows", "batch", "accumulate"):
        _report_pairs(found)
    elif sweep in ("metrics", "keeping"):
        if "stoker" in found["all"]:
            _report_settings(sweep, found["all"]["stoker"])
    else:
        _report_quantities(found)
    if sweep == "start":
        _judge_start(found["toy"])


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
    ratios = {setting: beside(times, measured[base]) for setting, times in measured.items()}
    print(f"  {'':>10} {'µs/batch':>26}  × {base}, medians of rounds")
    for setting, times in measured.items():
        print(f"  {setting:>10}   {spread(times)}  {ratios[setting]:.3f}")
    most, limit = {"metrics": ("20", 1.05), "keeping": ("on", 1.02)}[sweep]
    print(f"  {verdict(f'{most} instead of {base}', ratios[most], limit)}")


def beside(times, others):
    """The ratio of two settings: of each round by itself, since a machine's minutes differ by more than they do."""
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


def _report_quantities(found):
    for setting, measured in found.items():
        for name, quantities in measured.items():
            told = ", ".join(
                f"{key.replace(', ', ' ')}: {statistics.median(each):.2f}" for key, each in quantities.items()
            )
            print(f"  {setting:>10}  {CONTENDERS[name].label:<42} {told}")


def _judge_start(measured):
    if measured.keys() >= {"indexing", "stoker"}:
        for what in ("process, s", "after imports, s"):
            plain, own = (statistics.median(measured[name][what]) for name in _BOTH)
            met = "met" if own <= plain + LATER else "NOT met"
            print(f"  stoker {own - plain:+.2f} s beside indexing, {what.split(',')[0]}; bar ≤ +{LATER} s: {met}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sweeps", nargs="*", metavar="sweep", help=f"of {', '.join(SWEEPS)} (default: all)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--quick", action="store_true", help="one setting of each, short, nothing kept")
    parser.add_argument("--no-file", action="store_true", help="print only, keep nothing in benchmarks/results/")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        from benchmarks._sweeps import measure

        *task, device, size = arguments.measure
        short = {"rounds": 1, "seconds": 0.05} if size == "quick" else {}
        print(json.dumps(measure(*task, device=device, **short)))
        return
    check(parser, "sweep", arguments.sweeps, SWEEPS)
    kept = {}
    for sweep in arguments.sweeps or SWEEPS:
        kept[sweep] = run(sweep, device=arguments.device, quick=arguments.quick)
        report(sweep, kept[sweep])
    if not (arguments.no_file or arguments.quick):
        names = {name for _, _, names in SWEEPS.values() for name in names}
        found = {"device": arguments.device, "sweeps": kept}
        keep(f"sweep-{arguments.device}", versions_of(names), beside_others=True, **found)


if __name__ == "__main__":
    main()
