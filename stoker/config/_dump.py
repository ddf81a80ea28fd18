"""Values to what JSON can hold: the inverse of `stoker.config._parse.read`."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any, Union, get_args, get_origin

from stoker.config._parse import Reading, field_hints, item_hints, pick, spelled, tag
from stoker.errors import ConfigError


def dump(value: Any, hint: Any, path: str) -> Any:
    """What JSON can hold and `read` makes the same value of; a value that fits its annotation is expected.

    >>> dump((1.5, float("inf")), tuple[float, ...], "betas")
    [1.5, 'Infinity']
    """
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return _dump_union(value, get_args(hint), path)
    if origin is list or origin is tuple or origin is Sequence:
        pairs = enumerate(zip(value, item_hints(hint, len(value)), strict=True))
        return [dump(each, item, f"{path}[{place}]") for place, (each, item) in pairs]
    if origin is dict or origin is Mapping:
        key_hint, value_hint = get_args(hint) or (str, Any)
        return {_key(key, key_hint, path): dump(each, value_hint, f"{path}[{key!r}]") for key, each in value.items()}
    if origin is Callable:
        raise ConfigError(f"{path}: a function can't be saved, and this is one: {value!r}")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if dataclasses.is_dataclass(value):
        return dump_fields(value, path)
    if meant := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None):
        return dump(value, meant, path)
    return value


def dump_fields(record: Any, path: str = "") -> dict[str, Any]:
    """A dataclass, field by field."""
    at = f"{path}." if path else ""
    hints = field_hints(type(record))
    return {name: dump(getattr(record, name), hint, at + name) for name, hint in hints.items()}


def _key(key: Any, hint: Any, path: str) -> str:
    written = dump(key, hint, path)
    if isinstance(written, str):
        return written
    if type(written) is int and hint is int:
        return str(written)
    raise ConfigError(f"{path}: the keys of a dict in a config are str, int, paths or enums, not {spelled(hint)}")


def _dump_union(value: Any, members: tuple[Any, ...], path: str) -> Any:
    """The value as its member writes it, with a tag where reading would otherwise take it for another member."""
    how = Reading(json=False)
    place, _ = pick(value, members, path, how)
    how.check("a union")
    member, data = members[place], dump(value, members[place], path)
    records = [tag(each) for each in members if dataclasses.is_dataclass(each)]
    if tag(member) in records:
        if len(records) == 1 and pick(data, members, path, Reading(json=True))[0] == place:
            return data
        if len(set(records)) < len(records) or "kind" in field_hints(member):
            raise ConfigError(
                f'{path}: "kind" tells {" and ".join(records)} apart in JSON, by the names of the classes; '
                "give them different names, and no field called kind"
            )
        return {"kind": tag(member), **data}
    if pick(data, members, path, Reading(json=True))[0] == place:
        return data
    return {"kind": tag(member), "value": data}
