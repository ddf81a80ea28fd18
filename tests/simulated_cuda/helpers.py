"""Captures functions, and imports what only exists on the simulated device."""

import importlib
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def control():
    """The module `simulated_cuda.control`, which can be imported on the simulated device only."""
    return importlib.import_module("simulated_cuda.control")


def capture(function, **settings):
    """Records a function in a CUDA graph. Returns the graph, and what the function has returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **settings):
        result = function()
    return graph, result


@contextmanager
def failed_capture(graph):
    """Cleans up after a capture that fails: torch leaves its stream current, and its pool in use."""
    stream = torch.cuda.current_stream()
    try:
        yield
    finally:
        torch.cuda.set_stream(stream)
        torch._C._cuda_endAllocateToPool(0, graph.pool())
        torch._C._cuda_releasePool(0, graph.pool())


def races_of(function):
    """The races that a function causes."""
    control().take_races()
    function()
    torch.cuda.synchronize()
    return control().take_races()


def environment_without_device():
    """The environment for a child process that has no simulated device."""
    gone = ("SIMULATED_CUDA", "LD_PRELOAD")
    environment = {name: value for name, value in os.environ.items() if name not in gone}
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if "simulated_cuda" not in path)
    environment["CUDA_VISIBLE_DEVICES"] = ""
    return environment


def run_python(*arguments, **settings):
    """Runs Python in the root of the repository, and returns what it did."""
    command = [sys.executable, *arguments]
    settings = {"cwd": ROOT, "text": True, "capture_output": True, "timeout": 240} | settings
    return subprocess.run(command, **settings)
