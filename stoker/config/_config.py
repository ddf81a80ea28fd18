"""Config: annotated fields become a frozen, checked value that can be saved, loaded and set from a command line."""

import contextlib
import dataclasses
import json
import os
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, Union, dataclass_transform, get_args, get_origin

from stoker._files import read_json, write_json
from stoker.config._values import (
    Converter,
    Mismatch,
    field_values,
    fields_to_json,
    report_errors,
    resolve_annotations,
    show,
    to_json,
    type_name,
)
from stoker.errors import ConfigError, explain_missing

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

C = TypeVar("C", bound="Config")


class _Signature:
    """The signature of a config's constructor, made from its fields when somebody asks for it."""

    def __get__(self, instance: object | None, cls: type["Config"]) -> Any:
        import inspect

        if instance is not None:  # of a config that can be called, such as a schedule
            raise AttributeError("__signature__")
        defaults = _defaults(cls, ())
        parameters = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY if field.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=defaults.get(field.name, inspect.Parameter.empty),
                annotation=field.type,
            )
            for field in dataclasses.fields(cls)
            if field.init
        ]
        return inspect.Signature(sorted(parameters, key=lambda each: each.kind))


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
@dataclasses.dataclass(init=False, repr=False, eq=False)
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
    and other configs. The constructor checks every value: an int becomes a float where one is expected, numpy's
    scalars become Python's, lists and tuples become each other, a str becomes a path, containers are copied; anything
    else that does not fit is a `ConfigError`. Add your own checks in `__post_init__`. A field of type `Callable` is
    kept and compared, but such a config can't be saved.
    """

    _is_config: ClassVar[bool] = True  # tells `_values` that instances need no check
    __signature__ = _Signature()

    # Shared by all configs: `dataclasses` would compile three functions for each class, a tenth of stoker's import.

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        names = [field.name for field in dataclasses.fields(cls) if field.init and not field.kw_only]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        with report_errors(cls.__name__):
            if len(args) > len(names):
                text = f"takes at most {len(names)} positional arguments, got {len(args)}"
                raise Mismatch((cls.__name__, text))
            for name in names[: len(args)]:
                if name in kwargs:
                    raise Mismatch((name, "given both by position and by name"))
            values = Converter(json=False).convert_fields({**_defaults(cls, given.keys()), **given}, cls, "")
        for name, value in {**values, **_defaults(cls, (), init=False)}.items():
            object.__setattr__(self, name, value)
        if (post_init := getattr(self, "__post_init__", None)) is not None:
            post_init()

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in cls.__dict__:
            raise ConfigError(
                f"{cls.__name__} defines __init__, but the constructor of a config is made from its annotations; "
                "put checks into __post_init__"
            )
        try:
            _make_dataclass(cls)
            _check_order_of_defaults(cls)
        except (TypeError, ValueError) as error:  # a mutable default, for example
            raise ConfigError(f"{cls.__name__} can't be a config: {error}") from error
        for field in dataclasses.fields(cls):
            if field.name in _METHODS:
                raise ConfigError(f"{cls.__name__}.{field.name}: a config has a method of this name; choose another")
        # Quoted annotations of a class inside a function can only be resolved here, with the function's variables.
        # `field_types` resolves all others when they are needed, which keeps the import of stoker fast.
        if cls.__qualname__ != cls.__name__:
            frame: Any = sys._getframe(1)
            while frame.f_code.co_name == "__init_subclass__":  # of a class in between
                frame = frame.f_back
            with contextlib.suppress(NameError):
                type.__setattr__(cls, "_resolved", resolve_annotations(cls, frame.f_locals))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Makes the config from what `to_dict` gave; one error lists all unknown, missing and mistyped fields.

        >>> class Model(Config):
        ...     hidden_size: int
        >>> Model.from_dict({"hiden_size": 512, "hidden_size": "512"})
        Traceback (most recent call last):
        stoker.errors.ConfigError: 2 errors in Model
          hiden_size: unknown field; did you mean 'hidden_size'?
          hidden_size: expected int, got "512"

        Values that already have the annotated type (a path, an enum's member, another config) are accepted too.
        """
        return _from_json(cls, data)

    def to_dict(self) -> dict[str, Any]:
        """The config as dicts, lists, strings, numbers and None, as in JSON; a new copy each time.

        Enums become their names, paths strings, tuples lists, NaN and infinities strings. In a union of several
        configs, `"kind"` holds the name of the class.
        """
        with report_errors(type(self).__name__):  # checked again, because a list in it can have been changed
            Converter(json=False).convert_fields(field_values(self), type(self), "")
        return fields_to_json(self)

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed; a dotted name changes a field of a nested config.

        >>> class Model(Config):
        ...     dropout: float = 0.5
        >>> class Training(Config):
        ...     model: Model = Model()
        ...     epochs: int = 3
        >>> Training().replace(epochs=5, **{"model.dropout": 0.1})
        Training(model=Model(dropout=0.1), epochs=5)
        """
        with report_errors(type(self).__name__):
            return _replace(self, changes, "")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the config as indented JSON, atomically, and returns the path."""
        path = Path(path)
        write_json(path, self.to_dict())
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Loads what `save` wrote; runs no code and imports nothing that the file names."""
        data = read_json(Path(path), expected="a config in JSON, as `save` writes it")
        return _from_json(cls, data, source=str(path))

    @classmethod
    def from_args(cls, args: Sequence[str] | None = None) -> Self:
        """Makes the config from command-line arguments (by default `sys.argv`); needs `stoker[cli]`.

        >>> class Training(Config):
        ...     epochs: int = 3
        ...     lr: float = 1e-3
        >>> Training.from_args(["--epochs", "5"])
        Training(epochs=5, lr=0.001)

        Nested fields have dotted flags (`--model.dropout 0.1`), `--help` lists all flags, and `--config file.json`
        uses a saved config in place of the defaults.
        """
        return _parse_args(cls, list(sys.argv[1:] if args is None else args))

    # Those that dataclasses would generate for every class took a tenth of the time to import stoker.
    def __repr__(self) -> str:
        shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _compared_values(self) == _compared_values(other)

    def __hash__(self) -> int:
        return hash(_compared_values(self))


_METHODS = {"from_dict", "to_dict", "replace", "save", "load", "from_args"}


def _make_dataclass(cls: type[Config]) -> None:
    """Finds the fields of a class. Configs are marked as frozen, for tools that look at it (tyro does).

    `dataclasses` compiles methods for a class that it freezes itself, and accepts no other class whose base is marked.
    """
    bases = [base for base in cls.__mro__[1:] if issubclass(base, Config)]
    _mark_frozen(bases, False)
    try:
        dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
        bases.append(cls)
    finally:
        _mark_frozen(bases, True)


def _mark_frozen(classes: Sequence[type[Config]], frozen: bool) -> None:
    for cls in classes:
        cls.__dict__["__dataclass_params__"].frozen = frozen


_mark_frozen([Config], True)


def _check_order_of_defaults(cls: type[Config]) -> None:
    """Raises as `dataclasses` does, if a field without a default comes after one with."""
    seen = False
    for field in dataclasses.fields(cls):
        if field.init and not field.kw_only:
            if seen and not _has_default(field):
                raise TypeError(f"non-default argument {field.name!r} follows default argument")
            seen = seen or _has_default(field)


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _defaults(cls: type[Config], given: Any, *, init: bool = True) -> dict[str, Any]:
    """The defaults of the fields that are not given: of those that the constructor takes, or of the others."""
    missing = [each for each in dataclasses.fields(cls) if each.init is init and each.name not in given]
    made = {each.name: each.default_factory() for each in missing if each.default_factory is not dataclasses.MISSING}
    return made | {each.name: each.default for each in missing if each.default is not dataclasses.MISSING}


def _compared_values(instance: Any) -> tuple[Any, ...]:
    return tuple(getattr(instance, field.name) for field in dataclasses.fields(instance) if field.compare)


def _from_json(cls: type[C], data: Any, *, source: str = "") -> C:
    with report_errors(cls.__name__, source):
        return Converter(json=True).convert(data, cls, "")


def _replace(instance: Any, changes: Mapping[str, Any], path: str) -> Any:
    """A copy of a dataclass with some fields changed, dotted ones inside nested dataclasses."""
    values = field_values(instance)
    nested: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        head, _, rest = name.partition(".")
        if rest:
            nested.setdefault(head, {})[rest] = value
        else:
            values[name] = value
    for head, inner in nested.items():
        inner_path = f"{path}.{head}" if path else head
        if dataclasses.is_dataclass(values.get(head)):
            values[head] = _replace(values[head], inner, inner_path)
        elif head in values:
            text = f"{inner_path} is {show(values[head])}, which has no fields"
            raise Mismatch((f"{inner_path}.{next(iter(inner))}", text))
        else:
            values[head] = None  # `convert_fields` reports the unknown field
    return dataclasses.replace(instance, **Converter(json=False).convert_fields(values, type(instance), path))


def _parse_args(cls: type[C], args: list[str]) -> C:
    """Parses arguments with tyro; `--config FILE` gives the defaults."""
    with explain_missing('from_args needs tyro: pip install "stoker[cli]"'):
        import tyro
    defaults: dict[str, Any] = {}
    if not any(field.name == "config" for field in dataclasses.fields(cls)):
        args, file = _split_config_file(args)
        defaults = {} if file is None else {"default": cls.load(file)}
    doc = (cls.__doc__ or "").strip()
    if doc.startswith(f"{cls.__name__}("):  # the signature that dataclasses use as a docstring
        doc = ""
    description = f"{doc}\n\n--config FILE.json starts from a saved config.".strip()
    return tyro.cli(cls, args=args, description=description, registry=_json_flags(), **defaults)


def _split_config_file(args: list[str]) -> tuple[list[str], str | None]:
    """The arguments without `--config FILE`, and the file."""
    for index, word in enumerate(args):
        if word.startswith("--config="):
            return args[:index] + args[index + 1 :], word.removeprefix("--config=")
        if word == "--config":
            if index + 1 == len(args):
                raise ConfigError("--config: expected a file after it, one that `save` wrote")
            return args[:index] + args[index + 2 :], args[index + 1]
    return args, None


def _json_flags() -> "ConstructorRegistry":
    """Makes a field whose class has `_from_word` (a schedule, which nests others) a single flag that takes JSON."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def _one_word(info: "PrimitiveTypeInfo") -> "PrimitiveConstructorSpec[Any] | None":
        hint: Any = info.type
        members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        if not any(hasattr(member, "_from_word") for member in members):
            return None

        def from_words(words: list[str]) -> Any:
            if len(members) == 1:
                return hint._from_word(words[0])
            with report_errors(type_name(hint)):
                return Converter(json=True).convert(json.loads(words[0]), hint, "")

        def is_instance(value: Any) -> bool:
            try:
                Converter(json=False).convert(value, hint, "")
            except Mismatch:
                return False
            return True

        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="JSON",
            instance_from_str=from_words,
            is_instance=is_instance,
            str_from_instance=lambda value: [json.dumps(to_json(value, hint, ""))],
        )

    return registry
