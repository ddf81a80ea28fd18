"""What a run on a thousand GPUs costs beside its arithmetic: measured parts, assumptions, and a simulation of failures.

    python -m benchmarks.large_run              measures the parts on this machine; results in benchmarks/results/
    python -m benchmarks.large_run --estimate   writes the tables of docs/scaling.md from the newest results
    python -m benchmarks.large_run --quick      smaller sizes, no file

Measured here: drawing and computing the order of an epoch, requests to the store in which ranks find each other, what
an import reads, sockets and seconds of a new process group. Times of messages are those of benchmarks.ranks, and speeds
of saving those of benchmarks.save. ASSUMPTIONS are not measured.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import re
import statistics
import sys
import time
from pathlib import Path

from benchmarks._harness import RESULTS, collect, save_results, timed, use_one_thread, versions
from benchmarks._ranks_model import costs_of, estimate

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
RANKS = (8, 64, 1024)
ASSUMPTIONS = {
    "step": 0.5,  # seconds of an update: 7·10⁹ parameters, some thousand tokens on each GPU
    "samples": 10**9,
    "share": 32,  # samples of a rank in a batch
    "bytes": 7e9 * 12,  # of a checkpoint: parameters and the two moments of Adam in float32
    "bytes of replicas": 1.2e9 * 12,  # the same of a model that fits into one GPU
    "gpus of a node": 8,
    "shared bandwidth": 20e9,  # bytes a second of the file system that all nodes share
    "shared opens": 50e3,  # files that it opens in a second
    "gpu hours between failures": 50_000,
    "restart": 120.0,  # seconds until a launcher has noticed a failure and started all processes again
    "days": 30,  # of arithmetic, in the simulation
    "open files": 1024,  # the usual limit of a process
}

# --- measuring


def measure_order(size):
    """Seconds for a permutation of all samples, and for what a rank computes of it for a batch."""
    import torch

    from stoker.data import Loader

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return ASSUMPTIONS["samples"]

        def __getitem__(self, number):
            return number

    use_one_thread()
    whole = {str(count): timed(lambda count=count: torch.randperm(count)) for count in SIZES[size]["orders"]}
    ranks, share = 1024, ASSUMPTIONS["share"]
    loader = Loader(Numbers(), batch_size=ranks * share, shuffle=0).shared(7, ranks)
    first = [timed(lambda batch=batch: next(iter(loader.at(epoch=3, batch=batch)))) for batch in range(1, 20)]
    batches = iter(loader.at(epoch=0))
    return {"whole": whole, "first batch": min(first), "batch": min(timed(lambda: next(batches)) for _ in range(200))}


def measure_import(size):
    """Seconds, files and bytes of `import stoker` with what a first fit needs."""
    start = time.process_time()
    __import__("stoker.learner")
    seconds = time.process_time() - start  # of the processor: reading the files is added
    modules = {getattr(each, "__file__", None) for each in list(sys.modules.values())}
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.count("/")}
    files = [Path(path) for path in modules | mapped if path and os.path.isfile(path)]
    return {"seconds": seconds, "files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def measure_store(size):
    """Seconds of a request to a TCPStore of this machine, with another process as its client."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", store.port, is_master=False)
    client.set("key", "value")
    return {"request": min(timed(lambda: client.get("key")) for _ in range(SIZES[size]["requests"]))}


def measure_group(size):
    """Sockets of a process and seconds for one more group, connected at once and when needed."""
    return {name: _run_group(SIZES[size]["ranks"], lazy) for name, lazy in (("at once", "0"), ("when needed", "1"))}


def _run_group(ranks, lazy):
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "stoker.distributed"])
    answers = context.SimpleQueue()
    started = [context.Process(target=_join, args=(rank, ranks, store.port, lazy, answers)) for rank in range(ranks)]
    for process in started:
        process.start()
    found = [answers.get() for _ in started]
    for process in started:
        process.join()
    return {"ranks": ranks, "files": max(files for files, _ in found), "seconds": max(seconds for _, seconds in found)}


def _join(rank, ranks, port, lazy, answers):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCH_GLOO_LAZY_INIT": lazy}
    from stoker.distributed import join

    use_one_thread()
    world = join()
    world.barrier()
    seconds = timed(lambda: world.with_own_group().barrier())
    world.all_gather(rank)
    answers.put((len(os.listdir("/proc/self/fd")), seconds))
    world.barrier()


PARTS = {"order": measure_order, "import": measure_import, "store": measure_store, "group": measure_group}
SIZES = {
    "full": {"orders": (10**6, 10**7, 10**8), "requests": 5000, "ranks": 32},
    "quick": {"orders": (10**4, 10**5), "requests": 50, "ranks": 2},
}

# --- the simulation


