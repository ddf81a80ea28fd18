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


def batches_of(x, y):
    """The way to shuffled batches that everybody writes."""
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)


def in_turn(module, tasks):
    """What each task printed as JSON, by task: `python -m module --measure *task`, each in a process of its own.

    Tasks that stand in the list several times give as many results; put them in an order in which a slow minute of
    the machine hits all contenders.
    """
    found = {task: [] for task in tasks}
    for done, task in enumerate(tasks, 1):
        print(f"\r  measuring {done} of {len(tasks)}: {', '.join(task):<48}", end="", file=sys.stderr, flush=True)
        found[task].append(_in_its_own_process(module, task))
    print(f"\r{'':<80}\r", end="", file=sys.stderr)
    return found


def _in_its_own_process(module, task):
    command = [sys.executable, "-m", module, "--measure", *task]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", _STARTED: repr(time.time())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"\n{', '.join(task)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])  # a library may have printed above it


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


def keep(name, versions, **measured):
    """Writes what was measured, on which machine and with which versions, as benchmarks/results/NAME-DATE.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}-{date.today()}.json"
    path.write_text(json.dumps({"machine": machine(), "versions": versions, **measured}, indent=1) + "\n")
    print(f"\nkept in {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
