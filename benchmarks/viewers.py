"""How soon the two viewers show a large run, and in how much memory: `stoker watch` and `stoker ui` as whole processes.

    python -m benchmarks.viewers             a run of 200 metrics and 1 000 000 events, 330 MB; some minutes
    python -m benchmarks.viewers --quick     a small run, print only

A picture of the terminal is its first curve on a real pseudo-terminal; one of the page is the answer to what it asks
first: the list, the run, and the points of 24 curves. Times are from the start of the process; memory is the most that
it ever had, after all of the run was read. The bars of the issue: 2 seconds, 300 MB.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.parse
import urllib.request
from pathlib import Path

from benchmarks._harness import in_turn, installed, keep
from benchmarks.record import RUNS, large_run

VIEWERS = {"watch": "stoker watch", "ui": "stoker ui"}
SECONDS, MEGABYTES = 2.0, 300.0  # the bars
_STOKER = [sys.executable, "-c", "import sys; from stoker.cli import main; sys.exit(main())"]
_BRAILLE = re.compile("[\u2801-\u28ff]")


def watch(path):
    """Seconds to the first curve on a terminal of 120 × 40, and megabytes once the memory stays as it is."""
    screen, own = pty.openpty()
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    start = time.perf_counter()
    environment = {**os.environ, "TERM": "xterm-256color"}
    viewer = subprocess.Popen([*_STOKER, "watch", path], stdin=own, stdout=own, stderr=own, env=environment)
    os.close(own)
    try:
        written = ""
        while not _BRAILLE.search(written):
            written = written[-10:] + os.read(screen, 1 << 16).decode("utf-8", "replace")
        first = time.perf_counter() - start
        idle = 0
        while idle < 3:  # seconds
            before = processor_seconds(viewer.pid)
            until = time.perf_counter() + 1.0
            while (left := until - time.perf_counter()) > 0:
                if select.select([screen], [], [], left)[0]:
                    os.read(screen, 1 << 16)  # a full pipe would stop it
            idle = idle + 1 if processor_seconds(viewer.pid) - before < 0.2 else 0
        return {"first": first, "MB": megabytes(viewer.pid)}
    finally:
        viewer.kill()
        viewer.wait()
        os.close(screen)


def ui(path):
    """Seconds to the answers that a page is first drawn from, and megabytes once all of the run was read."""
    path = Path(path)
    start = time.perf_counter()
    command = [*_STOKER, "ui", str(path.parent), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            address = [viewer.stdout.readline().strip() for _ in range(2)][1]
            asked(f"{address}api/runs")
            found = asked(f"{address}api/run/{path.name}")
            names = [name for group in found["groups"].values() for name in group][:24]
            curves = f"{address}api/points/{path.name}?{urllib.parse.urlencode({'name': names}, doseq=True)}"
            answer = asked(curves)
            first = time.perf_counter() - start
            while answer["behind"]:
                answer = asked(curves)
            return {"first": first, "MB": megabytes(viewer.pid)}
        finally:
            viewer.kill()


def asked(address):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    with opener.open(address, timeout=120) as answer:
        return json.load(answer)


def megabytes(process):
    """The most that a process ever had in memory."""
    told = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", told)[1]) / 1000


def processor_seconds(process):
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(events, found):
    print(f"\na run of {events} events, medians\n  {'':<16}{'picture, s':>12}{'MB':>8}   bars")
    for name, each in found.items():
        first, most = (statistics.median(one[key] for one in each) for key in ("first", "MB"))
        met = "met" if first < SECONDS and most < MEGABYTES else "not met"
        print(f"  {VIEWERS[name]:<16}{first:12.2f}{most:8.0f}   {met}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--passes", type=int, default=3, help="processes of each viewer (default: 3)")
    parser.add_argument("--no-file", action="store_true", help="print only, keep nothing in benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="a small run, once, print only")
    parser.add_argument("--measure", nargs=2, metavar=("VIEWER", "RUN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, path = arguments.measure
        print(json.dumps({"watch": watch, "ui": ui}[name](path)))
        return
    events, passes = ("20k", 1) if arguments.quick else ("1M", arguments.passes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        large_run(path, RUNS[events])
        done = in_turn("benchmarks.viewers", [(name, str(path)) for _ in range(passes) for name in VIEWERS])
    found = {name: done[name, str(path)] for name in VIEWERS}
    report(events, found)
    if not arguments.quick and not arguments.no_file:
        keep(
            "viewers", {each: installed(each) for each in ("stoker", "textual", "starlette", "msgspec")}, viewers=found
        )


if __name__ == "__main__":
    main()
