"""Checks of arguments that several functions take."""

from collections.abc import Callable
from typing import Any

from stoker.errors import InvalidArgument, WrongType


def check_int(name: str, value: Any, *, least: int | None = None) -> int:
    """Returns an integer argument, or raises if it is of another type or below `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise WrongType(f"{name} has to be an integer; got {value!r}")
    if least is not None and value < least:
        raise InvalidArgument(f"{name} has to be at least {least}; got {value}")
    return int(value)


def check_function(name: str, value: Any) -> Callable[..., Any] | None:
    """Returns a function or None, or raises if the value is neither."""
    if value is not None and not callable(value):
        raise WrongType(f"{name} has to be a function; got {type(value).__name__}")
    return value


def either(name: str, value: Any, alias: str, alias_value: Any) -> Any:
    """Returns the value of an option that has two names, or raises if both names are given."""
    if value is not None and alias_value is not None:
        raise InvalidArgument(
            f"{name}={value!r} and {alias}={alias_value!r} are both given, and they are two names of one option; "
            "pass one of them"
        )
    return alias_value if value is None else value
