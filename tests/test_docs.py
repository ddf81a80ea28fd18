"""Documentation that runs: examples in docstrings, code of the pages, and the programs in examples/."""

import contextlib
import doctest
import importlib
import io
import os
import re
import runpy
import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.distributed.processes import launched
from torture.processes import Child

PACKAGE = ROOT / "stoker"
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in PACKAGE.rglob("*.py")
)
LONG = ("08_resume.py", "09_two_processes.py", "own_loop.py")
PROGRAMS = [
    pytest.param(path, marks=pytest.mark.soak if path.name in LONG else ())
    for path in [*sorted((ROOT / "examples" / "tour").glob("*.py")), ROOT / "examples" / "own_loop.py"]
]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


def run_in(folder, program):
    """Runs a program as `python -W error program` would, forked from a process that has imported torch."""
    child = Child(_run_program, folder, program, prints=folder.with_suffix(".txt"))
    assert child.wait() == 0, child.printed()[-6000:]


def _run_program(folder, program):
    os.chdir(folder)
    sys.argv = [str(program)]
    runpy.run_path(str(program), run_name="__main__")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_a_program_runs_and_writes_nothing_but_its_run(program, tmp_path):
    run_in(tmp_path, program)
    written = {path.name for path in tmp_path.iterdir()}
    assert written <= ({"runs"} if program.name == "own_loop.py" else set())


TOUR = ROOT / "examples" / "tour"


def print_digest(run, kill_at):
    """Runs the training of the tour's program about resuming, without its pauses; kills it at an update."""
    program = runpy.run_path(str(TOUR / "08_resume.py"))

    def on_train_batch_end(self, ctx):
        if ctx.update == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    program["Slowly"].on_train_batch_end = on_train_batch_end
    print("digest", program["train"](run))


def test_the_program_about_resuming_ends_with_the_same_bits_after_a_kill(tmp_path):
    digests = []
    for name, kill_at in (("killed", 57), ("killed", None), ("whole", None)):
        child = Child(print_digest, str(tmp_path / name), kill_at, prints=tmp_path / "printed.txt")
        assert child.wait() == (0 if kill_at is None else -signal.SIGKILL), child.printed()
        digests += [line for line in child.printed().splitlines() if line.startswith("digest")]
    assert len(digests) == 2 and digests[0] == digests[1]


def print_scores(rank, size):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(TOUR / "09_two_processes.py"))["main"]()
    return [
        float(number) for line in printed.getvalue().splitlines() if "scores" in line for number in line.split()[1:]
    ]


def test_the_program_for_several_processes_gives_the_scores_of_one():
    (alone,), (first, second) = launched(print_scores, 1), launched(print_scores, 2)
    assert len(alone) == 4 and first == pytest.approx(alone, rel=1e-4, abs=1e-5) and second == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    if not blocks:
        pytest.skip("no code on this page")
    (tmp_path / "page.py").write_text("\n".join(blocks))
    run_in(tmp_path, tmp_path / "page.py")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files(page):
    for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_tests_that_guard_a_promise_exist():
    promises = (ROOT / "docs" / "promises.md").read_text().split("\n## ")[1:]
    assert len(promises) == 12
    for promise in promises:
        guards = re.findall(r"`(tests/\S+)::(test_\w+)`", promise)
        assert guards and "*Not promised:*" in promise, promise.splitlines()[0]
        for path, name in guards:
            assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_the_readme_has_a_map_of_the_repository():
    """Every path on the map exists, and every package and top-level directory is on the map."""
    drawn = re.search(r"```text\n(stoker/.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert drawn, "the README has no map"
    named, parents = set(), []
    for line in drawn.group(1).splitlines():
        if line.strip():
            parents[(len(line) - len(line.lstrip())) // 2 :] = [line.split()[0]]
            named.add("".join(parents))
    for name in named:
        assert (ROOT / name).exists(), f"{name} is on the map, but not on the disk"
    command = ["git", "ls-files"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {f"{path.split('/')[0]}/" for path in tracked if "/" in path and not path.startswith(".")}
    packages = {f"stoker/{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    modules = {f"stoker/{path.name}" for path in PACKAGE.glob("*.py")} - {"stoker/__init__.py"}
    missing = (folders | packages | modules) - named
    assert not missing, f"not on the map: {sorted(missing)}"
