"""Converts values to the types of their annotations, and to JSON and back.

`convert` makes a value fit an annotation or notes an error; `to_json` gives what `convert` turns into the same value.
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

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # how JSON files write floats that JSON has no numbers for
_INT_KEY = re.compile("0|-?[1-9][0-9]{0,999}")  # an int as a JSON key, in its only spelling


@dataclasses.dataclass(frozen=True)
class Conversion:
    """How to convert, and the errors found: `json` also accepts JSON's form of a value, `exact` no int as a float."""

    json: bool
    exact: bool = False
    errors: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # (path, text)

    def add_error(self, path: str, text: str) -> None:
        self.errors.append((path, text))

    def add_mismatch(self, path: str, hint: Any, value: Any) -> None:
        self.add_error(path, f"expected {type_name(hint)}, got {self.show(value)}")

    def show(self, value: Any) -> str:
        """A value as the user wrote it, in JSON or in Python, shortened."""
        text = repr(value)
        if self.json or isinstance(value, str):
            with contextlib.suppress(TypeError, ValueError):  # a key that JSON does not allow, or a cycle
                text = json.dumps(value, ensure_ascii=False, default=repr)
        return text if len(text) <= 80 else f"{text[:77]}..."

    def raise_errors(self, name: str, source: str = "") -> None:
        """Raises one `ConfigError` with all errors found, if there are any."""
        prefix = f"{source}: " if source else ""
        lines = [f"{path}: {text}" if path else text for path, text in self.errors]
        if len(lines) == 1:
            raise ConfigError(prefix + lines[0])
        if lines:
            raise ConfigError(f"{prefix}{len(lines)} errors in {name}\n" + "\n".join(f"  {line}" for line in lines))


def type_name(hint: Any) -> str:
    """An annotation as it is written in code."""
    if hint is type(None) or hint is None:
        return "None"
    if hint is ...:
        return "..."
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_name, args))
    if origin is Literal:
        return " | ".join(json.dumps(arg) if isinstance(arg, str) else str(arg) for arg in args)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"{hint.__name__} ({', '.join(hint.__members__)})"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(type_name, args))}]" if origin and origin is not Callable else name


def resolve_annotations(cls: type, scope: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations of a dataclass; those in quotes are looked up in its module and in `scope`."""
    return get_type_hints(cls, localns={**scope, cls.__name__: cls})


@lru_cache(maxsize=1024)
def field_types(cls: type) -> dict[str, Any]:
    """The fields of a dataclass's constructor, with their annotations."""
    try:
        hints = cls.__dict__.get("_resolved") or resolve_annotations(cls, {})
    except NameError as error:
        raise ConfigError(f"{cls.__name__}: {error}; an annotation must be a name known in its module") from error
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def convert(value: Any, hint: Any, path: str, how: Conversion) -> Any:
    """The value in the type of its annotation; adds an error to `how` if it does not fit."""
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return convert_union(value, get_args(hint), path, how)[1]
    if origin is Literal:
        return _convert_literal(value, hint, path, how)
    if origin is list or origin is tuple or origin is Sequence:
        return _convert_sequence(value, hint, path, how)
    if origin is dict or origin is Mapping:
        return _convert_mapping(value, hint, path, how)
    if origin is Callable:  # kept and compared, but never saved
        return value if callable(value) and not how.json else how.add_mismatch(path, hint, value)
    if hint is Any or hint is object:
        return _convert_json_value(value, path, how)
    if hint in (bool, int, float, str, type(None), None):
        return _convert_scalar(value, hint, path, how)
    if isinstance(hint, type) and issubclass(hint, PurePath):
        from_str = isinstance(value, str) and (how.json or not how.exact)
        return value if isinstance(value, hint) else hint(value) if from_str else how.add_mismatch(path, hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum) and not issubclass(hint, Flag):
        return _convert_enum(value, hint, path, how)
    if dataclasses.is_dataclass(hint):
        return _convert_dataclass(value, hint, path, how)
    if alias := _aliased_type(hint):
        return convert(value, alias, path, how)
    raise ConfigError(
        f"{path}: a config can't hold {type_name(hint)}; it holds bool, int, float, str, None, pathlib paths, enums, "
        "Literal, list, tuple, dict, unions of these, dataclasses and other configs"
    )


def _aliased_type(hint: Any) -> Any:
    """What a `NewType` or a `type X = ...` stands for."""
    return getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)


def _convert_scalar(value: Any, hint: Any, path: str, how: Conversion) -> Any:
    if type(value) is hint or (value is None and hint is None):
        return value
    if hint is float and how.json and isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if not how.exact and not isinstance(value, bool):  # numpy's scalars are Real or Integral too
        if hint is float and isinstance(value, Real):
            try:
                return float(value)
            except OverflowError:
                return how.add_error(path, f"expected float, got {how.show(value)}, which exceeds the largest float")
        if hint is int and isinstance(value, Integral):
            return int(value)
        if hint is str and isinstance(value, str):
            return str.__str__(value)
    return how.add_mismatch(path, hint, value)


