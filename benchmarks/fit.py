"""`fit` beside the loops and libraries that people train with: the same work in one run, as µs per update and ratios.

    make bench                                    every workload, every contender that is installed
    python -m benchmarks.fit toy                  one workload
    python -m benchmarks.fit toy -c keras,ignite  some contenders, beside the plain loops
    python -m benchmarks.fit --quick              shows that everything runs; the times mean nothing

Every contender runs in processes of its own, one after the other and several times over, on one thread, with bars,
logs and checkpoints off. The time of an update is taken inside one fit, from the end of an epoch to the end of a later
one, after a warm-up; `start` is what went before (Python, imports, set-up, compilation), `program` the whole fit with
it. A contender that does not make as many updates as it was asked for, or does not come to the plain loop's loss, is
refused.
"""

import argparse
import json

from benchmarks._board import report, run, sound
from benchmarks._contenders import CONTENDERS, EAGER, versions_of, why_left_out
from benchmarks._harness import keep

WORKLOADS = {"toy": 2, "digits": 2, "tabular": 1}  # passes: processes for each contender
ON_THE_CPU = [name for name, each in CONTENDERS.items() if each.precision is None and "fsdp" not in name]


def contenders_of(work_name, wanted=()):
    """Those that are measured at a workload: the plain loops always, the others where they are wanted."""
    names = [name for name in ON_THE_CPU if work_name == "toy" or not CONTENDERS[name].toy_only]
    return [name for name in names if not wanted or name in (*EAGER, *wanted)]


def main():
    arguments = _arguments()
    if arguments.measure:
        from benchmarks._measure import measure

        name, work_name, device, size = arguments.measure
        print(json.dumps(measure(name, work_name, device=device, tiny=size == "tiny")))
        return
    from benchmarks._workloads import workload

    missing = {name: line for name in ON_THE_CPU if (line := why_left_out(name))}
    for line in missing.values():
        print(line)
    kept, measured = {}, set()
    for work_name in arguments.workloads or WORKLOADS:
        work = workload(work_name, tiny=arguments.quick)
        work.data()  # what is drawn once is drawn now
        names = [name for name in contenders_of(work_name, arguments.contenders) if name not in missing]
        passes = 1 if arguments.quick else arguments.passes or WORKLOADS[work_name]
        found, failed = run("benchmarks.fit", work, names, passes)
        report(work, found)
        found = sound(work, found)
        measured |= found.keys()
        kept[work_name] = {"text": work.text, "contenders": found, "failed": failed}
    if not (arguments.no_file or arguments.quick):
        keep("fit", versions_of(measured), beside_others=True, device="cpu", workloads=kept)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="workload", help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument(
        *("-c", "--contenders"),
        type=lambda text: text.split(","),
        default=[],
        metavar="NAMES",
        help=f"of {', '.join(ON_THE_CPU)}, with commas (default: all)",
    )
    parser.add_argument("--passes", type=int, help="processes for each contender (default: 2; tabular 1)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once, nothing kept")
    parser.add_argument("--no-file", action="store_true", help="print only, keep nothing in benchmarks/results/")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check(parser, "workload", arguments.workloads, WORKLOADS)
    check(parser, "contender", arguments.contenders, ON_THE_CPU)
    return arguments


def check(parser, what, given, known):
    """Ends with a line that names what is not there."""
    unknown = [each for each in given if each not in known]
    if unknown:
        parser.error(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")


if __name__ == "__main__":
    main()
