"""What all tests share."""

import os
import signal

# One thread per process: tests run in several processes at once, and more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# CI searches the same examples every time, so that a red run is the change's doing; at home they are new each time.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


def pytest_configure():
    # A shell starts background jobs with Ctrl-C ignored, and children inherit that; tests need it as users do.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))
