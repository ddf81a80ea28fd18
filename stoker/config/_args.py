"""A command line for a config, by tyro."""

import dataclasses
import json
import types
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

from stoker.config._dump import dump
from stoker.config._parse import Reading, pick, read, spelled
from stoker.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    from stoker.config._config import Config

C = TypeVar("C", bound="Config")


def parse_args(cls: type[C], args: list[str]) -> C:
    """The config that the words of a command line describe; `--config FILE` gives the defaults."""
    try:
        import tyro
    except ImportError as error:
        raise MissingExtra('from_args needs tyro: pip install "stoker[cli]"') from error
    rest, file = args, None
    if not any(field.name == "config" for field in dataclasses.fields(cls)):
        rest, file = _take_file(args)
    about = (cls.__doc__ or "").strip()
    if about.startswith(f"{cls.__name__}("):  # the signature, which dataclasses write where there is no docstring
        about = ""
    about, rules = f"{about}\n\n--config FILE.json starts from a saved config.".strip(), _rules()
    if file is None:
        return tyro.cli(cls, args=rest, description=about, registry=rules)
    return tyro.cli(cls, args=rest, description=about, registry=rules, default=cls.load(file))


def _take_file(args: list[str]) -> tuple[list[str], str | None]:
    """The command line without `--config FILE`, and the file."""
    for place, word in enumerate(args):
        if word.startswith("--config="):
            return args[:place] + args[place + 1 :], word.removeprefix("--config=")
        if word == "--config":
            if place + 1 == len(args):
                raise ConfigError("--config: expected a file after it, one that `save` wrote")
            return args[:place] + args[place + 2 :], args[place + 1]
    return args, None


def _rules() -> "ConstructorRegistry":
    """Lets a config that has `_from_word` be one word: it holds others of its kind, which flags can't say."""
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

    rules = ConstructorRegistry()

    @rules.primitive_rule
    def _one_word(info: "PrimitiveTypeInfo") -> "PrimitiveConstructorSpec[Any] | None":
        hint: Any = info.type
        several = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
        if not any(hasattr(member, "_from_word") for member in several or (hint,)):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="JSON",
            instance_from_str=lambda words: _fitting(words[0], hint) if several else hint._from_word(words[0]),
            is_instance=lambda value: pick(value, several or (hint,), "", Reading(json=False))[0] >= 0,
            str_from_instance=lambda value: [json.dumps(dump(value, hint, ""))],
        )

    return rules


def _fitting(word: str, hint: Any) -> Any:
    how = Reading(json=True)
    value = read(json.loads(word), hint, "", how)
    how.check(spelled(hint))
    return value
