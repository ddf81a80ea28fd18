"""Values and annotations: what a field of a config may hold, and how that looks in JSON.

`read` makes a value fit an annotation, or notes a fault; `dump` gives what `read` makes the same value of again.
"""

import contextlib
import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, Flag
from functools import lru_cache
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from stoker.errors import ConfigError, did_you_mean

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # floats that JSON has no numbers for, and how they are written
_WHOLE = re.compile("0|-?[1-9][0-9]{0,999}")  # an int as a key in JSON, in its one spelling


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to read: `json` also takes what JSON writes for a value, `exact` lets no int pass for a float."""

    json: bool
    exact: bool = False
    faults: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # path, text

    def fault(self, path: str, text: str) -> None:
        self.faults.append((path, text))

    def misfit(self, path: str, hint: Any, value: Any) -> None:
        self.fault(path, f"expected {spelled(hint)}, got {self.shown(value)}")

    def shown(self, value: Any) -> str:
        """A value as the user wrote it: in JSON's spelling or in Python's, strings in double quotes, cut short."""
        text = repr(value)
        if self.json or isinstance(value, str):
            with contextlib.suppress(TypeError, ValueError):  # a dict whose keys JSON doesn't know, or a cycle
                text = json.dumps(value, ensure_ascii=False, default=repr)
        return text if len(text) <= 80 else f"{text[:77]}..."

    def check(self, name: str, source: str = "") -> None:
        """Raises the faults found so far, all together."""
        prefix = f"{source}: " if source else ""
        lines = [f"{path}: {text}" if path else text for path, text in self.faults]
        if len(lines) == 1:
            raise ConfigError(prefix + lines[0])
        if lines:
            raise ConfigError(f"{prefix}{len(lines)} faults in {name}\n" + "\n".join(f"  {line}" for line in lines))


def spelled(hint: Any) -> str:
    """An annotation as people write it."""
    if hint is type(None) or hint is None:
        return "None"
    if hint is ...:
        return "..."
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(map(spelled, args))
    if origin is Literal:
        return " | ".join(json.dumps(arg) if isinstance(arg, str) else str(arg) for arg in args)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"{hint.__name__} ({', '.join(hint.__members__)})"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(spelled, args))}]" if origin and origin is not Callable else name


def tag(hint: Any) -> str:
    """What `"kind"` says for a member of a union."""
    return hint.__name__ if isinstance(hint, type) and not get_origin(hint) else spelled(hint)


def resolve(cls: type, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of a dataclass, the ones in quotes looked up in its module and in `scope`."""
    return get_type_hints(cls, localns={**scope, cls.__name__: cls})


@lru_cache(maxsize=1024)
def field_hints(cls: type) -> dict[str, Any]:
    """The fields that a dataclass is made of, each with its annotation."""
    try:
        hints = cls.__dict__.get("_resolved") or resolve(cls, {})
    except NameError as error:
        raise ConfigError(f"{cls.__name__}: {error}; an annotation must name what its module knows") from error
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def required(cls: type) -> set[str]:
    """The names of the fields that have no default."""
    bare = dataclasses.MISSING
    return {field.name for field in dataclasses.fields(cls) if field.default is bare and field.default_factory is bare}


def read(value: Any, hint: Any, path: str, how: Reading) -> Any:
    """The value as its annotation wants it; where it doesn't fit, a fault in `how`."""
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return pick(value, get_args(hint), path, how)[1]
    if origin is Literal:
        return _read_literal(value, hint, path, how)
    if origin is list or origin is tuple or origin is Sequence:
        return _read_sequence(value, hint, path, how)
    if origin is dict or origin is Mapping:
        return _read_mapping(value, hint, path, how)
    if origin is Callable:  # held and compared, but never written or read: see dump
        return value if callable(value) and not how.json else how.misfit(path, hint, value)
    if hint is Any or hint is object:
        return _read_plain(value, path, how)
    if hint in (bool, int, float, str, type(None), None):
        return _read_scalar(value, hint, path, how)
    if isinstance(hint, type) and issubclass(hint, PurePath):
        convert = isinstance(value, str) and (how.json or not how.exact)
        return value if isinstance(value, hint) else hint(value) if convert else how.misfit(path, hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum) and not issubclass(hint, Flag):
        return _read_enum(value, hint, path, how)
    if dataclasses.is_dataclass(hint):
        return _read_record(value, hint, path, how)
    if meant := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None):  # NewType, type X = ...
        return read(value, meant, path, how)
    raise ConfigError(
        f"{path}: a config can't hold {spelled(hint)}; it holds bool, int, float, str, None, pathlib paths, enums, "
        "Literal, list, tuple, dict, unions of these, dataclasses and other configs"
    )


