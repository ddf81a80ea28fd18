"""Builds the wheel and the sdist, looks into them, and runs the program of the README in a bare environment.

The environment has the wheel and stoker's core dependencies, which are linked from the environment that runs this
program instead of being installed again: torch alone would take minutes.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]


def run(*command, cwd=ROOT):
    """Runs a command and returns what it printed; prints it and exits if the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{' '.join(words)} failed with exit code {done.returncode}")
    return done.stdout


def check(condition, problem):
    if not condition:
        sys.exit(f"release-check: {problem}")


def tracked(*folders):
    return set(run("git", "ls-files", *folders).splitlines())


def check_versions():
    declared = re.search(r'^__version__ = "(.+)"$', (ROOT / "stoker" / "__init__.py").read_text(), flags=re.MULTILINE)
    check(declared and declared[1] == VERSION, f"stoker.__version__ is not {VERSION}, the version in pyproject.toml")
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    check(titles and titles[0].split()[0] in ("Unreleased", VERSION), f"CHANGELOG.md begins with {titles[:1]}")


def check_wheel(path):
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = f"stoker-{VERSION}.dist-info"
        metadata = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    inside = {name for name in names if not name.startswith(f"{info}/")}
    wanted = tracked("stoker")
    check(
        inside == wanted, f"the wheel lacks {sorted(wanted - inside)[:5]}, has too much: {sorted(inside - wanted)[:5]}"
    )
    check("stoker/py.typed" in inside, "the wheel has no py.typed, so type checkers ignore its annotations")
    check(f"{info}/licenses/LICENSE" in names, "the wheel has no licence")
    check("stoker = stoker.cli:main" in entry_points, "the wheel does not install the command stoker")
    check(metadata["Version"] == VERSION, f"the wheel has the version {metadata['Version']}")
    check(metadata["Requires-Python"] == PROJECT["requires-python"], "the wheel has another Requires-Python")
    check("Typing :: Typed" in metadata.get_all("Classifier", []), "the wheel is not marked as typed")
    check(len(metadata.get_payload()) > 1000, "the wheel has no description")
    core = [each for each in metadata.get_all("Requires-Dist") if "extra ==" not in each]
    check(len(core) == len(PROJECT["dependencies"]), f"the wheel requires {core}")


def check_sdist(path):
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = tracked("stoker", "tests", "docs", "examples", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml")
    check(wanted <= names, f"the sdist lacks {sorted(wanted - names)[:5]}")
    extra = names - wanted - tracked() - {"PKG-INFO"}
    check(not extra, f"the sdist has too much: {sorted(extra)[:5]}")


def core_packages():
    """The distributions that stoker needs without extras, and those that they need."""
    found, todo = {}, list(PROJECT["dependencies"])
    while todo:
        requirement = Requirement(todo.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found[name] = distribution(name)
            todo += found[name].requires or []
    return found.values()


def make_bare_environment(folder, wheel):
    """A virtual environment with the wheel, and links to the core dependencies; returns its Python."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    links = folder / "core"
    links.mkdir()
    for each in core_packages():
        for top in {file.parts[0] for file in each.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (links / top).exists():
                (links / top).symlink_to(Path(each.locate_file(top)))
    (packages / "core.pth").write_text(f"{links}\n")
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", f"--python={python}", "install", "-q", "--no-deps", "--no-index", wheel)
    return python


def check_installed(python, folder):
    """Runs the README's program and the command, and looks at what a missing extra says."""
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[1]
    (folder / "program.py").write_text(program)
    print(run(python, "-W", "error", "program.py", cwd=folder).strip().splitlines()[-1])
    where = run(python, "-c", "import stoker; print(stoker.__file__)", cwd=folder).strip()
    check(where.startswith(str(python.parent.parent)), f"the program used {where}, not the wheel")
    for module, extra in (("sklearn", "sklearn"), ("matplotlib", None), ("pytest", None)):
        code = f"import {module}" if extra is None else f"import stoker; stoker.{module}"
        answer = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True)
        expected = "ModuleNotFoundError" if extra is None else f'pip install "stoker[{extra}]"'
        check(
            answer.returncode and expected in answer.stderr, f"{code!r} in a bare environment: {answer.stderr[-300:]}"
        )
    listed = run(python.parent / "stoker", "runs", cwd=folder)
    check("digits" in listed, f"stoker runs does not list the run of the README: {listed}")


def main():
    check_versions()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT)
        sdist, wheel = sorted((folder / "dist").iterdir(), key=lambda path: path.suffix != ".gz")
        run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        check_wheel(wheel)
        check_sdist(sdist)
        (folder / "work").mkdir()
        check_installed(make_bare_environment(folder / "bare", wheel), folder / "work")
        print(
            f"{wheel.name} ({wheel.stat().st_size:,} bytes) and {sdist.name} ({sdist.stat().st_size:,} bytes) are fine"
        )


if __name__ == "__main__":
    main()
