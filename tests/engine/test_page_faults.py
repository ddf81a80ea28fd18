"""A step on a CPU takes the memory that the one before it has freed, without new pages from the system."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from torch import nn
import stoker

def note_faults(ctx):
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

faults = []
x, y = torch.randn(640, 1, 28, 28), torch.randint(10, (640,))
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(1024, 10)),
)
learner = stoker.Learner(model, loss=nn.CrossEntropyLoss(), lr=1e-3, seed=0, device="cpu")
learner.fit((x, y), batch_size=64, epochs=5, callbacks=[stoker.callbacks.on(epoch_end=note_faults)], show=False)
print((faults[-1] - faults[-3]) / 20)
"""


def faults_per_update(**environment):
    """In a process of its own, since glibc adapts to what a process has freed."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    environment = {**others, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other limits")
def test_steps_take_no_new_pages_from_the_system():
    assert faults_per_update() < 20
    # A negative control: with this limit glibc gives the memory back after each step.
    assert faults_per_update(MALLOC_TRIM_THRESHOLD_="131072") > 200
