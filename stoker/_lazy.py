"""Names of a package that are imported when they are first used, so that most programs do not load their modules."""

import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any


def import_on_use(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose modules are loaded when one of their names is first used.

    `modules` maps each module of the package to its names: `{"_csv": "CSV"}`. A module that has its own name among
    them is an attribute itself. After its first use a name is an ordinary attribute.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # A collection would visit all objects of torch, which takes longer than the import of stoker itself.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            module = __import__(f"{package}.{homes[name]}", fromlist=[name])
        finally:
            if was_enabled:
                gc.enable()
        value = module if homes[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def list_attributes() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get_attribute, list_attributes
