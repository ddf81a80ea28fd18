"""Converts values to the types of their annotations, and to JSON and back.

`Converter.convert` makes a value fit an annotation or raises `Mismatch`; `to_json` gives what a converter turns into
the same value.
"""

import dataclasses
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, Flag
from functools import lru_cache
from numbers import Integral, Real
from pathlib import PurePath
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from stoker.errors import ConfigError, did_you_mean

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")  # how JSON files write floats that JSON has no numbers for
_INT_KEY = re.compile("0|-?[1-9][0-9]{0,999}")  # an int as a JSON key, in its only spelling


class Mismatch(Exception):
    """Values that do not fit their annotations: `(path, text)` for each."""

    def __init__(self, *errors: tuple[str, str]) -> None:
        super().__init__(*errors)
        self.errors = list(errors)


@contextmanager
def report_errors(name: str, source: str = "") -> Iterator[None]:
    """Raises a `Mismatch` as one `ConfigError` that lists everything that does not fit."""
    try:
        yield
    except Mismatch as mismatch:
        lines = [f"{path}: {text}" if path else text for path, text in mismatch.errors]
        if len(lines) > 1:
            lines = [f"{len(lines)} errors in {name}", *lines]
        raise ConfigError((f"{source}: " if source else "") + "\n  ".join(lines)) from None


def _fail(path: str, hint: Any, value: Any, hint_text: str = "") -> NoReturn:
    raise Mismatch((path, f"expected {type_name(hint)}, got {show(value)}{hint_text}"))