def _convert_json_value(value: Any, path: str, how: Conversion) -> Any:
    """Anything that JSON can hold, for an annotation that does not say more."""
    if isinstance(value, list | tuple):
        return [_convert_json_value(each, f"{path}[{place}]", how) for place, each in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _convert_json_value(each, f"{path}[{json.dumps(key)}]", how) for key, each in value.items()}
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    return how.add_error(
        path, f"expected a value that JSON can hold, got {how.show(value)}; annotate the field with its type"
    )


def _convert_literal(value: Any, hint: Any, path: str, how: Conversion) -> Any:
    for choice in get_args(hint):
        if type(choice) is type(value) and choice == value:
            return choice
        if how.json and isinstance(choice, Enum) and value == choice.name:
            return choice
    words = [each for each in get_args(hint) if isinstance(each, str)]
    return _add_unknown_choice(value, hint, words, path, how)


def _convert_enum(value: Any, hint: type[Enum], path: str, how: Conversion) -> Any:
    if isinstance(value, hint):
        return value
    if how.json and isinstance(value, str) and value in hint.__members__:
        return hint[value]
    return _add_unknown_choice(value, hint, list(hint.__members__), path, how)


def _add_unknown_choice(value: Any, hint: Any, words: list[str], path: str, how: Conversion) -> None:
    suggestion = did_you_mean(value, words) if isinstance(value, str) else ""
    how.add_error(path, f"expected {type_name(hint)}, got {how.show(value)}{suggestion}")


def _item_types(hint: Any, count: int) -> tuple[Any, ...]:
    """The annotation of each item of a list or tuple; as many as it should have."""
    args = get_args(hint)
    if get_origin(hint) is tuple and args[1:] != (...,):
        return args
    return (args[0] if args else Any,) * count


def _convert_sequence(value: Any, hint: Any, path: str, how: Conversion) -> Any:
    accepted = {list: (list,), tuple: (tuple,)}.get(get_origin(hint) or hint, (list, tuple))
    if not isinstance(value, accepted if how.exact and not how.json else (list, tuple)):
        return how.add_mismatch(path, hint, value)
    hints = _item_types(hint, len(value))
    if len(hints) != len(value):
        count = f"{len(hints)} value{'s' * (len(hints) != 1)}"
        return how.add_error(path, f"expected {type_name(hint)}, {count}; got {how.show(value)}, {len(value)}")
    pairs = enumerate(zip(value, hints, strict=True))
    items = [convert(each, item, f"{path}[{place}]", how) for place, (each, item) in pairs]
    return items if accepted == (list,) else tuple(items)


def _convert_mapping(value: Any, hint: Any, path: str, how: Conversion) -> Any:
    if not isinstance(value, Mapping):
        return how.add_mismatch(path, hint, value)
    key_hint, value_hint = get_args(hint) or (str, Any)
    found = {}
    for key, each in value.items():
        place = f"{path}[{how.show(key)}]"
        if how.json and key_hint is int and isinstance(key, str) and _INT_KEY.fullmatch(key):
            key = int(key)  # JSON's keys are strings
        found[convert(key, key_hint, place, how)] = convert(each, value_hint, place, how)
    return found


def _convert_dataclass(value: Any, cls: type, path: str, how: Conversion) -> Any:
    if type(value) is cls and getattr(cls, "_is_config", False):  # a Config has checked itself
        return value
    before = len(how.errors)
    if type(value) is cls:
        given = {name: getattr(value, name) for name in field_types(cls)}
        values = convert_fields(given, cls, path, how)
        return dataclasses.replace(value, **values) if len(how.errors) == before else None
    if how.json and isinstance(value, Mapping):
        tagged = "kind" not in field_types(cls) and value.get("kind") == cls.__name__
        values = convert_fields({key: value[key] for key in value if not (tagged and key == "kind")}, cls, path, how)
        if len(how.errors) > before:
            return None
        try:
            return cls(**values)
        except (ValueError, TypeError) as error:  # from the class's own __post_init__
            return how.add_error(path, str(error))
    if isinstance(value, cls):
        name = type(value).__name__
        return how.add_error(
            path,
            f"expected {cls.__name__}, got its subclass {name}, which a file can't restore; annotate it with {name}",
        )
    return how.add_mismatch(path, cls, value)


def convert_fields(given: Mapping[str, Any], cls: type, path: str, how: Conversion) -> dict[str, Any]:
    """The given fields of a dataclass, converted; unknown and missing fields are errors."""
    hints, prefix = field_types(cls), f"{path}." if path else ""
    for key in given:
        if key not in hints:
            known = did_you_mean(str(key), hints) or f"; {cls.__name__} has {', '.join(hints) or 'no fields'}"
            how.add_error(f"{prefix}{key}", f"unknown field{known}")
    missing = dataclasses.MISSING
    required = {each.name for each in dataclasses.fields(cls) if each.default is each.default_factory is missing}
    for name, hint in hints.items():
        if name in required and name not in given:
            how.add_error(f"{prefix}{name}", f"missing, expected {type_name(hint)}")
    return {name: convert(given[name], hint, prefix + name, how) for name, hint in hints.items() if name in given}


