"""From what eight processes cost to what a thousand would: the model of docs/scaling.md, with its assumptions.

gloo passes a flag around a ring, once to add it up and once to tell the result: 2 · (n − 1) hops, one after another.
It gathers in a ring too, in n − 1 hops. The hop is measured on this machine, where each
one wakes a thread; between machines a network is added to it.
"""

import statistics

STEP = 50_000.0  # µs of a training step
NETWORK = 25.0  # µs that a message takes from one machine to the next, added to every hop
WIRE = 1000.0  # bytes a µs on the wire: 1 GB/s, about what 10 Gbit/s Ethernet gives
RANKS = (1, 8, 64, 1024)
UPDATES = 1000  # of an epoch
EVENTS = 4.0  # lines of the record in a second: progress is told so often


def line(points):
    """The base and the slope of a straight line through (x, y), by least squares."""
    middle, level = (statistics.fmean(each) for each in zip(*points, strict=True))
    slope = sum((x - middle) * (y - level) for x, y in points) / sum((x - middle) ** 2 for x, _ in points)
    return level - slope * middle, slope


def hops(ranks):
    """The hops of an all-reduce of one number around gloo's ring."""
    return 2 * (ranks - 1)


def measured(found):
    """What the model is made of, in µs, out of the results by number of processes."""
    medians = {
        int(size): {name: statistics.median(times) for name, times in each["us"].items()}
        for size, each in found.items()
    }
    several = {size: each for size, each in medians.items() if size > 1}
    base, hop = line([(hops(size), each["agreement, waited for"]) for size, each in several.items()])
    return {
        "base": max(base, 0.0),
        "hop": hop,
        "call": max(each["agreement, beside a step"] for each in several.values()),
        "event": found["1"]["us of an event"],
        "of each state": found["1"]["of each state"],
    }


def estimate(costs, ranks, *, step=STEP, every=None):
    """µs of the loop's own work at so many ranks, by what it is for.

    `agreement` is for an update; what comes at the end of an epoch or with a checkpoint is for each of these.
    """
    hop = costs["hop"] + NETWORK
    every = every or max(1, ranks // 64)
    travel = 0.0 if ranks == 1 else costs["base"] + hops(ranks) * hop
    held = 0.0 if ranks == 1 else costs["call"] + max(0.0, travel - every * step)
    gathers = {
        name: 0.0 if ranks == 1 else _gathered(part["bytes"], ranks, hop, costs["base"]) + ranks * part["us"]
        for name, part in costs["of each state"].items()
    }
    return {
        "every": every,
        "travel": travel,
        "agreement": held / every,
        "record": costs["event"] * EVENTS * step / 1e6,
        "waited for": travel,
        **gathers,
    }


def _gathered(size, ranks, hop, base):
    """Two rounds of a ring: how long each rank's bytes are, and the bytes."""
    return 2 * (base + (ranks - 1) * hop) + ranks * size / WIRE


def share(column, step=STEP):
    """What part of a step an update's own agreement and record take."""
    return (column["agreement"] + column["record"]) / step


def table(found, *, ranks=RANKS, step=STEP):
    """The table of docs/scaling.md, as lines of Markdown."""
    costs = measured(found)
    columns = [estimate(costs, each, step=step) for each in ranks]
    epochs = [each["merge, 20 metrics"] + 3 * each["waited for"] for each in columns]
    rows = [
        ("the flag travels after so many batches", [f"{each['every']}" for each in columns]),
        ("it is on its way for", [_time(each["travel"]) for each in columns]),
        ("agreement, for an update", [_time(each["agreement"]) for each in columns]),
        ("record on rank 0, for an update", [_time(each["record"]) for each in columns]),
        ("**both, of a step**", [f"**{100 * share(each, step):.3f} %**" for each in columns]),
        ("agreement that is waited for", [_time(each["waited for"]) for each in columns]),
        ("merge of 5 metrics, an epoch", [_time(each["merge, 5 metrics"]) for each in columns]),
        ("merge of 20 metrics, an epoch", [_time(each["merge, 20 metrics"]) for each in columns]),
        (f"end of an epoch, of {UPDATES} steps", [f"{100 * each / step / UPDATES:.3f} %" for each in epochs]),
        ("gather for a checkpoint", [_time(each["gather, checkpoint"]) for each in columns]),
    ]
    return _drawn("ranks", ranks, rows)


def pieces(found):
    """What was measured, and what the model takes from it, as lines of Markdown."""
    costs = measured(found)
    rows = [
        (name, [_time(statistics.median(each["us"][name])) for each in found.values()]) for name in found["1"]["us"]
    ]
    rows.append(("file descriptors of a process", [str(each["descriptors"]) for each in found.values()]))
    states = [
        f"a rank's state for “{name}” is {part['bytes']:,} bytes and {part['us']:.0f} µs of work for whoever gets it"
        for name, part in costs["of each state"].items()
    ]
    told = [
        f"a hop around the ring takes {costs['hop']:.0f} µs, beside {costs['base']:.0f} µs that any round takes",
        f"handing in beside a step of {STEP / 1e3:.0f} ms holds the training for {costs['call']:.0f} µs",
        f"a line of the record takes {costs['event']:.0f} µs, {EVENTS:.0f} times a second",
        *states,
    ]
    return [*_drawn("processes", found, rows), "", *(f"- {line}" for line in told)]


def _drawn(head, columns, rows):
    lines = [f"| {head} | " + " | ".join(map(str, columns)) + " |", "|---" + "|---:" * len(columns) + "|"]
    return lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows]


def _time(us):
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.2g} {unit}" if us < 100 * size else f"{us / size:.0f} {unit}"
    return f"{us:.0f} µs"
