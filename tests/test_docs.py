"""Docs that run: every docstring's example, the README's code, and the programs of the tour."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker

PACKAGE = Path(stoker.__file__).parent
ROOT = PACKAGE.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in PACKAGE.rglob("*.py")
)
PROGRAMS = [*sorted((ROOT / "examples" / "tour").glob("*.py")), ROOT / "examples" / "own_loop.py"]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


def run_in(folder, program, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", program, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_programs_run_as_written(program, tmp_path):
    run_in(tmp_path, program)
    written = {path.name for path in tmp_path.iterdir()}
    assert written <= ({"runs"} if program.name == "own_loop.py" else set()), (
        "nothing is written where nothing was named"
    )


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_a_pages_code_runs(page, tmp_path):
    code = "\n".join(blocks(page))
    (tmp_path / "page.py").write_text(code)
    run_in(tmp_path, tmp_path / "page.py")


def test_the_readmes_map_matches_the_disk():
    """Every folder and file that the map names is there, and every room and top-level folder is on the map."""
    text = (ROOT / "README.md").read_text()
    drawn = re.search(r"```text\n(.*?)```", text, flags=re.DOTALL)
    assert drawn, "the README has no map"
    named, stack = set(), []
    for line in drawn.group(1).splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        stack[depth:] = [name]
        named.add("".join(stack))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    for name in named:
        assert (ROOT / name).exists(), f"{name} is on the map, not on the disk"
    folders = {f"{path.split('/')[0]}/" for path in tracked if "/" in path and not path.startswith(".")}
    rooms = {f"stoker/{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    top = {f"stoker/{path.name}" for path in PACKAGE.glob("*.py")} - {"stoker/__init__.py"}
    assert folders | rooms | top <= named, f"missing on the map: {sorted((folders | rooms | top) - named)}"
    links = re.findall(r"\]\((?!http)([^)#]+)", text)
    assert all((ROOT / link).exists() for link in links)