def show(value: Any) -> str:
    """A value as it is written in code, shortened; strings in double quotes, as in JSON."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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


def field_values(instance: Any) -> dict[str, Any]:
    """The values of the constructor's fields."""
    return {name: getattr(instance, name) for name in field_types(type(instance))}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Converter:
    """Converts values: `json` also accepts JSON's form of a value, `exact` no int as a float."""

    json: bool
    exact: bool = False

    def convert(self, value: Any, hint: Any, path: str) -> Any:
        """The value in the type of its annotation; raises `Mismatch` if it does not fit."""
        origin = get_origin(hint) or hint
        if origin in (Union, types.UnionType):
            return self.choose(value, hint, path)[1]
        if origin is Literal:
            return self._convert_literal(value, hint, path)
        if origin in (list, tuple, Sequence):
            return self._convert_sequence(value, hint, path)
        if origin in (dict, Mapping):
            return self._convert_mapping(value, hint, path)
        if origin is Callable:  # kept and compared, but never saved
            return value if callable(value) and not self.json else _fail(path, hint, value)
        if hint is Any:
            return self._convert_any(value, path)
        if hint in (bool, int, float, str, type(None), None):
            return self._convert_scalar(value, hint, path)
        if isinstance(hint, type) and issubclass(hint, PurePath):
            from_str = isinstance(value, str) and (self.json or not self.exact)
            return value if isinstance(value, hint) else hint(value) if from_str else _fail(path, hint, value)
        if isinstance(hint, type) and issubclass(hint, Enum) and not issubclass(hint, Flag):
            if self.json and isinstance(value, str) and value in hint.__members__:
                return hint[value]
            return value if isinstance(value, hint) else _fail_choice(path, hint, value, hint.__members__)
        if dataclasses.is_dataclass(hint):
            return self._convert_dataclass(value, hint, path)
        if supertype := getattr(hint, "__supertype__", None):  # a NewType
            return self.convert(value, supertype, path)
        raise ConfigError(
            f"{path}: a config can't hold {type_name(hint)}; it holds bool, int, float, str, None, pathlib paths, "
            "enums, Literal, list, tuple, dict, unions of these, dataclasses and other configs"
        )

    def convert_all(self, items: Iterable[tuple[Any, Any, str]], errors: Iterable[tuple[str, str]] = ()) -> list[Any]:
        """Converts each `(value, hint, path)`; raises one `Mismatch` with all errors."""
        converted: list[Any] = []
        errors = list(errors)
        for value, hint, path in items:
            try:
                converted.append(self.convert(value, hint, path))
            except Mismatch as mismatch:
                errors += mismatch.errors
        if errors:
            raise Mismatch(*errors)
        return converted

    def convert_fields(self, given: Mapping[str, Any], cls: type, path: str) -> dict[str, Any]:
        """The given fields of a dataclass, converted; unknown and missing fields are errors."""
        hints = field_types(cls)
        prefix = f"{path}." if path else ""
        errors: list[tuple[str, str]] = []
        for key in given:
            if key not in hints:
                advice = getattr(cls, "_elsewhere", {}).get(key)
                known = did_you_mean(str(key), hints) or f"; {cls.__name__} has {', '.join(hints) or 'no fields'}"
                known = f"; {advice}" if advice else known
                errors.append((f"{prefix}{key}", f"unknown field{known}"))
        for field in dataclasses.fields(cls):
            is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            if field.init and is_required and field.name not in given:
                errors.append((prefix + field.name, f"missing, expected {type_name(hints[field.name])}"))
        names = [name for name in hints if name in given]
        values = self.convert_all(((given[name], hints[name], prefix + name) for name in names), errors)
        return dict(zip(names, values, strict=True))

    def choose(self, value: Any, hint: Any, path: str) -> tuple[Any, Any]:
        """The member of a union that the value fits, and the converted value."""
        members = get_args(hint)
        if self.json and isinstance(value, Mapping):
            member, value = _member_by_kind(value, members, path)
            if member is not None:
                return member, self.convert(value, member, path)
        inner: list[Mismatch] = []  # of members that fit except further inside
        for exact in (True,) if self.exact else (True, False):
            inner.clear()
            for member in members:
                try:
                    return member, Converter(self.json, exact).convert(value, member, path)
                except Mismatch as mismatch:
                    if all(inner_path != path for inner_path, _ in mismatch.errors):
                        inner.append(mismatch)
        if len(inner) == 1:
            raise inner[0]
        _fail(path, hint, value)

    def _convert_scalar(self, value: Any, hint: Any, path: str) -> Any:
        if type(value) is hint or (value is None and hint is None):
            return value
        if hint is float and self.json and isinstance(value, str) and value in _NOT_FINITE:
            return float(value)
        if not self.exact and not isinstance(value, bool):  # numpy's scalars are Real or Integral too
            if hint is float and isinstance(value, Real):
                try:
                    return float(value)
                except OverflowError:
                    raise Mismatch((path, f"{show(value)} exceeds the largest float")) from None
            if hint is int and isinstance(value, Integral):
                return int(value)
            if hint is str and isinstance(value, str):
                return str.__str__(value)
        _fail(path, hint, value)

    def _convert_any(self, value: Any, path: str) -> Any:
        """Anything that JSON can hold, for an annotation that does not say more."""
        if isinstance(value, list | tuple):
            return self._convert_sequence(value, list[Any], path)
        if isinstance(value, dict):
            return self._convert_mapping(value, dict[str, Any], path)
        if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
            return value
        text = f"expected a value that JSON can hold, got {show(value)}; annotate the field with its type"
        raise Mismatch((path, text))

    def _convert_literal(self, value: Any, hint: Any, path: str) -> Any:
        for choice in get_args(hint):
            is_name = self.json and isinstance(choice, Enum) and value == choice.name
            if is_name or (type(choice) is type(value) and choice == value):
                return choice
        words = [choice for choice in get_args(hint) if isinstance(choice, str)]
        return _fail_choice(path, hint, value, words)

    def _convert_sequence(self, value: Any, hint: Any, path: str) -> Any:
        kind = get_origin(hint) or hint
        accepted = kind if self.exact and not self.json and kind is not Sequence else (list, tuple)
        if not isinstance(value, accepted):
            _fail(path, hint, value)
        hints = _item_types(hint, len(value))
        if len(hints) != len(value):
            count = f"{len(hints)} value{'s' * (len(hints) != 1)}"
            raise Mismatch((path, f"expected {type_name(hint)}, {count}; got {show(value)}, {len(value)}"))
        pairs = enumerate(zip(value, hints, strict=True))
        items = self.convert_all((item, item_hint, f"{path}[{index}]") for index, (item, item_hint) in pairs)
        return items if kind is list else tuple(items)

    def _convert_mapping(self, value: Any, hint: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            _fail(path, hint, value)
        key_hint, value_hint = get_args(hint) or (str, Any)
        paths = [f"{path}[{show(key)}]" for key in value]
        keys = list(value)
        if self.json and key_hint is int:  # JSON's keys are strings
            keys = [int(key) if isinstance(key, str) and _INT_KEY.fullmatch(key) else key for key in keys]
        converted = self.convert_all((key, key_hint, item_path) for key, item_path in zip(keys, paths, strict=True))
        items = zip(value.values(), paths, strict=True)
        values = self.convert_all((item, value_hint, item_path) for item, item_path in items)
        return dict(zip(converted, values, strict=True))

    def _convert_dataclass(self, value: Any, cls: type, path: str) -> Any:
        if type(value) is cls:
            if getattr(cls, "_is_config", False):  # it has checked itself
                return value
            return dataclasses.replace(value, **self.convert_fields(field_values(value), cls, path))
        if self.json and isinstance(value, Mapping):
            is_tagged = "kind" not in field_types(cls) and value.get("kind") == cls.__name__
            given = {key: value[key] for key in value if not (is_tagged and key == "kind")}
            values = self.convert_fields(given, cls, path)
            try:
                return cls(**values)
            except (ValueError, TypeError) as error:  # from the class's own __post_init__
                raise Mismatch((path, str(error))) from error
        if isinstance(value, cls):
            name = type(value).__name__
            text = (
                f"expected {cls.__name__}, got its subclass {name}, which a file can't restore; annotate it with {name}"
            )
            raise Mismatch((path, text))
        _fail(path, cls, value)


def _fail_choice(path: str, hint: Any, value: Any, words: Iterable[str]) -> NoReturn:
    _fail(path, hint, value, did_you_mean(value, words) if isinstance(value, str) else "")


def _item_types(hint: Any, count: int) -> tuple[Any, ...]:
    """The annotation of each item of a list or tuple; as many as it should have."""
    args = get_args(hint)
    if get_origin(hint) is tuple and args[1:] != (...,):
        return args
    return (args[0] if args else Any,) * count


def _member_by_kind(value: Mapping[str, Any], members: Sequence[Any], path: str) -> tuple[Any, Any]:
    """The member of a union that a JSON object is meant for, by its "kind", and the rest of it; None if unknown."""
    kind = value.get("kind")
    classes = [member for member in members if dataclasses.is_dataclass(member)]
    for member in members:
        if kind == _kind_of(member):
            if member in classes and "kind" not in field_types(member):
                return member, {key: item for key, item in value.items() if key != "kind"}
            if member not in classes and value.keys() == {"kind", "value"}:
                return member, value["value"]
    if not classes or any((get_origin(member) or member) in (dict, Mapping, Any) for member in members):
        return None, value
    if len(classes) == 1:
        return classes[0], value
    names = [_kind_of(member) for member in classes]
    expected = f"expected {' or '.join(map(show, names))}"
    text = f"missing, {expected}" if kind is None else f"{expected}, got {show(kind)}{did_you_mean(str(kind), names)}"
    raise Mismatch((f"{path}.kind".lstrip("."), text))


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
        return _union_to_json(value, hint, path)
    if origin in (list, tuple, Sequence):
        hints = _item_types(hint, len(value))
        return [to_json(item, hints[index], f"{path}[{index}]") for index, item in enumerate(value)]
    if origin in (dict, Mapping):
        key_hint, value_hint = get_args(hint) or (str, Any)
        return {
            _key_to_json(key, key_hint, path): to_json(item, value_hint, f"{path}[{key!r}]")
            for key, item in value.items()
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
    supertype = getattr(hint, "__supertype__", None)
    return value if supertype is None else to_json(value, supertype, path)


def fields_to_json(instance: Any, path: str = "") -> dict[str, Any]:
    """The JSON form of each field of a dataclass."""
    prefix = f"{path}." if path else ""
    hints = field_types(type(instance))
    return {name: to_json(getattr(instance, name), hint, prefix + name) for name, hint in hints.items()}


def _key_to_json(key: Any, hint: Any, path: str) -> str:
    name = to_json(key, hint, path)
    if isinstance(name, str) or (type(name) is int and hint is int):
        return str(name)
    raise ConfigError(f"{path}: the keys of a dict in a config are str, int, paths or enums, not {type_name(hint)}")


def _union_to_json(value: Any, hint: Any, path: str) -> Any:
    """The JSON form of the member, with a `"kind"` if it would otherwise be read as another member."""
    member, _ = Converter(json=False).choose(value, hint, path)
    data = to_json(value, member, path)
    classes = [_kind_of(other) for other in get_args(hint) if dataclasses.is_dataclass(other)]
    is_class = dataclasses.is_dataclass(member)
    if not is_class or len(classes) == 1:
        try:
            if Converter(json=True).choose(data, hint, path)[0] is member:
                return data
        except Mismatch:
            pass
    if not is_class:
        return {"kind": _kind_of(member), "value": data}
    if len(set(classes)) < len(classes) or "kind" in field_types(member):
        raise ConfigError(
            f'{path}: JSON distinguishes {" and ".join(classes)} by a "kind" with the name of the class; '
            "give them different names, and no field called kind"
        )
    return {"kind": _kind_of(member), **data}
