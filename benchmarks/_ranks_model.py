"""Extrapolates the overhead of eight processes to a thousand: the model and assumptions of docs/scaling.md.

gloo reduces a flag around a ring, once to add it up and once to distribute the result: 2 · (n − 1) hops, one after
another. It gathers in a ring of n − 1 hops. What ranks wait for, they send in a tree: log₂ n hops to rank 0, and as
many back. The time of a hop is measured on this machine, where each one wakes a thread; between machines the network is
added.
"""

import math
import statistics

STEP = 50_000.0  # µs of a training step
NETWORK = 25.0  # µs for a message between machines, added to every hop
BANDWIDTH = 1000.0  # bytes per µs: 1 GB/s, about 10 Gbit/s Ethernet
RANKS = (1, 8, 64, 1024)
IN_TREE = 64  # from so many ranks on they merge, and wait for each other, in a tree
TREE_HOP = 4.0  # hops of a ring that one in a tree takes: it returns to Python each time
UPDATES = 1000  # of an epoch
EVENTS = 4.0  # events that the record gets in a second
LABELS = {  # keys in the result files, and what they mean
    "agreement, beside a step": "agreement during a step of 50 ms",
    "agreement, at once": "agreement, back to back",
    "agreement, waited for": "agreement, synchronous",
    "merge, 5 metrics": "merging 5 metrics",
    "merge, 20 metrics": "merging 20 metrics",
    "gather, checkpoint": "gathering for a checkpoint",
    "update, plain loop": "update, DDP by hand",
    "update, fit": "update, fit",
    "update, compiled fit": "update, fit with compile=True",
}


def fit_line(points):
    """Intercept and slope of a straight line through (x, y), by least squares."""
    mean_x, mean_y = (statistics.fmean(each) for each in zip(*points, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
    return mean_y - slope * mean_x, slope


def hops(ranks):
    """Hops of an all-reduce of one number around gloo's ring."""
    return 2 * (ranks - 1)


def levels(ranks):
    """Hops from the last rank to rank 0 in a tree."""
    return math.ceil(math.log2(ranks))


def costs_of(found):
    """The parameters of the model in µs, from the results by number of processes."""
    medians = {
        int(size): {name: statistics.median(times) for name, times in each["us"].items()}
        for size, each in found.items()
    }
    several = {size: each for size, each in medians.items() if size > 1}
    base, hop = fit_line([(hops(size), each["agreement, waited for"]) for size, each in several.items()])
    return {
        "base": max(base, 0.0),
        "hop": hop,
        "call": max(each["agreement, beside a step"] for each in several.values()),
        "event": found["1"]["us of an event"],
        "of each state": found["1"]["of each state"],
    }


def estimate(costs, ranks, *, step=STEP):
    """µs of overhead with that many ranks: `agreement` and `record` for an update, the rest for each occurrence."""
    hop = costs["hop"] + NETWORK
    every = max(1, ranks // 64)  # batches between two agreements
    travel = 0.0 if ranks == 1 else costs["base"] + hops(ranks) * hop
    blocked = 0.0 if ranks == 1 else costs["call"] + max(0.0, travel - every * step)
    tree_hop, height = TREE_HOP * costs["hop"] + NETWORK, levels(ranks)
    rings = {  # every rank gets the state of every rank
        name: 0.0 if ranks == 1 else _gather(part["bytes"], ranks, hop, costs["base"]) + ranks * part["us"]
        for name, part in costs["of each state"].items()
    }
    trees = {  # a length and a state in each direction; a rank merges the states of its children
        name: height * (4 * tree_hop + part["us"] + 2 * part["bytes"] / BANDWIDTH)
        for name, part in costs["of each state"].items()
    }
    is_tree = ranks >= IN_TREE
    wait = 2 * height * tree_hop if is_tree else travel
    merges = {name: (trees if is_tree else rings)[name] for name in rings if name.startswith("merge")}
    return {
        "every": every,
        "travel": travel,
        "agreement": blocked / every,
        "record": costs["event"] * EVENTS * step / 1e6,
        "wait": wait,
        "gather, checkpoint": rings["gather, checkpoint"],
        **merges,
        # Requests, the number of samples, and whether replicas are equal; values take more messages than a flag.
        "end of epoch": merges["merge, 20 metrics"] + (5 if is_tree else 3) * wait,
        "end of epoch in rings": rings["merge, 20 metrics"] + 3 * travel,
    }


def _gather(size, ranks, hop, base):
    """Two rounds of a ring: the lengths of all messages, and the messages."""
    return 2 * (base + (ranks - 1) * hop) + ranks * size / BANDWIDTH


def share_of_step(column, step=STEP):
    return (column["agreement"] + column["record"]) / step


def estimate_table(found, *, ranks=RANKS, step=STEP):
    """The estimate of docs/scaling.md, as lines of Markdown."""
    costs = costs_of(found)
    columns = [estimate(costs, each, step=step) for each in ranks]
    rows = [
        ("batches between two agreements", [f"{each['every']}" for each in columns]),
        ("travel time of an agreement", [_time(each["travel"]) for each in columns]),
        ("agreement, for each update", [_time(each["agreement"]) for each in columns]),
        ("record on rank 0, for each update", [_time(each["record"]) for each in columns]),
        ("**both, as a share of a step**", [f"**{100 * share_of_step(each, step):.3f} %**" for each in columns]),
        ("synchronous agreement", [_time(each["wait"]) for each in columns]),
        ("merging 5 metrics, for each epoch", [_time(each["merge, 5 metrics"]) for each in columns]),
        ("merging 20 metrics, for each epoch", [_time(each["merge, 20 metrics"]) for each in columns]),
        (f"end of an epoch, as a share of {UPDATES} steps", _epoch_shares("end of epoch", columns, step)),
        ("the same in rings, as before", _epoch_shares("end of epoch in rings", columns, step)),
        ("gathering for a checkpoint", [_time(each["gather, checkpoint"]) for each in columns]),
    ]
    return _markdown("ranks", ranks, rows)


def _epoch_shares(key, columns, step):
    return [f"{100 * each[key] / step / UPDATES:.3f} %" for each in columns]


def measured_table(found):
    """The measurements of docs/scaling.md and the parameters of the model, as lines of Markdown."""
    costs = costs_of(found)
    rows = [
        (label, [_time(statistics.median(each["us"][name])) for each in found.values()])
        for name, label in LABELS.items()
        if all(name in each["us"] for each in found.values())
    ]
    rows.append(("file descriptors of a process", [str(each["descriptors"]) for each in found.values()]))
    states = [
        f"{LABELS[name]}: the state of a rank has {part['bytes']:,} bytes, and each receiver spends {part['us']:.0f} µs"
        for name, part in costs["of each state"].items()
    ]
    parameters = [
        f"one hop around the ring takes {costs['hop']:.0f} µs, and every round takes {costs['base']:.0f} µs more",
        f"starting an agreement during a step of {STEP / 1e3:.0f} ms blocks training for {costs['call']:.0f} µs",
        f"an event of the record takes {costs['event']:.0f} µs, {EVENTS:.0f} times a second",
        *states,
    ]
    return [*_markdown("processes", found, rows), "", *(f"- {line}" for line in parameters)]


def _markdown(head, columns, rows):
    lines = [f"| {head} | " + " | ".join(map(str, columns)) + " |", "|---" + "|---:" * len(columns) + "|"]
    return lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows]


def _time(us):
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.2g} {unit}" if us < 100 * size else f"{us / size:.0f} {unit}"
    return f"{us:.0f} µs"
