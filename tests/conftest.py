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
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # for deterministic=True; cuBLAS reads it once

import pytest
import torch
from hypothesis import settings

from tests.device import SIMULATED

ROOT = Path(__file__).parents[1]
torch.set_num_threads(1)  # a plugin may have imported torch before the environment was set
# No deadline: a busy machine must not fail a test. CI tries the same examples every time, so that only a change can
# make it fail; elsewhere they are random.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# Hundreds of fits would only wait for the disk; tests/checkpoint covers power cuts.
WITHOUT_FSYNC = {"engine", "executors", "learner", "random_programs", "test_faults.py"}
NOT_RUN = "no NVIDIA GPU here"


def pytest_configure(config):
    # A shell starts background jobs with Ctrl-C ignored, and child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if SIMULATED:
        config.pluginmanager.import_plugin("simulated_cuda.pytest_plugin")


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
    for item in items:
        needs = item.get_closest_marker("needs_gpu")
        reason = None
        if item.get_closest_marker("cuda") and not torch.cuda.is_available():
            reason = NOT_RUN
        elif needs and SIMULATED:
            reason = f"needs a GPU: {needs.args[0]}"
        elif item.get_closest_marker("simulated") and not SIMULATED:
            reason = "tests the simulated CUDA device, which is not in use"
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    if count := sum(isinstance(each.longrepr, tuple) and NOT_RUN in each.longrepr[2] for each in skipped):
        terminalreporter.write_line(
            f"{count} CUDA tests were not run: {NOT_RUN}; `make test-simulated` runs them on a simulated device"
        )


@pytest.fixture(autouse=True)
def skip_fsync(request, monkeypatch):
    if WITHOUT_FSYNC & {request.path.name, request.path.parent.name}:
        monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture
def mesh():
    """A device mesh of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()
