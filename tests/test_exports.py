"""Every public name is exported by its package, documented and typed."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import stoker
from tests.test_architecture import PACKAGES

MODULES = ["stoker", *(f"stoker.{name}" for name in PACKAGES), "stoker.config"]


def visible(module):
    """The names without an underscore that are not modules; of a single file, those that it defines."""
    names = {name for name, value in vars(module).items() if name[0] != "_" and not inspect.ismodule(value)}
    if hasattr(module, "__path__"):
        return names - {"TYPE_CHECKING", "import_on_use"}
    return {name for name in names if getattr(vars(module)[name], "__module__", "") == module.__name__}


@pytest.mark.parametrize("module_name", MODULES)
def test_a_package_exports_what_is_visible(module_name):
    module = importlib.import_module(module_name)
    assert len(module.__all__) == len(set(module.__all__))
    assert module.__doc__
    assert set(module.__all__) <= set(dir(module))
    if module is not stoker:
        for name in dir(module):  # imports those that are imported on first use
            getattr(module, name)
        assert set(module.__all__) == visible(module)


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


@pytest.mark.parametrize(
    ("module_name", "name"),
    [(module_name, name) for module_name in MODULES for name in importlib.import_module(module_name).__all__],
)
def test_every_public_name_is_documented_and_typed(module_name, name):
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
