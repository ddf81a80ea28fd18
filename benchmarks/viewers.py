"""How fast `stoker watch` and `stoker ui` show a large run, and how much memory they use.

    python -m benchmarks.viewers             a run of 200 metrics and 1 000 000 events, 330 MB; some minutes
    python -m benchmarks.viewers --quick     a small run, no file

For the terminal, the first picture is its first curve on a pseudo-terminal. For the page, it is the answers to its
first requests: the list, the run, and the points of 24 curves. Times start with the process; memory is the peak after
the whole run was read. The targets are 2 seconds and 300 MB.
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

from benchmarks._harness import collect, save_results, versions
from benchmarks.record import RUNS, make_large_run

VIEWERS = {"watch": "stoker watch", "ui": "stoker ui"}
SECONDS, MEGABYTES = 2.0, 300.0  # the targets
_STOKER = [sys.executable, "-c", "import sys; from stoker.cli import main; sys.exit(main())"]
_BRAILLE = re.compile("[\u2801-\u28ff]")


def watch(path):
    """Seconds to the first curve on a terminal of 120 × 40, and megabytes once the viewer is idle."""
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
                    os.read(screen, 1 << 16)  # a full pipe would block it
            idle = idle + 1 if processor_seconds(viewer.pid) - before < 0.2 else 0
        return {"first": first, "MB": megabytes(viewer.pid)}
    finally:
        viewer.kill()
        viewer.wait()
        os.close(screen)


def ui(path):
    """Seconds to the answers that the page is first drawn from, and megabytes once the whole run was read."""
    path = Path(path)
    start = time.perf_counter()
    command = [*_STOKER, "ui", str(path.parent), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as viewer:
        try:
            address = [viewer.stdout.readline().strip() for _ in range(2)][1]
            get_json(f"{address}api/runs")
            found = get_json(f"{address}api/run/{path.name}")
            names = [name for group in found["groups"].values() for name in group][:24]
            curves = f"{address}api/points/{path.name}?{urllib.parse.urlencode({'name': names}, doseq=True)}"
            answer = get_json(curves)
            first = time.perf_counter() - start
            while answer["behind"]:
                answer = get_json(curves)
            return {"first": first, "MB": megabytes(viewer.pid)}
        finally:
            viewer.kill()


def get_json(address):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy: the server is local
    with opener.open(address, timeout=120) as answer:
        return json.load(answer)


def megabytes(process):
    """Peak resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1000


def processor_seconds(process):
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(events, found):
    print(f"\na run of {events} events, medians\n  {'':<16}{'picture, s':>12}{'MB':>8}   targets")
    for name, each in found.items():
        first, most = (statistics.median(one[key] for one in each) for key in ("first", "MB"))
        met = "met" if first < SECONDS and most < MEGABYTES else "not met"
        print(f"  {VIEWERS[name]:<16}{first:12.2f}{most:8.0f}   {met}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--passes", type=int, default=3, help="processes of each viewer (default: 3)")
    parser.add_argument("--no-file", action="store_true", help="print only, write nothing to benchmarks/results/")
    parser.add_argument("--quick", action="store_true", help="a small run, once, no file")
    parser.add_argument("--measure", nargs=2, metavar=("VIEWER", "RUN"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        name, path = arguments.measure
        print(json.dumps({"watch": watch, "ui": ui}[name](path)))
        return
    events, passes = ("20k", 1) if arguments.quick else ("1M", arguments.passes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        make_large_run(path, RUNS[events])
        done = collect("benchmarks.viewers", [(name, str(path)) for _ in range(passes) for name in VIEWERS])
    found = {name: done[name, str(path)] for name in VIEWERS}
    report(events, found)
    if not arguments.quick and not arguments.no_file:
        save_results("viewers", versions("stoker", "textual", "starlette", "msgspec"), viewers=found)


if __name__ == "__main__":
    main()