def _read_scalar(value: Any, hint: Any, path: str, how: Reading) -> Any:
    if type(value) is hint or (value is None and hint is None):
        return value
    if hint is float and how.json and isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if not how.exact and not isinstance(value, bool):  # numpy's scalars are Real and Integral too
        if hint is float and isinstance(value, Real):
            try:
                return float(value)
            except OverflowError:
                return how.fault(path, f"expected float, got {how.shown(value)}, which is beyond the largest float")
        if hint is int and isinstance(value, Integral):
            return int(value)
        if hint is str and isinstance(value, str):
            return str.__str__(value)
    return how.misfit(path, hint, value)


def _read_plain(value: Any, path: str, how: Reading) -> Any:
    """Anything that JSON can say, for an annotation that doesn't say what."""
    if isinstance(value, list | tuple):
        return [_read_plain(each, f"{path}[{place}]", how) for place, each in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _read_plain(each, f"{path}[{json.dumps(key)}]", how) for key, each in value.items()}
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    return how.fault(path, f"expected what JSON can hold, got {how.shown(value)}; annotate the field with its type")


def _read_literal(value: Any, hint: Any, path: str, how: Reading) -> Any:
    for choice in get_args(hint):
        if type(choice) is type(value) and choice == value:
            return choice
        if how.json and isinstance(choice, Enum) and value == choice.name:
            return choice
    near = did_you_mean(value, [each for each in get_args(hint) if isinstance(each, str)]) if type(value) is str else ""
    return how.fault(path, f"expected {spelled(hint)}, got {how.shown(value)}{near}")


def _read_enum(value: Any, hint: type[Enum], path: str, how: Reading) -> Any:
    if isinstance(value, hint):
        return value
    if how.json and isinstance(value, str) and value in hint.__members__:
        return hint[value]
    near = did_you_mean(value, hint.__members__) if isinstance(value, str) else ""
    return how.fault(path, f"expected {spelled(hint)}, got {how.shown(value)}{near}")


def item_hints(hint: Any, count: int) -> tuple[Any, ...]:
    """The annotation of each item of a list or tuple of `count` items; as many as there should be."""
    args = get_args(hint)
    if get_origin(hint) is tuple and args[1:] != (...,):
        return args
    return (args[0] if args else Any,) * count


def _read_sequence(value: Any, hint: Any, path: str, how: Reading) -> Any:
    wanted = {list: (list,), tuple: (tuple,)}.get(get_origin(hint) or hint, (list, tuple))
    if not isinstance(value, wanted if how.exact and not how.json else (list, tuple)):
        return how.misfit(path, hint, value)
    hints = item_hints(hint, len(value))
    if len(hints) != len(value):
        count = f"{len(hints)} value{'s' * (len(hints) != 1)}"
        return how.fault(path, f"expected {spelled(hint)}, {count}; got {how.shown(value)}, {len(value)}")
    pairs = enumerate(zip(value, hints, strict=True))
    items = [read(each, item, f"{path}[{place}]", how) for place, (each, item) in pairs]
    return items if wanted == (list,) else tuple(items)


def _read_mapping(value: Any, hint: Any, path: str, how: Reading) -> Any:
    if not isinstance(value, Mapping):
        return how.misfit(path, hint, value)
    key_hint, value_hint = get_args(hint) or (str, Any)
    found = {}
    for key, each in value.items():
        place = f"{path}[{how.shown(key)}]"
        if how.json and key_hint is int and isinstance(key, str) and _WHOLE.fullmatch(key):
            key = int(key)  # JSON's keys are strings
        found[read(key, key_hint, place, how)] = read(each, value_hint, place, how)
    return found


