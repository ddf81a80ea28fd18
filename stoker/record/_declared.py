"""What a run's beginning said of its numbers: what is better, and in which unit."""

from collections.abc import Iterable, Mapping
from typing import Any

from stoker.record._numbers import Direction


def direction_of(name: str, begin: Mapping[str, Any], losses: Iterable[str] = ()) -> Direction | None:
    """What is better of a number, as its metric declared it; of a loss less is.

    >>> direction_of("valid/accuracy", {"metrics": {"accuracy": {"direction": "max"}}})
    'max'

    `begin` is what the "begin" event has in its `extra`; `losses` are what an objective calls the parts of its loss.
    """
    found = _about(name, begin).get("direction")
    if found in ("min", "max"):
        return found
    return "min" if name.split("/")[-1] == "loss" or name.partition("/")[2] in losses else None


def unit_of(name: str, begin: Mapping[str, Any]) -> str:
    """The unit of a number, as its metric declared it."""
    return str(_about(name, begin).get("unit") or "")


def _about(name: str, begin: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was declared of a number: "valid/recall/3" is "recall" of a validation, class 3."""
    declared = begin.get("metrics") or {}
    parts = name.split("/")
    names = [name, "/".join(parts[1:]), *("/".join(parts[1:end]) for end in range(len(parts) - 1, 1, -1))]
    found = next((declared[each] for each in names if each in declared), {})
    return found if isinstance(found, Mapping) else {}
