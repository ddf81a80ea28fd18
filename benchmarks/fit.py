"""`fit` compared with plain loops and other libraries on the CPU: µs per update, and ratios.

    make bench                                    every workload, every contender that is installed
    python -m benchmarks.fit toy                  one workload
    python -m benchmarks.fit toy -c keras,ignite  some contenders, with the plain loops
    python -m benchmarks.fit --quick              checks that everything runs; the times mean nothing

Every contender runs several times, each time in a new process, one after the other, on one thread, with progress bars,
logs and checkpoints off. The time of an update is taken inside one fit, from the end of one epoch to the end of a later
one, after a warm-up. `start` is the time before that (Python, imports, set-up, compilation); `program` is the whole fit
including it. A contender that makes another number of updates, or ends at another loss than the plain loop, is refused.
"""

import argparse
import json

from benchmarks._compare import CONTENDERS, EAGER, accepted, compare, measure, report, versions_of, why_missing
from benchmarks._harness import check_names, save_results

WORKLOADS = {"toy": 2, "digits": 2, "tabular": 1}  # processes for each contender
ON_THE_CPU = [name for name, each in CONTENDERS.items() if each.precision is None and "fsdp" not in name]


def contenders_of(work_name, chosen=()):
    """The contenders of a workload: the plain loops always, of the others the chosen ones or all."""
    names = [name for name in ON_THE_CPU if work_name == "toy" or not CONTENDERS[name].toy_only]
    return [name for name in names if not chosen or name in (*EAGER, *chosen)]


def main():
    arguments = _parse_arguments()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    from benchmarks._workloads import workload

    missing = {name: line for name in ON_THE_CPU if (line := why_missing(name))}
    for line in missing.values():
        print(line)
    results, measured = {}, set()
    for work_name in arguments.workloads or WORKLOADS:
        work = workload(work_name, tiny=arguments.quick)
        work.data()  # data that is drawn once for all processes is drawn here
        names = [name for name in contenders_of(work_name, arguments.contenders) if name not in missing]
        passes = 1 if arguments.quick else arguments.passes or WORKLOADS[work_name]
        found, failed = compare("benchmarks.fit", work, names, passes)
        report(work, found)
        found = accepted(work, found)
        measured |= found.keys()
        results[work_name] = {"text": work.text, "contenders": found, "failed": failed}
    if not (arguments.no_file or arguments.quick):
        save_results("fit", versions_of(measured), merge=True, device="cpu", workloads=results)


def _parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="workload", help=f"of {', '.join(WORKLOADS)} (default: all)")
    parser.add_argument(
        *("-c", "--contenders"),
        type=lambda text: text.split(","),
        default=[],
        metavar="NAMES",
        help=f"of {', '.join(ON_THE_CPU)}, separated by commas (default: all)",
    )
    parser.add_argument("--passes", type=int, help="processes for each contender (default: 2; tabular 1)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once, no file")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    check_names(parser, "workload", arguments.workloads, WORKLOADS)
    check_names(parser, "contender", arguments.contenders, ON_THE_CPU)
    return arguments


if __name__ == "__main__":
    main()
