"""Every public name is exported by its door and documented."""

import importlib
import inspect

import pytest

import stoker
from tests.test_house import ROOMS

DOORS = ["stoker", *(f"stoker.{room}" for room in ROOMS), "stoker.config"]


def visible(module):
    """What a user finds: names without an underscore that are no imports of somebody else's modules."""
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (not inspect.ismodule(value) or (module is stoker and name in ROOMS[:-1]))
    }


@pytest.mark.parametrize("door", DOORS)
def test_a_door_exports_what_is_visible(door):
    module = importlib.import_module(door)
    assert set(module.__all__) == visible(module)
    assert len(module.__all__) == len(set(module.__all__))
    assert module.__doc__


@pytest.mark.parametrize(
    ("door", "name"), [(door, name) for door in DOORS for name in importlib.import_module(door).__all__]
)
def test_every_public_name_is_documented_and_typed(door, name):
    value = getattr(importlib.import_module(door), name)
    if inspect.ismodule(value) or not (inspect.isclass(value) or inspect.isfunction(value)):
        return
    assert inspect.getdoc(value), f"{door}.{name} has no docstring"
    for owner, member in [(name, value)] + [
        (f"{name}.{key}", each) for key, each in vars(value).items() if inspect.isfunction(each) and key[0] != "_"
    ]:
        assert inspect.getdoc(member), f"{door}.{owner} has no docstring"
        if inspect.isfunction(member):
            signature = inspect.signature(member)
            loose = [
                key for key, each in signature.parameters.items() if each.annotation is each.empty and key != "self"
            ]
            assert not loose, f"{door}.{owner}: untyped {loose}"
            assert signature.return_annotation is not signature.empty, f"{door}.{owner} returns what?"


def test_every_error_is_at_the_top():
    from stoker import errors

    family = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert family <= set(stoker.__all__)
    for name in family:
        assert name in errors.__doc__, f"{name} is missing in the drawing at the top of errors.py"
        bases = [base.__name__ for base in getattr(errors, name).__bases__ if base.__module__ == "builtins"]
        assert name == "StokerError" or f"{name} ({', '.join(bases)})" in errors.__doc__
