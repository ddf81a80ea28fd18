"""The packages import each other in one direction and through their `__init__`; a few rules hold in all of them."""

import ast
import importlib
from collections import defaultdict
from pathlib import Path

import pytest

import stoker

ROOT = Path(stoker.__file__).parent
# A package may import the packages before it in this list.
PACKAGES = [
    "distributed",
    "data",
    "steps",
    "gradients",
    "schedule",
    "optim",
    "weights",
    "metrics",
    "record",
    "checkpoint",
    "view",
    "callbacks",
    "engine",
    "learner",
    "_export",
    "burn",
    "hub",
    "lightning",
    "optuna",
    "sklearn",
    "cli",
]
# Modules at the top that every package may import. They import only those before them in this list.
SHARED = ["_lazy", "errors", "_text", "_files", "_figure", "config", "_tree", "_select", "_dispatch"]
# Packages that never import torch, so that schedules, readers of runs and viewers start at once.
WITHOUT_TORCH = ("schedule", "config", "errors", "record", "view", "_text", "_files", "_figure")
FILES = sorted(ROOT.rglob("*.py"))


def package_of(path):
    """The package or top-level module that a file belongs to; "" for `stoker/__init__.py`."""
    first, *rest = path.relative_to(ROOT).parts
    return first if rest else ("" if first == "__init__.py" else Path(first).stem)


def imports_of(path):
    """Yields every imported module with its line number, wherever the import statement is."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            if node.module == "stoker":
                yield from ((f"stoker.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def wrong_imports(path):
    package = package_of(path)
    for module, line in imports_of(path):
        if package in WITHOUT_TORCH and module.split(".")[0] == "torch":
            yield f"{path.name}:{line}: {package} must not import {module}"
        if not module.startswith("stoker.") or package == "":
            continue
        _, target, *inside = module.split(".")
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if target == package:
            continue
        if target in SHARED:
            if package in SHARED and SHARED.index(target) > SHARED.index(package):
                yield f"{where}: wrong direction"
        elif package == "cli" and target not in PACKAGES:
            continue  # the command line uses stoker's public names as any program does
        elif target not in PACKAGES or package not in PACKAGES:
            yield f"{where}: unknown package, or a package imported by a shared module"
        elif PACKAGES.index(target) > PACKAGES.index(package):
            yield f"{where}: wrong direction"
        if any(part.startswith("_") for part in inside):
            yield f"{where}: a private module of {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way_and_go_through_init(path):
    assert list(wrong_imports(path)) == []


def used_names(path):
    """Yields (package, name) for what a file imports from packages of stoker, or reads as an attribute of them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module.removeprefix("stoker."), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node.value).rpartition(".")[2], node.attr


def test_what_a_package_imports_without_exporting_it_is_used_elsewhere():
    """By other packages or by tests: ruff does not report unused imports in an `__init__`."""
    used = defaultdict(set)
    for path in [*FILES, *Path(__file__).parent.rglob("*.py")]:
        own = package_of(path) if path in FILES else None
        for package, name in used_names(path):
            if package != own:
                used[package].add(name)
    unused = set()
    for init in ROOT.glob("*/__init__.py"):
        package, module = init.parent.name, ast.parse(init.read_text())
        imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
        names = {alias.name for node in imports if node.module.startswith(f"stoker.{package}.") for alias in node.names}
        exported = importlib.import_module(f"stoker.{package}").__all__
        unused |= {f"{package}.{name}" for name in names - {*exported} - used[package]}
    assert unused == set()


def test_every_package_is_listed():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    modules = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert packages | modules == {*PACKAGES, *SHARED}


def test_the_check_itself_sees_a_wrong_import(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_architecture.ROOT", tmp_path)
    for text, fault in (
        ("from stoker.optim import Adam", "wrong direction"),
        ("def f():\n    from stoker.weights import save", "wrong direction"),
        ("from stoker.data._loader import Loader", "a private module"),
        ("import stoker.optim", "wrong direction"),
    ):
        path = tmp_path / "steps" / "_wrong.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert [fault in each for each in wrong_imports(path)] == [True], text


def test_matplotlib_is_imported_in_one_file_only():
    found = set()
    for path in FILES:
        blocks = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.If)]
        for_types = [
            range(each.lineno, each.end_lineno + 1) for each in blocks if ast.unparse(each.test) == "TYPE_CHECKING"
        ]
        for module, line in imports_of(path):
            if module.split(".")[0] == "matplotlib" and not any(line in each for each in for_types):
                found.add(str(path.relative_to(ROOT)))
    assert found == {"_figure.py"}


def test_grad_is_used_in_two_files_only():
    found = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "grad" and not ast.unparse(node).endswith("autograd.grad")
    }
    assert found == {"gradients/_backward.py", "optim/_wrap.py"}


def test_no_file_is_unpickled_and_nothing_is_imported_by_name():
    for path in FILES:
        modules = [module for module, _ in imports_of(path)]
        assert not {"importlib", "dill", "cloudpickle", "shelve", "marshal", "runpy"} & set(modules), path
        names = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        if path.parent.name != "data":  # pickle is used between our own worker processes there, never for files
            assert not {"pickle.load", "pickle.loads", "pickle.Unpickler", "sys.modules.__getitem__"} & names, path
