"""The house of rooms: imports point upstream and go through the doors; files and functions stay small."""

import ast
from pathlib import Path

import pytest

import stoker

ROOT = Path(stoker.__file__).parent
# In the order in which the data walks through them; a room may import the rooms before it.
ROOMS = [
    "distributed",
    "data",
    "step",
    "gradients",
    "schedule",
    "optim",
    "weights",
    "metrics",
    "record",
    "checkpoint",
    "show",
    "watch",
    "ui",
    "report",
    "callbacks",
    "program",
    "loop",
    "learner",
    "cli",
]
# What stands at the top and any room may import; they import only each other, upwards.
GROUND = ["errors", "config", "_select"]
# What has no business with torch: a schedule is arithmetic, and what only reads runs starts at once.
LIGHT = ("schedule", "config", "errors", "record", "show", "watch", "ui", "report")
FILES = sorted(ROOT.rglob("*.py"))


def place_of(path):
    """The room (or the file of the ground) that a file is in; "" for the package's own door."""
    first, *rest = path.relative_to(ROOT).parts
    return first if rest else ("" if first == "__init__.py" else Path(first).stem)


def imports_of(path):
    """Every stoker module that a file imports, with its line, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            if node.module == "stoker":
                yield from ((f"stoker.{alias.name}", node.lineno) for alias in node.names)
            else:
                yield node.module, node.lineno


def faults_of(path):
    place = place_of(path)
    for module, line in imports_of(path):
        if place in LIGHT and module.split(".")[0] == "torch":
            yield f"{path.name}:{line}: {place} has no business with {module}"
        if not module.startswith("stoker.") or place == "":
            continue
        _, target, *inside = module.split(".")
        where = f"{path.relative_to(ROOT)}:{line} imports {module}"
        if target == place:
            continue
        if target in GROUND:
            if inside:
                yield f"{where}: past the door of {target}"
            elif place in GROUND and GROUND.index(target) > GROUND.index(place):
                yield f"{where}: downstream"
        elif place == "cli" and target not in ROOMS:
            continue  # the command line is a user of the package like any other
        elif target not in ROOMS or place not in ROOMS:
            yield f"{where}: no room, or a room from the ground"
        elif ROOMS.index(target) > ROOMS.index(place):
            yield f"{where}: downstream"
        elif inside:
            yield f"{where}: past the door of {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upstream_and_go_through_the_doors(path):
    assert list(faults_of(path)) == []


def test_every_room_is_in_the_order():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    files = {path.stem for path in ROOT.glob("*.py")} - {"__init__"}
    assert rooms | files == {*ROOMS, *GROUND}
    for room in rooms:
        for path in (ROOT / room).glob("*.py"):
            assert path.name.startswith("_"), f"{path}: files in a room are underscored"


def test_the_check_itself_sees_a_wrong_import(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.test_house.ROOT", tmp_path)
    for text, fault in (
        ("from stoker.optim import Adam", "downstream"),
        ("def f():\n    from stoker.weights import save", "downstream"),
        ("from stoker.data._loader import Loader", "past the door"),
        ("import stoker.optim", "downstream"),
    ):
        path = tmp_path / "step" / "_wrong.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert [fault in each for each in faults_of(path)] == [True], text


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path):
    text = path.read_text()
    assert text.count("\n") <= 300, "look for the second idea in this file"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            documented = ast.get_docstring(node, clean=False)
            lines = node.end_lineno - node.lineno + 1 - (documented.count("\n") + 1 if documented else 0)
            assert lines <= 50, f"{node.name} has {lines} lines without its docstring"


def test_grad_is_touched_in_two_files_only():
    touching = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr == "grad" and not ast.unparse(node).endswith("autograd.grad")
    }
    assert touching == {"gradients/_backward.py", "optim/_wrap.py"}


def test_no_file_is_unpickled_and_nothing_imported_by_name():
    for path in FILES:
        modules = [module for module, _ in imports_of(path)]
        assert not {"importlib", "dill", "cloudpickle", "shelve", "marshal", "runpy"} & set(modules), path
        names = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        if path.parent.name != "data":  # there it is what our own processes say to each other, never a file
            assert not {"pickle.load", "pickle.loads", "pickle.Unpickler", "sys.modules.__getitem__"} & names, path
