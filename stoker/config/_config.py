"""Configs: annotations in, a frozen value out that is checked, compared, saved and loaded."""

import dataclasses
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from stoker.config._args import parse_args
from stoker.config._dump import dump_fields
from stoker.config._jsonfile import read_json, write_json
from stoker.config._parse import Reading, read, read_fields, resolve
from stoker.errors import ConfigError

C = TypeVar("C", bound="Config")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(frozen=True)
class Config:
    """A subclass with annotations is a frozen dataclass that can be saved, loaded and compared.

    >>> class Model(Config):
    ...     hidden_size: int
    ...     dropout: float = 0.5
    >>> model = Model(hidden_size=128)
    >>> model.replace(dropout=0)
    Model(hidden_size=128, dropout=0.0)
    >>> Model.from_dict(model.to_dict()) == model
    True
    >>> Model("512")
    Traceback (most recent call last):
    stoker.errors.ConfigError: hidden_size: expected int, got "512"

    Fields hold bool, int, float, str, None, paths, enums, `Literal`, list, tuple, dict, unions of these, dataclasses
    and other configs. Every value is checked when the config is made: an int becomes a float where one is wanted,
    numpy's scalars become Python's, lists and tuples become each other, a str becomes a path, containers are copied;
    everything else that doesn't fit is a `ConfigError`. Checks of your own go into `__post_init__`. A field of the
    type `Callable` is held and compared, but the config can't be saved.
    """

    _checked: ClassVar[bool] = True  # says to `stoker.config._parse` that an instance has no faults

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            raise ConfigError(
                f"{cls.__name__} defines __init__, but a config's constructor is made of its annotations; "
                "put checks into __post_init__"
            )
        try:
            dataclasses.dataclass(frozen=True)(cls)
        except (TypeError, ValueError) as error:  # a mutable default, or a field without a default after one with
            raise ConfigError(f"{cls.__name__} can't be a config: {error}") from error
        for field in dataclasses.fields(cls):
            if field.name in _TAKEN:
                raise ConfigError(f"{cls.__name__}.{field.name}: a config has a method of this name; choose another")
        _resolve_here(cls, sys._getframe(1).f_locals)
        _check_first(cls)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The config that `to_dict` gave; what is unknown, missing or mistyped is one error that lists it all.

        >>> class Model(Config):
        ...     hidden_size: int
        >>> Model.from_dict({"hiden_size": 512, "hidden_size": "512"})
        Traceback (most recent call last):
        stoker.errors.ConfigError: 2 faults in Model
          hiden_size: no such field; did you mean 'hidden_size'?
          hidden_size: expected int, got "512"

        What fits the annotation already (a path, an enum's member, another config) is taken as it is.
        """
        return _built(cls, data)

    def to_dict(self) -> dict[str, Any]:
        """Nothing but dicts, lists, strings, numbers and None, as in JSON; a new copy each time.

        Enums are their names, paths strings, tuples lists, NaN and the infinities strings. Where a union has several
        configs, `"kind"` holds the name of the class.
        """
        how = Reading(json=False)  # again, because a list inside can have changed
        read_fields({field.name: getattr(self, field.name) for field in _made_of(self)}, type(self), "", how)
        how.check(type(self).__name__)
        return dump_fields(self)

    def replace(self, **changes: Any) -> Self:
        """The same config with some fields changed; a dotted name reaches into a nested one.

        >>> class Model(Config):
        ...     dropout: float = 0.5
        >>> class Training(Config):
        ...     model: Model = Model()
        ...     epochs: int = 3
        >>> Training().replace(epochs=5, **{"model.dropout": 0.1})
        Training(model=Model(dropout=0.1), epochs=5)
        """
        how = Reading(json=False)
        changed = _replaced(self, changes, "", how)
        how.check(type(self).__name__)
        return changed

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the config as readable JSON, all of it or nothing, and returns the path."""
        return write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The config that `save` wrote; no code is run and no name out of the file is imported."""
        return _built(cls, read_json(Path(path)), source=str(path))

    @classmethod
    def from_args(cls, args: Sequence[str] | None = None) -> Self:
        """The config that a command line describes (`sys.argv` where no `args` are given); needs `stoker[cli]`.

        >>> class Training(Config):
        ...     epochs: int = 3
        ...     lr: float = 1e-3
        >>> Training.from_args(["--epochs", "5"])
        Training(epochs=5, lr=0.001)

        Nested fields have dotted flags (`--model.dropout 0.1`), `--help` lists them all, and `--config file.json`
        starts from a saved config in place of the defaults.
        """
        return parse_args(cls, list(sys.argv[1:] if args is None else args))


_TAKEN = {"from_dict", "to_dict", "replace", "save", "load", "from_args"}


def _resolve_here(cls: type[Config], scope: Mapping[str, Any]) -> None:
    """Looks annotations in quotes up where the class stands, which inside a function is the only place to find them."""
    try:
        resolved = resolve(cls, scope)
    except NameError:  # of something that comes later: `field_hints` looks in the module, at the first use
        return
    type.__setattr__(cls, "_resolved", resolved)


def _check_first(cls: type[Config]) -> None:
    """Puts the check in front of the constructor, so that a `__post_init__` sees only values that fit."""
    made = cls.__init__
    names = [field.name for field in dataclasses.fields(cls) if field.init and not field.kw_only]

    @functools.wraps(made)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        how = Reading(json=False)
        if len(args) > len(names):
            how.fault(cls.__name__, f"takes {', '.join(names) or 'no values'} by place, got {len(args)} values")
        placed = dict(zip(names, args, strict=False))
        for name in placed.keys() & kwargs.keys():
            how.fault(name, "given twice, by place and by name")
        values = read_fields({**_defaults(cls, kwargs.keys() | placed.keys()), **placed, **kwargs}, cls, "", how)
        how.check(cls.__name__)
        made(self, **values)

    type.__setattr__(cls, "__init__", checked)


def _defaults(cls: type[Config], given: set[str]) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(cls):
        if field.init and field.name not in given:
            if field.default is not dataclasses.MISSING:
                found[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory()
    return found


def _made_of(record: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(record) if field.init]


def _built(cls: type[C], data: Any, *, source: str = "") -> C:
    how = Reading(json=True)
    config = read(data, cls, "", how)
    how.check(cls.__name__, source)
    return config


def _replaced(record: Any, changes: Mapping[str, Any], path: str, how: Reading) -> Any:
    """A dataclass with some fields changed, the dotted ones inside the nested dataclasses."""
    values = {field.name: getattr(record, field.name) for field in _made_of(record)}
    values.update({name: value for name, value in changes.items() if "." not in name})
    inner: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        if "." in name:
            head, rest = name.split(".", 1)
            inner.setdefault(head, {})[rest] = value
    for head, rest in inner.items():
        place = f"{path}.{head}" if path else head
        if dataclasses.is_dataclass(values.get(head)):
            values[head] = _replaced(values[head], rest, place, how)
        elif head in values:
            how.fault(f"{place}.{next(iter(rest))}", f"{place} is {how.shown(values[head])}, which has no fields")
        else:
            values[head] = None  # read_fields says that there is no such field
    before = len(how.faults)
    values = read_fields(values, type(record), path, how)
    return dataclasses.replace(record, **values) if len(how.faults) == before else record
