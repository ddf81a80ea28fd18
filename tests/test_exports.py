"""A package exports what the reference documents, and every name is documented and typed."""

import ast
import importlib
import inspect
import re
from collections import defaultdict
from pathlib import Path

import pytest

import stoker
from tests.test_architecture import PACKAGES

ROOT = Path(__file__).parent.parent
PACKAGE_NAMES = [f"stoker.{name}" for name in PACKAGES]
MODULES = ["stoker", *PACKAGE_NAMES, "stoker.config", "stoker.view.report"]


def documented_names():
    """The names that the reference documents, by module: the members of a `:::` line, or all of the module."""
    found = defaultdict(set)
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name, options in re.findall(r"^::: (stoker\.\S+)\n((?:    .*\n?)*)", page.read_text(), flags=re.MULTILINE):
            module, _, member = name.rpartition(".")
            if member[0].isupper():  # `stoker.callbacks.Context`, with its methods
                found[module].add(member)
                continue
            members = re.search(r"members: \[(.*)\]", options)
            found[name] |= set(re.findall(r"\w+", members[1]) if members else importlib.import_module(name).__all__)
    return found


@pytest.mark.parametrize("module_name", [*PACKAGE_NAMES, "stoker.config", "stoker.view.report"])
def test_a_package_exports_what_the_reference_documents(module_name):
    module = importlib.import_module(module_name)
    assert module.__doc__
    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) <= set(dir(module))
    assert set(module.__all__) == documented_names()[module_name]


def test_the_reference_has_every_name_of_stoker():
    documented = set().union(*documented_names().values())
    assert {name for name in stoker.__all__ if not inspect.ismodule(getattr(stoker, name))} - documented == set()


@pytest.mark.parametrize("package", [name for name in PACKAGES if hasattr(getattr(stoker, name, 0), "__path__")])
def test_names_that_are_imported_on_first_use_are_those_that_type_checkers_see(package):
    module = importlib.import_module(f"stoker.{package}")
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith(f"stoker.{package}."):
            for alias in node.names:
                assert getattr(module, alias.name) is getattr(importlib.import_module(node.module), alias.name)


def test_the_lazy_names_are_those_that_type_checkers_see():
    static = {}
    for node in ast.walk(ast.parse(Path(stoker.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and all(alias.asname == alias.name for alias in node.names):
            static |= {alias.name: node.module for alias in node.names}
    assert {*stoker.__all__, "sklearn"} == {*static, *stoker.errors.__all__}
    for name, home in static.items():
        module = importlib.import_module(f"stoker.{name}" if home == "stoker" else home)
        assert getattr(stoker, name) is (module if home == "stoker" else getattr(module, name)), name
    assert {name for name, home in static.items() if home == "stoker"} <= set(PACKAGES)
    assert set(stoker.__all__) <= set(dir(stoker))


def test_a_misspelt_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'stoker' has no attribute 'Lerner'"):
        stoker.Lerner
    with pytest.raises(ImportError, match="cannot import name 'Lerner' from 'stoker'"):
        from stoker import Lerner  # noqa: F401


def names_of(module):
    """What a package exports, and what it imports for other packages; of a single file, what it exports."""
    if module is stoker or not hasattr(module, "__path__"):
        return module.__all__
    return sorted(name for name in dir(module) if name[0] != "_" and name not in ("TYPE_CHECKING", "import_on_use"))


@pytest.mark.parametrize(
    ("module_name", "name"),
    [(module_name, name) for module_name in MODULES for name in names_of(importlib.import_module(module_name))],
)
def test_every_name_of_a_package_has_a_docstring_and_types(module_name, name):
    value = getattr(importlib.import_module(module_name), name)
    if inspect.ismodule(value) or not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    assert inspect.getdoc(value), f"{module_name}.{name} has no docstring"
    for owner, member in [(name, value)] + [
        (f"{name}.{key}", each) for key, each in vars(value).items() if inspect.isfunction(each) and key[0] != "_"
    ]:
        assert inspect.getdoc(member), f"{module_name}.{owner} has no docstring"
        if inspect.isfunction(member):
            signature = inspect.signature(member)
            loose = [
                key for key, each in signature.parameters.items() if each.annotation is each.empty and key != "self"
            ]
            assert not loose, f"{module_name}.{owner}: untyped {loose}"
            assert signature.return_annotation is not signature.empty, f"{module_name}.{owner} has no return annotation"


def test_every_error_is_a_name_of_stoker_and_in_the_drawing():
    from stoker import errors

    family = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert family <= set(stoker.__all__)
    for name in family:
        assert name in errors.__doc__, f"{name} is missing in the docstring of errors.py"
        bases = [base.__name__ for base in getattr(errors, name).__bases__ if base.__module__ == "builtins"]
        assert name == "StokerError" or f"{name} ({', '.join(bases)})" in errors.__doc__
