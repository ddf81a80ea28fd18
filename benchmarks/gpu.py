"""`fit` on a GPU beside plain loops, Lightning and JAX: the same work in one run, as µs per update and ratios.

    python -m benchmarks.gpu                                    everything, in a quarter of an hour
    python -m benchmarks.gpu --workload digits                  a part; each adds to the same file
    python -m benchmarks.gpu --workload gpt --contender compile,stoker-compile
    python -m benchmarks.gpu --device cpu --tiny                shows that everything runs, on any machine

Every contender runs in a process of its own. The time of an update is taken inside one fit, from the end of an epoch to
the end of a later one, each read after the device is done, after a warm-up epoch; `start` is what went before (Python,
imports, set-up, compilation, capture), `program` the whole fit with it. Memory is the most that torch had reserved
(JAX: had in use). A contender that does not make as many updates as it was asked for, or does not come to the plain
loop's loss, is refused. What was measured is written after each contender: nothing is lost where time runs out.
"""

import argparse
import json
import shutil
import statistics
import subprocess
from datetime import date
from pathlib import Path

from benchmarks._board import report, run, sound
from benchmarks._contenders import EAGER, versions_of, why_left_out
from benchmarks._harness import ONE_THREAD, RESULTS, append, machine
from benchmarks.fit import check

_PLAIN, _STOKER, _JAX = [*EAGER, "compile"], ["stoker", "stoker-compile"], ["jax", "jax-scan"]
_TF32 = ["stoker-tf32", "stoker-compile-tf32"]  # JAX's default precision
WORKLOADS = {
    "digits": [*_PLAIN, *_STOKER, *_TF32, "stoker-tuned", *_JAX, "lightning"],
    "resnet": [*_PLAIN, *_STOKER],
    "gpt": [*_PLAIN, *_STOKER, "stoker-fsdp", "stoker-fsdp-bf16"],
    "tabular": [*_PLAIN, *_STOKER, *_TF32, *_JAX],
}


def main():
    arguments = _arguments()
    if arguments.measure:
        from benchmarks._measure import measure

        name, work_name, device, size = arguments.measure
        print(json.dumps(measure(name, work_name, device=device, tiny=size == "tiny")))
        return
    default = None if arguments.tiny else RESULTS / f"gpu-{date.today()}.json"
    for work_name in arguments.workload or WORKLOADS:
        names = [name for name in WORKLOADS[work_name] if not arguments.contender or name in arguments.contender]
        compare(work_name, names, arguments, arguments.to or default)


def compare(work_name, names, arguments, path):
    """One workload: measured, written into `path` after each contender, and told."""
    from benchmarks._workloads import workload

    work = workload(work_name, device=arguments.device, tiny=arguments.tiny)
    work.data()  # what is drawn once is drawn now
    for line in filter(None, map(why_left_out, names)):
        print(line)
    names = [name for name in names if not why_left_out(name)]

    def after(name, found, failed):
        if name in found:
            print(f"  {name}: {statistics.median(found[name]['µs per update']):.1f} µs/update", flush=True)
        if path is not None:
            kept = {"text": work.text, "contenders": sound(work, found), "failed": failed}
            heading = {"machine": {**machine(), "gpu": gpu()}, "device": work.device, "versions": versions_of(names)}
            append(path, {**heading, "workloads": {work_name: kept}})

    print(f"{work_name}: {work.text}")
    found, _ = run(
        *("benchmarks.gpu", work, names, arguments.passes),
        environment=ONE_THREAD if work.device == "cpu" else {},
        seconds=arguments.limit,
        after=after,
    )
    report(work, {**earlier(path, work_name), **found})
    if path is not None:
        print(f"\nkept in {path}")


def earlier(path, work_name):
    """What a file holds already of a workload, from the parts that ran before."""
    if path is None or not path.exists():
        return {}
    return json.loads(path.read_text())["workloads"].get(work_name, {}).get("contenders", {})


def gpu():
    """Its name, asked without taking memory of it; None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or None


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    names = sorted({name for each in WORKLOADS.values() for name in each})

    def several(text):
        return text.split(",")

    parser.add_argument("--workload", type=several, default=[], help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--contender", type=several, default=[], help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--passes", type=int, default=1, help="processes for each contender (default: 1)")
    parser.add_argument("--limit", type=float, default=240, help="seconds for a process (default: 240)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, nothing kept unless --to says where")
    parser.add_argument(
        "--to",
        type=Path,
        metavar="FILE",
        help="what was measured goes there (default: benchmarks/results/gpu-DATE.json)",
    )
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check(parser, "workload", arguments.workload, WORKLOADS)
    check(parser, "contender", arguments.contender, names)
    return arguments


if __name__ == "__main__":
    main()
