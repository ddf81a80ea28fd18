"""In which fields two configs differ."""

from collections.abc import Iterator, Mapping
from typing import Any


def differences(old: Any, new: Any) -> list[str]:
    """A line for each field that differs, by its dotted name.

    >>> differences({"lr": 0.1, "model": {"hidden": 64}}, {"lr": 0.1, "model": {"hidden": 128, "norm": True}})
    ['model.hidden: 64 → 128', 'model.norm: nothing → True']
    """
    before, after = dict(_flat(old)), dict(_flat(new))
    names = [name for name in before | after if before.get(name, _NOTHING) != after.get(name, _NOTHING)]
    return [f"{name}: {before.get(name, _NOTHING)!r} → {after.get(name, _NOTHING)!r}" for name in names]


class _Nothing:
    """What stands in the place of a field that one side doesn't have."""

    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _flat(each, f"{path}.{name}" if path else str(name))
    elif path:
        yield path, value