def simulate(hours_between_failures, interval, held, written, restart, days, seed=0):
    """The hours of a run of `days` of arithmetic that fails at random times and resumes from its newest checkpoint.

    A checkpoint begins every `interval` seconds, blocks training for `held` seconds, and counts when it has been
    written `written` seconds later. All times but the first and `days` are in seconds.
    """
    draw, second = random.Random(seed), 0.0
    done, goal, failures = 0.0, days * 86400.0, 0  # seconds of arithmetic that are saved
    while True:
        failure = draw.expovariate(1 / (hours_between_failures * 3600))
        cycle = interval + held
        if goal - done + (goal - done) // interval * held <= failure:
            return {"hours": (second + goal - done + (goal - done) // interval * held) / 3600, "failures": failures}
        complete = max(0, math.floor((failure - written) / cycle)) if failure > written else 0
        done += complete * interval
        second += failure + restart
        failures += 1


def best_interval(hours_between_failures, held):
    """Young's and Daly's interval between checkpoints in seconds: what a save costs against what a failure loses."""
    return math.sqrt(2 * held * hours_between_failures * 3600)


# --- the model of a run


def newest(name):
    paths = sorted(RESULTS.glob(f"{name}-*.json"))
    if not paths:
        sys.exit(f"there are no results of {name} yet: run python -m benchmarks.{name} first")
    return json.loads(paths[-1].read_text())


def saving_speeds():
    """Bytes a second that a process copies while training waits, and that it writes, syncs and reads back."""
    times = newest("save")["ms"]["2 GB"]["background"]
    return 2e9 / (statistics.median(times["held"]) / 1e3), 2e9 / (statistics.median(times["whole"]) / 1e3)


def costs(parts, ranks):
    """Seconds of each part of a run with that many ranks, now and as it was before it was changed."""
    given, nodes = ASSUMPTIONS, ranks / ASSUMPTIONS["gpus of a node"]
    messages = estimate(costs_of(newest("ranks")["processes"]), ranks, step=given["step"] * 1e6)
    copied, written = saving_speeds()
    shard = given["bytes"] / ranks
    largest = max(map(int, parts["order"]["whole"]))
    importing = parts["import"]
    reads = nodes * importing["bytes"] / given["shared bandwidth"] + nodes * importing["files"] / given["shared opens"]
    group, updates = parts["group"], given["samples"] / (ranks * given["share"])
    order = parts["order"]["whole"][str(largest)] * given["samples"] / largest
    update = parts["order"]["batch"] + (messages["agreement"] + messages["record"]) / 1e6
    ends = {name: messages[name] / 1e6 for name in ("end of epoch", "end of epoch in rings")}
    epoch = {
        "share": parts["order"]["first batch"] + updates * update + ends["end of epoch"],
        "share before": order + updates * (update - parts["order"]["batch"]) + ends["end of epoch in rings"],
    }
    other_files = group["at once"]["files"] - 3 * (group["at once"]["ranks"] - 1)
    return {
        "import": importing["seconds"] + reads,
        "rendezvous": 6 * ranks * parts["store"]["request"],
        "files": group["when needed"]["files"] if ranks >= 64 else other_files + 3 * (ranks - 1),
        "files before": other_files + 3 * (ranks - 1),
        "order": parts["order"]["first batch"],
        "order before": order,
        "updates": updates,
        "update": update,
        "end of epoch": ends["end of epoch"],
        "end of epoch before": ends["end of epoch in rings"],
        **{name: 100 * seconds / (updates * given["step"]) for name, seconds in epoch.items()},
        "held": messages["gather, checkpoint"] / 1e6 + shard / copied,
        "written": max(shard / written, given["bytes"] / given["shared bandwidth"]),
        "read shards": max(shard / written, given["bytes"] / given["shared bandwidth"]),
        "read replicas": given["bytes of replicas"] * max(1 / written, nodes / given["shared bandwidth"]),
    }


def tables(parts):
    """The tables of docs/scaling.md as lines of Markdown, by the name of their place."""
    given = ASSUMPTIONS
    found = {ranks: costs(parts, ranks) for ranks in RANKS}
    return {
        "large run": _markdown(
            [
                ("*start*: imports from the shared file system", [_time(each["import"]) for each in found.values()]),
                ("agreeing on a start in the store", [_time(each["rendezvous"]) for each in found.values()]),
                ("open files of a process", [str(each["files"]) for each in found.values()]),
                ("— before", [_limited(each["files before"]) for each in found.values()]),
                ("*an epoch* of 10⁹ samples: updates", [f"{each['updates']:,.0f}" for each in found.values()]),
                ("first batch", [_time(each["order"]) for each in found.values()]),
                ("— before, and 8 GB in each process", [_time(each["order before"]) for each in found.values()]),
                ("end of an epoch", [_time(each["end of epoch"]) for each in found.values()]),
                ("— before", [_time(each["end of epoch before"]) for each in found.values()]),
                ("*an update*: order, agreement and record", [_time(each["update"]) for each in found.values()]),
                ("**epoch and updates, as a share**", [f"**{each['share']:.2f} %**" for each in found.values()]),
                ("— before", [f"{each['share before']:.2f} %" for each in found.values()]),
                ("*a checkpoint* of 84 GB in shards: of a rank", [_size(given["bytes"] / ranks) for ranks in found]),
                ("training waits", [_time(each["held"]) for each in found.values()]),
                ("written in the background", [_time(each["written"]) for each in found.values()]),
                ("*a resume*: reading shards", [_time(each["read shards"]) for each in found.values()]),
                ("every rank reads 14 GB of replicas", [_time(each["read replicas"]) for each in found.values()]),
            ]
        ),
        "failures": _markdown([*_failure_rows(found)]),
        "parts": _list_parts(parts),
    }


def _failure_rows(found):
    given = ASSUMPTIONS
    hours = {ranks: given["gpu hours between failures"] / ranks for ranks in found}
    best = {ranks: best_interval(hours[ranks], each["held"]) for ranks, each in found.items()}
    yield "hours between failures", [f"{each:,.0f}" for each in hours.values()]
    yield "best interval between checkpoints", [_time(each) for each in best.values()]
    for label, chosen in (
        ("that interval", best),
        ("10 minutes", dict.fromkeys(found, 600.0)),
        ("1 hour", dict.fromkeys(found, 3600.0)),
        ("6 hours", dict.fromkeys(found, 21600.0)),
    ):
        yield f"lost with {label}", [_lost(hours[ranks], chosen[ranks], found[ranks]) for ranks in found]


def _lost(hours, interval, cost, runs=20):
    """The share of a run's time that failures and checkpoints take, as a mean of several simulations."""
    days, restart = ASSUMPTIONS["days"], ASSUMPTIONS["restart"] + cost["import"] + cost["read shards"]
    interval = max(interval, cost["written"])  # one checkpoint at a time
    each = [simulate(hours, interval, cost["held"], cost["written"], restart, days, seed) for seed in range(runs)]
    return f"{100 * (1 - days * 24 / statistics.fmean(run['hours'] for run in each)):.2f} %"


def _limited(files):
    return f"{files:,}" + (f", of {ASSUMPTIONS['open files']:,}: fails" if files > ASSUMPTIONS["open files"] else "")


def _list_parts(parts):
    order, importing, group = parts["order"], parts["import"], parts["group"]
    copied, written = saving_speeds()
    drawn = ", ".join(f"{_time(seconds)} for {int(count):,}" for count, seconds in order["whole"].items())
    ranks = group["at once"]["ranks"]
    return [
        f"- a permutation of all samples: {drawn}; 8 bytes each",
        f"- a rank's {ASSUMPTIONS['share']} of a batch of {1024 * ASSUMPTIONS['share']:,} out of 10⁹ samples: "
        f"{_time(order['batch'])}, and {_time(order['first batch'])} for the first one, at any place",
        f"- `import stoker` with a `Learner`: {_time(importing['seconds'])}, {importing['files']:,} files with "
        f"{_size(importing['bytes'])}",
        f"- a request to the store: {_time(parts['store']['request'])}",
        f"- {ranks} ranks in three groups: {group['at once']['files']} open files of a process if gloo connects at "
        f"once, {group['when needed']['files']} if it connects when needed",
        f"- a process copies {_size(copied)} of state a second while training waits, and writes, syncs and reads back "
        f"{_size(written)} a second",
    ]


def _markdown(rows):
    lines = ["| GPUs | " + " | ".join(map(str, RANKS)) + " |", "|---" + "|---:" * len(RANKS) + "|"]
    return lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows]


def _time(seconds):
    for unit, size in (("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}" if seconds < 100 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def _size(count):
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def replace_tables(page, parts):
    """The text of docs/scaling.md with its tables made from results."""
    for name, lines in tables(parts).items():
        text = f"<!-- {name} -->\n" + "\n".join(lines) + "\n<!-- end -->"
        page, times = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, text=text: text, page, flags=re.DOTALL)
        if times != 1:
            sys.exit(f"docs/scaling.md has {times} places for the table {name!r}; expected one")
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller sizes, no file")
    parser.add_argument("--estimate", action="store_true", help="measure nothing; update the tables of docs/scaling.md")
    parser.add_argument("--measure", nargs=2, metavar=("PART", "SIZE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        part, size = arguments.measure
        print(json.dumps(PARTS[part](size)))
        return
    if arguments.estimate:
        parts = newest("large_run")["parts"]
        PAGE.write_text(replace_tables(PAGE.read_text(), parts))
    else:
        size = "quick" if arguments.quick else "full"
        done = collect("benchmarks.large_run", [(part, size) for part in PARTS])
        parts = {part: done[part, size][0] for part in PARTS}
        if not arguments.quick:
            save_results("large_run", versions("stoker", "torch"), parts=parts)
    print("\n\n".join("\n".join(lines) for lines in tables(parts).values()))


if __name__ == "__main__":
    main()
