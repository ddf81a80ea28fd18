"""Who is measured: every contender has its file, and one that is not installed is left out with a line."""

import ast
from pathlib import Path

import pytest

from benchmarks import _contenders, peers
from benchmarks._contenders import CONTENDERS, EAGER, Contender, fit_of, versions_of, why_left_out

FOLDER = Path(peers.__file__).parent


@pytest.mark.parametrize("name", list(CONTENDERS))
def test_a_contender_has_a_function_of_workload_epochs_and_clock(name):
    file, function = CONTENDERS[name].function.split(".")
    tree = ast.parse((FOLDER / f"{file}.py").read_text())  # not imported: its library may not be installed
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    assert [argument.arg for argument in found.args.args] == ["work", "epochs", "clock"]


def test_every_file_of_the_peers_is_somebodys():
    used = {each.function.split(".")[0] for each in CONTENDERS.values()}
    assert used == {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}


def test_what_torch_alone_can_do_is_there():
    for name in EAGER:
        assert callable(fit_of(name)) and why_left_out(name) is None


def test_a_peer_that_is_not_installed_is_left_out_with_a_line(monkeypatch):
    other = Contender("other.fit", "a-distribution-that-nobody-made", "Other")
    monkeypatch.setitem(_contenders.CONTENDERS, "other", other)
    assert why_left_out("other") == (
        "other is left out: a-distribution-that-nobody-made is not installed (pip install '.[bench]')"
    )


def test_versions_name_torch_always():
    assert versions_of([])["torch"].startswith("2.")
    assert list(versions_of(["stoker", "dataloader"])) == ["stoker", "torch"]