def convert_union(value: Any, members: tuple[Any, ...], path: str, how: Conversion) -> tuple[int, Any]:
    """The index of the member that the value fits, and the converted value; `(-1, None)` if it fits none."""
    if how.json and isinstance(value, Mapping):
        index, value = _member_by_kind(value, members, path, how)
        if index is not None:
            return index, None if index < 0 else convert(value, members[index], path, how)
    inner: list[list[tuple[str, str]]] = []  # the errors of members that fit except further inside
    for exact in (True,) if how.exact else (True, False):
        inner.clear()
        for index, member in enumerate(members):
            attempt = Conversion(how.json, exact)
            found = convert(value, member, path, attempt)
            if not attempt.errors:
                return index, found
            if all(each != path for each, _ in attempt.errors):
                inner.append(attempt.errors)
    if len(inner) == 1:
        how.errors.extend(inner[0])
    else:
        how.add_mismatch(path, Union[members], value)  # noqa: UP007 - made at run time
    return -1, None


def _member_by_kind(value: Mapping, members: tuple[Any, ...], path: str, how: Conversion) -> tuple[int | None, Any]:
    """The member that a JSON object is meant for, by its "kind", and the rest of the object; None if unknown."""
    kind, names = value.get("kind"), [_kind_of(member) for member in members]
    classes = [index for index, member in enumerate(members) if dataclasses.is_dataclass(member)]
    if kind in names:
        index = names.index(kind)
        if index in classes and "kind" not in field_types(members[index]):
            return index, {key: each for key, each in value.items() if key != "kind"}
        if index not in classes and value.keys() == {"kind", "value"}:
            return index, value["value"]
    if not classes or any((get_origin(member) or member) in (dict, Mapping, Any, object) for member in members):
        return None, value
    if len(classes) == 1:
        return classes[0], value
    expected = " or ".join(json.dumps(names[index]) for index in classes)
    if kind is None:
        how.add_error(f"{path}.kind".lstrip("."), f"missing, expected {expected}")
    else:
        suggestion = did_you_mean(str(kind), names)
        how.add_error(f"{path}.kind".lstrip("."), f"expected {expected}, got {how.show(kind)}{suggestion}")
    return -1, None


def _kind_of(hint: Any) -> str:
    """What `"kind"` says for a member of a union."""
    return hint.__name__ if isinstance(hint, type) and not get_origin(hint) else type_name(hint)


def to_json(value: Any, hint: Any, path: str) -> Any:
    """The JSON form of a value that fits its annotation.

    >>> to_json((1.5, float("inf")), tuple[float, ...], "betas")
    [1.5, 'Infinity']
    """
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return _union_to_json(value, get_args(hint), path)
    if origin is list or origin is tuple or origin is Sequence:
        pairs = enumerate(zip(value, _item_types(hint, len(value)), strict=True))
        return [to_json(each, item, f"{path}[{place}]") for place, (each, item) in pairs]
    if origin is dict or origin is Mapping:
        key_hint, value_hint = get_args(hint) or (str, Any)
        return {
            _key_to_json(key, key_hint, path): to_json(each, value_hint, f"{path}[{key!r}]")
            for key, each in value.items()
        }
    if origin is Callable:
        raise ConfigError(f"{path}: a function can't be saved, got {value!r}")
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if dataclasses.is_dataclass(value):
        return fields_to_json(value, path)
    if alias := _aliased_type(hint):
        return to_json(value, alias, path)
    return value


def fields_to_json(instance: Any, path: str = "") -> dict[str, Any]:
    """The JSON form of each field of a dataclass."""
    prefix = f"{path}." if path else ""
    hints = field_types(type(instance))
    return {name: to_json(getattr(instance, name), hint, prefix + name) for name, hint in hints.items()}


def _key_to_json(key: Any, hint: Any, path: str) -> str:
    written = to_json(key, hint, path)
    if isinstance(written, str):
        return written
    if type(written) is int and hint is int:
        return str(written)
    raise ConfigError(f"{path}: the keys of a dict in a config are str, int, paths or enums, not {type_name(hint)}")


def _union_to_json(value: Any, members: tuple[Any, ...], path: str) -> Any:
    """The JSON form of the member, with a `"kind"` if it would otherwise be read as another member."""
    how = Conversion(json=False)
    index, _ = convert_union(value, members, path, how)
    how.raise_errors("a union")
    member, data = members[index], to_json(value, members[index], path)
    classes = [_kind_of(each) for each in members if dataclasses.is_dataclass(each)]
    if _kind_of(member) in classes:
        if len(classes) == 1 and convert_union(data, members, path, Conversion(json=True))[0] == index:
            return data
        if len(set(classes)) < len(classes) or "kind" in field_types(member):
            raise ConfigError(
                f'{path}: JSON distinguishes {" and ".join(classes)} by a "kind" with the name of the class; '
                "give them different names, and no field called kind"
            )
        return {"kind": _kind_of(member), **data}
    if convert_union(data, members, path, Conversion(json=True))[0] == index:
        return data
    return {"kind": _kind_of(member), "value": data}
