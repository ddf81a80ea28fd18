"""Settings for all tests: threads, the import path of child processes, hypothesis, signals, and CUDA."""

import gc
import os
import signal
from pathlib import Path

# One thread per process: tests run in several processes at once, and sums of several threads differ in their last bits.
os.environ["OMP_NUM_THREADS"] = "1"
# Child processes import this checkout, wherever they run.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
os.environ["MPLBACKEND"] = "Agg"

import pytest
import torch
from hypothesis import settings

ROOT = Path(__file__).parents[1]
torch.set_num_threads(1)  # a plugin may have imported torch before the environment was set
# No deadline: a busy machine must not fail a test. CI tries the same examples every time, so that only a change can
# make it fail; elsewhere they are random.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_configure():
    # A shell starts background jobs with Ctrl-C ignored, and child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path, config):
    # `make soak` imports only files with long tests: each of its processes would import all of them.
    is_test = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    if config.option.markexpr == "soak" and is_test and "soak" not in collection_path.read_text():
        return True
    return None


def pytest_collection_finish():
    # What was imported stays: without it, `gc.collect()` in a test takes microseconds instead of half a second.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
