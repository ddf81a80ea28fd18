"""What the benchmarks share: the toy they train on, a process for each contender, and a place for what was measured."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
BATCH = 100
TOY = "1000 × 3 → 32 → 1, batch 100, Adam, mean squared error"
# XLA, JAX's compiler, has pools of its own
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
_STARTED = "STOKER_BENCH_STARTED"  # seconds since 1970 at which the process was asked for


def toy():
    """The toy of the luz chapter: inputs, targets, and a model that starts from the same weights every time."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1000, 3, generator=generator)
    y = x @ torch.tensor([[0.2], [-1.3], [-0.5]]) + torch.randn(1000, 1, generator=generator)
    torch.manual_seed(0)
    return x, y, nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))


def in_turn(module, tasks):
    """What each task printed as JSON, by task; the first that fails ends the benchmark.

    Tasks that stand in the list several times give as many results; put them in an order in which a slow minute of
    the machine hits all contenders.
    """
    found = {task: [] for task in tasks}
    for task, result, failure in results_of(module, tasks):
        if failure is not None:
            sys.exit(f"\n{', '.join(task)} failed:\n{failure}")
        found[task].append(result)
    return found


def results_of(module, tasks, *, environment=None, seconds=None):
    """Each task with what it printed as JSON, or with what went wrong: `python -m module --measure *task`.

    Every task is a process of its own, which is ended after `seconds` where a limit is given.
    """
    for done, task in enumerate(tasks, 1):
        print(f"\r  measuring {done} of {len(tasks)}: {', '.join(task):<48}", end="", file=sys.stderr, flush=True)
        result, failure = _in_its_own_process(module, task, ONE_THREAD if environment is None else environment, seconds)
        print(f"\r{'':<80}\r", end="", file=sys.stderr, flush=True)
        yield task, result, failure


def _in_its_own_process(module, task, environment, seconds):
    command = [sys.executable, "-m", module, "--measure", *task]
    environment = {**os.environ, **environment, _STARTED: repr(time.time())}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None, f"ended after {seconds:.0f} s"
    if done.returncode:
        return None, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), None  # a library may have printed above it


def since_start():
    """Seconds since this process was asked for: Python's start and the imports are in them."""
    return time.time() - float(os.environ[_STARTED])


def one_thread():
    """The same for everybody, and the one number of threads that two cores can be fair with."""
    import torch

    torch.set_num_threads(1)


def installed(distribution):
    """The version of a distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def spread(times):
    """The median with the lowest and the highest, for a column."""
    return f"{statistics.median(times):8.1f} {min(times):7.1f}–{max(times):<7.1f}"


def machine():
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {"cpu": cpu or platform.processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def keep(name, versions, *, beside_others=False, **measured):
    """Writes what was measured, on which machine and with which versions, as benchmarks/results/NAME-DATE.json.

    With `beside_others`, what was measured on the same day and not again stays.
    """
    path = RESULTS / f"{name}-{date.today()}.json"
    (append if beside_others else write)(path, {"machine": machine(), "versions": versions, **measured})
    print(f"\nkept in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def write(path, found):
    """Writes a tree as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1) + "\n")
    part.replace(path)


def append(path, found):
    """Writes a tree as JSON into a file, beside what that holds already; where both have a leaf, the new one stands."""
    write(path, beside(json.loads(path.read_text()), found) if path.exists() else found)


def beside(old, new):
    """Two trees of dicts as one, the new leaves over the old ones."""
    both = {key: beside(old[key], new[key]) for key in old.keys() & new.keys() if isinstance(new[key], dict)}
    return {**old, **new, **both}