def _read_record(value: Any, cls: type, path: str, how: Reading) -> Any:
    if type(value) is cls and getattr(cls, "_checked", False):  # a Config has checked itself
        return value
    before = len(how.faults)
    if type(value) is cls:
        given = {name: getattr(value, name) for name in field_hints(cls)}
        values = read_fields(given, cls, path, how)
        return dataclasses.replace(value, **values) if len(how.faults) == before else None
    if how.json and isinstance(value, Mapping):
        tagged = "kind" not in field_hints(cls) and value.get("kind") == cls.__name__
        values = read_fields({key: value[key] for key in value if not (tagged and key == "kind")}, cls, path, how)
        if len(how.faults) > before:
            return None
        try:
            return cls(**values)
        except (ValueError, TypeError) as error:  # from the class's own __post_init__
            return how.fault(path, str(error))
    if isinstance(value, cls):
        name = type(value).__name__
        return how.fault(
            path, f"expected {cls.__name__}, got a {name}, which would load as something else; annotate it with {name}"
        )
    return how.misfit(path, cls, value)


def read_fields(given: Mapping[str, Any], cls: type, path: str, how: Reading) -> dict[str, Any]:
    """The given fields as their annotations want them; unknown and missing ones are faults."""
    hints, needed, at = field_hints(cls), required(cls), f"{path}." if path else ""
    for key in given:
        if key not in hints:
            known = did_you_mean(str(key), hints) or f"; {cls.__name__} has {', '.join(hints) or 'no fields'}"
            how.fault(f"{at}{key}", f"no such field{known}")
    for name, hint in hints.items():
        if name in needed and name not in given:
            how.fault(f"{at}{name}", f"missing, expected {spelled(hint)}")
    return {name: read(given[name], hint, at + name, how) for name, hint in hints.items() if name in given}


def pick(value: Any, members: tuple[Any, ...], path: str, how: Reading) -> tuple[int, Any]:
    """Which member of a union a value is, and the value as that member wants it; (-1, None) where it is none."""
    if how.json and isinstance(value, Mapping):
        place, value = _untag(value, members, path, how)
        if place is not None:
            return place, None if place < 0 else read(value, members[place], path, how)
    deeper: list[list[tuple[str, str]]] = []
    for exact in (True,) if how.exact else (True, False):
        deeper.clear()
        for place, member in enumerate(members):
            attempt = Reading(how.json, exact)
            found = read(value, member, path, attempt)
            if not attempt.faults:
                return place, found
            if all(each != path for each, _ in attempt.faults):  # right in kind, wrong further in
                deeper.append(attempt.faults)
    if len(deeper) == 1:
        how.faults.extend(deeper[0])
    else:
        how.misfit(path, Union[members], value)  # noqa: UP007 - made at run time
    return -1, None


def _untag(value: Mapping, members: tuple[Any, ...], path: str, how: Reading) -> tuple[int | None, Any]:
    """The member that an object of JSON is meant for, and what is left to read; None where only trying can tell."""
    kind, names = value.get("kind"), [tag(member) for member in members]
    records = [place for place, member in enumerate(members) if dataclasses.is_dataclass(member)]
    if kind in names:
        place = names.index(kind)
        if place in records and "kind" not in field_hints(members[place]):
            return place, {key: each for key, each in value.items() if key != "kind"}
        if place not in records and value.keys() == {"kind", "value"}:
            return place, value["value"]
    if not records or any((get_origin(member) or member) in (dict, Mapping, Any, object) for member in members):
        return None, value
    if len(records) == 1:
        return records[0], value
    expected = " or ".join(json.dumps(names[place]) for place in records)
    if kind is None:
        how.fault(f"{path}.kind".lstrip("."), f"missing, expected {expected}, which says what this is")
    else:
        near = did_you_mean(str(kind), names)
        how.fault(f"{path}.kind".lstrip("."), f"expected {expected}, got {how.shown(kind)}{near}")
    return -1, None
