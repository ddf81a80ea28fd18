"""Documentation that runs: examples in docstrings, code of the pages, and the programs in examples/."""

import contextlib
import doctest
import importlib
import importlib.util
import io
import os
import re
import runpy
import signal
import subprocess
import sys

import pytest

from stoker import callbacks, cli, errors, metrics, schedule
from tests.conftest import ROOT
from tests.distributed.processes import launched
from torture.processes import Child

PACKAGE = ROOT / "stoker"
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>>" in path.read_text()
)
LONG = ("08_resume.py", "09_two_processes.py", "own_loop.py")
PROGRAMS = [
    pytest.param(path, marks=pytest.mark.soak if path.name in LONG else ())
    for path in [*sorted((ROOT / "examples" / "tour").glob("*.py")), ROOT / "examples" / "own_loop.py"]
]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
LONG_PAGES = ("start/own-data.md", "export.md", "lightning.md")  # relative to docs/; they run in `make soak`
LIBRARIES = {"PyTorch": "torch", "Trainer": "transformers", "Ignite": "ignite"}  # titles that are not module names


def name_of(page):
    return str(page.relative_to(ROOT))


def python_blocks(page, title=""):
    """The Python code of a page: blocks without a title, or with this one."""
    marker = f' title="{re.escape(title)}"' if title else ""
    return re.findall(rf"^```python{marker}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def headings(page):
    """The anchors of a page, as the site makes them: of its headings, with code fences left out."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in found)
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0 < tried


def run_in(folder, program):
    """Runs a program as `python -W error program` would, forked from a process that has imported torch."""
    child = Child(_run_program, folder, program, prints=folder.with_suffix(".txt"))
    assert child.wait() == 0, child.printed()[-6000:]
    return child.printed()


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


@pytest.mark.soak
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


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.soak if name_of(page).removeprefix("docs/") in LONG_PAGES else ())
        for page in PAGES
        if python_blocks(page) and page.name != "huggingface.md"  # imports Transformers: compared below, in `make soak`
    ],
    ids=name_of,
)
def test_the_code_of_a_page_runs(page, tmp_path):
    (tmp_path / "page.py").write_text("\n".join(python_blocks(page)))
    run_in(tmp_path, tmp_path / "page.py")


PORTED = [
    (page, title)
    for page in sorted((DOCS / "migrate").glob("*.md"))
    for title in re.findall(r'^```python title="(.*)"$', page.read_text(), flags=re.MULTILINE)
]


@pytest.mark.soak
@pytest.mark.parametrize(("page", "title"), PORTED, ids=[title for _, title in PORTED])
def test_a_program_of_another_library_and_its_port_reach_the_same_accuracy(page, title, tmp_path):
    if importlib.util.find_spec(LIBRARIES.get(title, title.lower())) is None:
        pytest.skip(f"{title} is not installed")
    original, port = tmp_path / "original.py", tmp_path / "port.py"
    original.write_text("\n".join(python_blocks(page, title)))
    port.write_text("\n".join(python_blocks(page)))
    done = subprocess.run([sys.executable, original], cwd=tmp_path, capture_output=True, text=True)
    if "torchvision::nms does not exist" in done.stderr:
        pytest.skip(f"{title} imports torchvision, which is installed for another build of torch")
    assert done.returncode == 0, done.stderr[-6000:]
    outputs = done.stdout, run_in(tmp_path, port)
    reached = [float(re.findall(r"accuracy: (\S+)", output)[-1]) for output in outputs]
    assert reached[0] == pytest.approx(reached[1], abs=0.04)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_and_included_files_of_a_page_exist(page):
    """Pages of the site link to files of the site: the rest of the repository is not on it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link, anchor in re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        assert page.parent == ROOT or target.is_relative_to(DOCS), f"{link} leads out of docs/; name it in `code`"
        if anchor and not target.is_relative_to(DOCS / "reference"):  # those have headings from docstrings
            assert anchor in headings(target), f"{link}#{anchor}"
    for name in re.findall(r'--8<-- "([^"]+)"', page.read_text()):
        assert (ROOT / name).is_file() or page.name == "CONTRIBUTING.md", name


def test_the_navigation_of_the_site_names_files_that_exist():
    entries = re.findall(r'= "([^"]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert len(entries) == len(set(entries)) > 50
    assert [entry for entry in entries if not (DOCS / entry).is_file()] == []


def reference(name):
    return (DOCS / "reference" / f"{name}.md").read_text()


def test_the_tables_of_the_reference_are_complete(capsys):
    """Hooks in their order, all metrics and schedules, and every command."""
    assert tuple(re.findall(r"^\| `(on_\w+)` \|", reference("callbacks"), flags=re.MULTILINE)) == callbacks.HOOK_NAMES
    kinds = (metrics.Metric, metrics.Meter)
    public = {name: getattr(metrics, name) for name in metrics.__all__ if name not in ("Metric", "Meter")}
    for name in [name for name, value in public.items() if isinstance(value, type) and issubclass(value, kinds)]:
        assert f"[`{name}`][stoker.metrics.{name}]" in reference("metrics"), name
    others = {"Schedule", "ScheduleLike", "as_schedule", "plot"}
    for name in set(schedule.__all__) - others:
        assert f"[`{name}`][stoker.schedule.{name}]" in reference("schedules"), name
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    for command in re.findall(r"^    ([a-z]+)\b", capsys.readouterr().out, flags=re.MULTILINE):
        assert f"| `stoker {command}" in reference("cli"), command


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_has_its_cause_and_remedy(name):
    text = getattr(errors, name).__doc__
    assert name == "StokerError" or ("*Cause:*" in text and "*Remedy:*" in text)


def test_the_tests_that_guard_a_promise_exist():
    promises = (ROOT / "docs" / "promises.md").read_text().split("\n## ")[1:]
    assert len(promises) == 12
    for promise in promises:
        guards = re.findall(r"`(tests/\S+)::(test_\w+)`", promise)
        assert guards and "*Not promised:*" in promise, promise.splitlines()[0]
        for path, name in guards:
            assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_contributing_has_a_map_of_the_repository():
    """Every path on the map exists, and every package and top-level directory is on the map."""
    drawn = re.search(r"```text\n(stoker/.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert drawn, "CONTRIBUTING.md has no map"
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
