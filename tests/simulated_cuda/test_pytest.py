"""The plugin for pytest, and which tests are skipped where."""

import os

import pytest

from tests.simulated_cuda.helpers import ROOT, environment_without_device, run_python

CONFTEST = (ROOT / "tests" / "conftest.py").read_text()
SETTINGS = """
[pytest]
markers =
    cuda
    needs_gpu(reason)
    simulated
"""


def outcome(folder, text, *arguments, **settings):
    """The output of pytest for one file, which has the conftest of these tests beside it."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_it.py").write_text("import pytest\nimport torch\n" + text)
    command = ("-m", "pytest", "-p", "no:cacheprovider", str(folder), "-c", str(folder / "pytest.ini"), *arguments)
    done = run_python(*command, **settings)
    return done.stdout + done.stderr


RACE = """
def test_race():
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1)

def test_after_it():
    torch.ones(4, device="cuda").add_(1)
"""


@pytest.mark.cuda
@pytest.mark.simulated
def test_a_race_fails_the_test_that_has_it(tmp_path):
    text = outcome(tmp_path, RACE)
    assert "1 failed, 1 passed" in text and "streams race: aten::add_ on stream" in text, text


LEAK = """
kept = []

def test_leak():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(4, device="cuda")
    kept.append(graph)

def test_after_it():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ones(4, device="cuda")
    graph.itself = graph  # garbage is no leak
"""


@pytest.mark.cuda
@pytest.mark.simulated
def test_graphs_that_are_left_behind_fail_the_test(tmp_path):
    text = outcome(tmp_path, LEAK)
    assert "2 passed, 1 error" in text and "the test leaves 1 CUDA graph" in text, text


KINDS = """
@pytest.mark.cuda
def test_cuda():
    assert torch.ones(4, device="cuda").sum() == 4

@pytest.mark.cuda
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.needs_gpu("NVML"))])
def test_needs_gpu(n):
    pass

@pytest.mark.cuda
@pytest.mark.simulated
def test_simulated():
    pass

def test_host():
    pass
"""


@pytest.mark.cuda
@pytest.mark.simulated
def test_on_the_simulated_device_what_needs_a_gpu_is_skipped(tmp_path):
    text = outcome(tmp_path, KINDS, "-rs")
    assert "4 passed, 1 skipped" in text and "needs a GPU: NVML" in text and "make test-simulated" not in text, text


@pytest.mark.parametrize("processes", [0, 2])
def test_without_a_device_one_line_says_how_many_tests_were_not_run(tmp_path, processes):
    environment = environment_without_device()
    environment.pop("PYTEST_XDIST_WORKER", None)
    text = outcome(tmp_path, KINDS, *(["-n", str(processes)] if processes else []), env=environment)
    assert "1 passed, 4 skipped" in text, text
    assert text.count("4 CUDA tests were not run") == 1 and "make test-simulated" in text, text
    assert os.environ.get("SIMULATED_CUDA") or "needs a GPU" not in text
