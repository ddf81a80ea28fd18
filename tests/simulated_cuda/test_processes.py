"""Processes that a program starts have the device too, and the runner says what it needs."""

import multiprocessing
import sys
from pathlib import Path

import pytest
import torch

from tests.simulated_cuda.helpers import environment_without_device, run_python

RUN = ("-m", "simulated_cuda")
ON_DEVICE = [pytest.mark.cuda, pytest.mark.simulated]


def on_device(*marks):
    def decorate(test):
        for mark in [*ON_DEVICE, *marks]:
            test = mark(test)
        return test

    return decorate


def double(value):
    return (torch.tensor(value, device="cuda") * 2).item()


@on_device(pytest.mark.parametrize("how", ["fork", "spawn"]))
def test_child_processes_have_the_device(how):
    torch.ones(4, device="cuda")
    with multiprocessing.get_context(how).Pool(1) as pool:
        assert pool.apply_async(double, (3,)).get(timeout=120) == 6


@on_device()
def test_programs_that_the_program_starts_have_the_device():
    done = run_python("-c", "import torch; print(torch.ones(2, device='cuda').sum().item())")
    assert done.stdout == "2.0\n", done.stderr


@on_device()
def test_the_runner_runs_programs_and_modules_with_their_arguments(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import sys, torch\nprint(torch.cuda.is_available(), sys.argv[1:])\nsys.exit(3)\n")
    done = run_python(*RUN, str(program), "a", "-b", env=environment_without_device())
    assert (done.stdout, done.returncode) == ("True ['a', '-b']\n", 3), done.stderr
    done = run_python(*RUN, "-m", "json.tool", "--help", env=environment_without_device())
    assert "usage" in done.stdout


@on_device()
def test_a_program_without_the_runner_has_no_device():
    program = "import torch; print(torch.cuda.is_available())"
    assert run_python("-c", program, env=environment_without_device()).stdout == "False\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the simulated device needs Linux")
def test_a_missing_compiler_is_named(tmp_path):
    environment = environment_without_device() | {"PATH": str(tmp_path), "SIMULATED_CUDA_CACHE": str(tmp_path / "new")}
    done = run_python(*RUN, "-c", "pass", env=environment)
    assert done.returncode == 1
    assert "needs g++" in done.stderr and "the package g++" in done.stderr
    assert not (tmp_path / "new").exists() or not any(Path(tmp_path, "new").iterdir())
    elsewhere = "import sys; sys.executable = '/nowhere/python'; from simulated_cuda._build import build; build()"
    done = run_python("-c", elsewhere, env=environment)
    assert done.returncode == 1
    assert "needs g++ and ninja" in done.stderr and "pip install '.[dev]'" in done.stderr


def test_without_a_program_the_runner_prints_its_usage():
    done = run_python(*RUN, env=environment_without_device())
    assert done.returncode == 1 and "python -m simulated_cuda program.py" in done.stderr
