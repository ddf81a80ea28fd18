"""What a run's record costs: writing an event, and opening a large run in a viewer.

    python -m benchmarks.record                 5, 50 and 200 values an event; runs of 100,000 and 1,000,000 events
    python -m benchmarks.record --help          fewer passes, no file; --quick for a short check

Every contender runs several times, each time in a new process, one after the other, and writes to the directory for
temporary files (TMPDIR). Writing compares `Record.append` to a file with `json.dumps` and `write` of the same line,
both unbuffered: an event survives a kill once the call has returned. Opening measures the time to the first useful
picture and to the last event, and how much the process grows. Most events of a large run are progress; each epoch has
200 metrics. Results are written to benchmarks/results/.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._harness import collect, save_results, timed, versions

VALUES = ["5", "50", "200"]  # numbers in an event
RUNS = {"20k": 20_000, "100k": 100_000, "1M": 1_000_000}  # events
WRITERS = {"plain": "json.dumps, write", "record": "Record.append"}
READERS = {"record": "Record.open", "json": "Follower, json", "msgspec": "Follower, msgspec"}
LARGEST_RECORD = 100_000  # events for `Record.open`, which keeps each of them as an object


def measure_writing(name, values):
    """Microseconds per event, of 1000 at a time."""
    from stoker.record import Event, Record

    numbers = {f"valid/metric {number}": random.random() for number in range(int(values))}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        record = Record(path) if name == "record" else None
        with path.open("ab", buffering=0) as file:

            def write_plain(at):
                line = {"kind": "log", "time": time.time(), "epoch": 1, "update": at, "values": numbers}
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")

            def append(at):
                record.append(Event("log", epoch=1, update=at, values=numbers))

            write = write_plain if record is None else append
            return [timed(lambda: [write(at) for at in range(1000)]) * 1e3 for _ in range(6)][1:]


def make_large_run(path, events):
    """Writes a run directory with that many events, of about 330 bytes each."""
    draw, number, epochs = random.Random(0), 0, max(1, events // 250)
    names = [f"{group}/metric {number}" for group in ("train", "valid") for number in range(100)]
    metrics = {f"metric {number}": {"direction": "max", "unit": "%"} for number in range(100)}
    path.mkdir()
    with (path / "events.jsonl").open("w") as file:

        def write(kind, place, values, **extra):
            line = {"kind": kind, "time": 1e9 + number, **place, "values": values, "extra": extra}
            file.write(json.dumps({key: value for key, value in line.items() if value}, separators=(",", ":")) + "\n")

        write("begin", {}, {}, epochs=epochs, batches=1000, metrics=metrics, monitor="valid/metric 3")
        for epoch in range(1, epochs + 1):
            for batch in range(4, 989, 4):
                number += 1
                values = {name: draw.random() for name in ("train/loss", "train/class", "train/box")}
                place = {"epoch": epoch, "batch": batch, "update": 1000 * epoch + batch}
                speed = 1e4 * draw.random()
                write("progress", place, values, phase="train", batches=1000, samples_per_second=speed)
            row = {name: draw.random() for name in names}
            place = {"epoch": epoch, "batch": 1000, "update": 1000 * (epoch + 1)}
            write("train", place, dict(list(row.items())[:100]))
            write("valid", place, dict(list(row.items())[100:]))
            write("epoch", place, {**row, "lr": 0.1})


def measure_reading(name, path):
    """Seconds to the first picture and to the whole run, and megabytes."""
    if name == "json":
        sys.modules["msgspec"] = None  # the reader then falls back to the standard library
    from stoker import record

    before = megabytes()
    if name == "record":
        opened = []
        seconds = timed(lambda: opened.append(record.Record.open(path)))
        return {"first": [seconds], "whole": [seconds], "MB": [megabytes() - before]}
    start = time.perf_counter()
    follower = record.Follower(path)
    follower.refresh(seconds=0.1)
    picture = [follower.points(each).downsample(1000) for each in follower.names]
    first = time.perf_counter() - start
    assert picture, "the first refresh found no curve"
    while follower.has_unread:
        follower.refresh(seconds=0.1)
    return {"first": [first], "whole": [time.perf_counter() - start], "MB": [megabytes() - before]}


def megabytes():
    """Current resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def run(values, runs, passes):
    """All contenders in turn, `passes` times, so that a slow minute of the machine affects all of them."""
    written = collect("benchmarks.record", [("write", n, v) for _ in range(passes) for v in values for n in WRITERS])
    found = {
        "write": {v: {n: [us for each in written["write", n, v] for us in each] for n in WRITERS} for v in values},
        "read": {},
    }
    for events in runs:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run"
            make_large_run(path, RUNS[events])
            names = [name for name in READERS if name != "record" or RUNS[events] <= LARGEST_RECORD]
            done = collect("benchmarks.record", [("read", name, str(path)) for _ in range(passes) for name in names])
            found["read"][events] = {
                name: {
                    key: [each[key][0] for each in done["read", name, str(path)]] for key in ("first", "whole", "MB")
                }
                for name in names
            }
    return found


def report(found):
    print(f"\nwriting an event, medians in µs\n  {'values':<20}" + "".join(f"{v:>10}" for v in found["write"]))
    medians = {v: {n: statistics.median(times) for n, times in each.items()} for v, each in found["write"].items()}
    for name, label in WRITERS.items():
        print(f"  {label:<20}" + "".join(f"{each[name]:10.1f}" for each in medians.values()))
    print(f"  {'ratio':<20}" + "".join(f"{each['record'] / each['plain']:10.2f}" for each in medians.values()))
    for events, measured in found["read"].items():
        print(f"\nopening a run of {events} events, medians\n  {'':<20}{'picture, s':>12}{'whole, s':>12}{'MB':>10}")
        for name, each in measured.items():
            first, whole, grown = (statistics.median(each[key]) for key in ("first", "whole", "MB"))
            print(f"  {READERS[name]:<20}{first:12.2f}{whole:12.2f}{grown:10.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--passes", type=int, default=3, help="processes for each contender (default: 3)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="5 values, a small run, once, no file")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        what, name, argument = arguments.measure
        print(json.dumps((measure_writing if what == "write" else measure_reading)(name, argument)))
        return
    if arguments.quick:
        report(run(["5"], ["20k"], passes=1))
        return
    found = run(VALUES, ["100k", "1M"], arguments.passes)
    report(found)
    if not arguments.no_file:
        save_results("record", versions("stoker", "msgspec", "numpy"), us_written=found["write"], read=found["read"])


if __name__ == "__main__":
    main()
