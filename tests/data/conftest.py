"""Runs small programs in processes of their own, for behaviour that only the end of a process shows."""

import json
import os
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

# A Python process that has imported torch and stoker, and forks a child for each program: a real process with a real
# end, without the seconds that the imports take.
LAUNCHER = """
import json, os, sys, torch
from stoker.data import Loader
for line in sys.stdin:
    code, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
os.setsid()
for stream, path in ((1, out), (2, err)):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), stream)
exec(code, globals())
"""


@pytest.fixture(scope="session")
def launcher():
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], env=buffered, **pipes) as process:
        yield process
        process.kill()  # workers of this process may hold its stdin open, so it would not see the end of it


@pytest.fixture
def run(launcher, tmp_path):
    """Runs a program; returns its exit status, its output and its errors."""

    def run(code):
        out, err = tmp_path / "out", tmp_path / "err"
        print(json.dumps([textwrap.dedent(code), str(out), str(err)]), file=launcher.stdin, flush=True)
        status = int(launcher.stdout.readline())
        return SimpleNamespace(status=status, out=out.read_text(), err=err.read_text())

    return run
