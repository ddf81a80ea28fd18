"""`fit` compared with plain loops, Lightning and JAX on a GPU: µs per update, and ratios.

    python -m benchmarks.gpu                                    everything, about 15 minutes
    python -m benchmarks.gpu --workload digits                  one workload; each adds to the same file
    python -m benchmarks.gpu --workload gpt --contender compile,stoker-compile
    python -m benchmarks.gpu --device cpu --tiny                checks that everything runs, on any machine

Every contender runs in its own process. The time of an update is taken inside one fit, from the end of one epoch
to the end of a later one, each after a synchronisation, after a warm-up epoch. `start` is the time before that (Python,
imports, set-up, compilation, capture); `program` is the whole fit including it. Memory is the maximum that torch has
reserved (JAX: has used). A contender that makes another number of updates, or does not end at the loss of the plain
loop, is refused. Results are written after each contender, so that a time limit loses nothing.
"""

import argparse
import json
import shutil
import statistics
import subprocess
from datetime import date
from pathlib import Path

from benchmarks._compare import EAGER, accepted, compare, measure, report, versions_of, why_missing
from benchmarks._harness import ONE_THREAD, RESULTS, check_names, machine, write_json

_PLAIN, _STOKER, _JAX = [*EAGER, "compile"], ["stoker", "stoker-compile"], ["jax", "jax-scan"]
_TF32 = ["stoker-tf32", "stoker-compile-tf32"]  # JAX's default precision
WORKLOADS = {
    "digits": [*_PLAIN, *_STOKER, *_TF32, "stoker-tuned", *_JAX, "lightning"],
    "resnet": [*_PLAIN, *_STOKER],
    "gpt": [*_PLAIN, *_STOKER, "stoker-fsdp", "stoker-fsdp-bf16"],
    "tabular": [*_PLAIN, *_STOKER, *_TF32, *_JAX],
}


def main():
    arguments = _parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    default = None if arguments.tiny else RESULTS / f"gpu-{date.today()}.json"
    for work_name in arguments.workload or WORKLOADS:
        names = [name for name in WORKLOADS[work_name] if not arguments.contender or name in arguments.contender]
        run_workload(work_name, names, arguments, arguments.to or default)


def run_workload(work_name, names, arguments, path):
    """Measures one workload, writes to `path` after each contender, and prints the table."""
    from benchmarks._workloads import workload

    work = workload(work_name, device=arguments.device, tiny=arguments.tiny)
    work.data()  # data that is drawn once for all processes is drawn here
    for line in filter(None, map(why_missing, names)):
        print(line)
    names = [name for name in names if not why_missing(name)]

    def after_each(name, found, failed):
        if name in found:
            print(f"  {name}: {statistics.median(found[name]['µs per update']):.1f} µs/update", flush=True)
        if path is not None:
            result = {"text": work.text, "contenders": accepted(work, found), "failed": failed}
            heading = {"machine": {**machine(), "gpu": gpu_name()}, "device": work.device}
            everything = {**heading, "versions": versions_of(names), "workloads": {work_name: result}}
            write_json(path, everything, merge=True)

    print(f"{work_name}: {work.text}")
    found, _ = compare(
        *("benchmarks.gpu", work, names, arguments.passes),
        environment=ONE_THREAD if work.device == "cpu" else {},
        seconds=arguments.limit,
        after_each=after_each,
    )
    report(work, {**earlier_results(path, work_name), **found})
    if path is not None:
        print(f"\nwritten to {path}")


def earlier_results(path, work_name):
    """What the file already holds of a workload, from earlier calls."""
    if path is None or not path.exists():
        return {}
    return json.loads(path.read_text())["workloads"].get(work_name, {}).get("contenders", {})


def gpu_name():
    """The name of the GPU, found without using its memory; `None` without a GPU."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def _parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    names = sorted({name for each in WORKLOADS.values() for name in each})

    def several(text):
        return text.split(",")

    parser.add_argument("--workload", type=several, default=[], help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument("--contender", type=several, default=[], help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--passes", type=int, default=1, help="processes for each contender (default: 1)")
    parser.add_argument("--limit", type=float, default=240, help="seconds for a process (default: 240)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes; writes a file only with --to")
    parser.add_argument("--to", type=Path, metavar="FILE", help="default: benchmarks/results/gpu-DATE.json")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check_names(parser, "workload", arguments.workload, WORKLOADS)
    check_names(parser, "contender", arguments.contender, names)
    return arguments


if __name__ == "__main__":
    main()
