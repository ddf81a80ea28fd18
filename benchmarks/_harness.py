"""What all benchmarks share: one process for each measurement, a clock, and the files in benchmarks/results/."""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
# XLA, JAX's compiler, has its own thread pools.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
_STARTED = "STOKER_BENCH_STARTED"  # seconds since 1970 at which the process was started


def run_tasks(module, tasks, *, environment=None, seconds=None):
    """Yields each task with what it printed as JSON, or with its error text: `python -m module --measure *task`.

    Every task runs in a new process, which is killed after `seconds` if that is given.
    """
    for number, task in enumerate(tasks, 1):
        print(f"\r  measuring {number} of {len(tasks)}: {', '.join(task):<48}", end="", file=sys.stderr, flush=True)
        result, failure = _run_task(module, task, ONE_THREAD if environment is None else environment, seconds)
        print(f"\r{'':<80}\r", end="", file=sys.stderr, flush=True)
        yield task, result, failure


def collect(module, tasks):
    """Runs the tasks and returns a list of results for each; exits at the first failure.

    A task that is listed several times has several results. Order the tasks so that a slow minute of the machine
    affects all contenders.
    """
    found = {task: [] for task in tasks}
    for task, result, failure in run_tasks(module, tasks):
        if failure is not None:
            sys.exit(f"\n{', '.join(task)} failed:\n{failure}")
        found[task].append(result)
    return found


def _run_task(module, task, environment, seconds):
    command = [sys.executable, "-m", module, "--measure", *task]
    environment = {**os.environ, **environment, _STARTED: repr(time.time())}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, f"killed after {seconds:.0f} s"
    if done.returncode:
        return None, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), None  # a library may have printed lines before it


def seconds_since_start():
    """Seconds since the parent started this process; includes the start of Python and all imports."""
    return time.time() - float(os.environ[_STARTED])


class Clock:
    """Notes the time at the end of every epoch; call it with whatever arguments a library gives its callbacks.

    `marks` are seconds since the process was started. On a GPU it waits for the device first.
    """

    def __init__(self, device="cpu"):
        self.marks = []
        self._synchronize = _synchronize_cuda if device == "cuda" else None
        self._zero = time.perf_counter() - seconds_since_start()

    def __call__(self, *_, **__):
        if self._synchronize is not None:
            self._synchronize()
        self.marks.append(time.perf_counter() - self._zero)

    @property
    def needs_calls(self):
        """Whether time stamps that a library notes itself can't replace the calls."""
        return self._synchronize is not None

    def add_stamps(self, stamps):
        """Adds marks from the time stamps (`time.time()`) of epochs that have ended."""
        zero = time.time() - time.perf_counter() + self._zero
        self.marks += [stamp - zero for stamp in stamps]

    def seconds_per_epoch(self, warm_up, most=5):
        """Splits the time after the first `warm_up` epochs into at most `most` parts; seconds per epoch in each."""
        marks = self.marks[warm_up - 1 :]
        parts = min(most, len(marks) - 1)
        edges = [round(part * (len(marks) - 1) / parts) for part in range(parts + 1)]
        return [(marks[b] - marks[a]) / (b - a) for a, b in pairwise(edges)]


def _synchronize_cuda():
    import torch

    if torch.cuda.is_initialized():  # in JAX's process torch stays on the CPU
        torch.cuda.synchronize()


def use_one_thread():
    """Two cores can be shared fairly only by contenders with one thread each."""
    import torch

    torch.set_num_threads(1)


def timed(function):
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def spread(times):
    """The median with the minimum and maximum, as a column of a table."""
    return f"{statistics.median(times):8.1f} {min(times):7.1f}–{max(times):<7.1f}"


def check_names(parser, what, given, known):
    """Ends the program with an error that names what is not known."""
    unknown = [each for each in given if each not in known]
    if unknown:
        parser.error(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")


def installed(distribution):
    """The version of a distribution, or `None`."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def versions(*distributions):
    return {each: installed(each) for each in distributions}


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {"cpu": cpu or platform.processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def save_results(name, used_versions, *, merge=False, **measured):
    """Writes results with machine and versions to benchmarks/results/NAME-DATE.json.

    With `merge`, results of the same day that were not measured again stay in the file.
    """
    path = RESULTS / f"{name}-{date.today()}.json"
    write_json(path, {"machine": machine(), "versions": used_versions, **measured}, merge=merge)
    print(f"\nwritten to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def write_json(path, found, *, merge=False):
    """Writes a tree of dicts as JSON, completely or not at all; `merge` keeps the other leaves of the file."""
    if merge and path.exists():
        found = merged(json.loads(path.read_text()), found)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1) + "\n")
    part.replace(path)


def merged(old, new):
    """Two trees of dicts as one; where both have a leaf, the new one wins."""
    both = {key: merged(old[key], new[key]) for key in old.keys() & new.keys() if isinstance(new[key], dict)}
    return {**old, **new, **both}


def fill_page(page, tables):
    """The text of a page with the lines of each table between `<!-- NAME -->` and `<!-- end -->`."""
    for name, lines in tables.items():
        text = f"<!-- {name} -->\n" + "\n".join(lines) + "\n<!-- end -->"
        page, times = re.subn(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, text=text: text, page, flags=re.DOTALL)
        if times != 1:
            sys.exit(f"the page has {times} places for the table {name!r}; expected one")
    return page
