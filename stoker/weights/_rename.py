"""Maps the names in a file to the names in a model."""

import re
from collections.abc import Callable, Iterable, Mapping

from stoker.errors import InvalidArgument, NoSuchParameter, WrongType, did_you_mean

Rename = Mapping[str, str | None] | Callable[[str], str | None]


def rename_all(names: Iterable[str], rename: Rename | None) -> dict[str, str]:
    """The new name of every name, in order, without those that `rename` drops (`None`).

    A dotted name also renames everything below it, and each `*` of a new name stands for what the `*` of the old name
    matched. The first rule that matches a name wins.

    >>> rename_all(["net.0.gamma", "net.0.beta", "old.w"], {"net.*.gamma": "*.weight", "net": "", "old": None})
    {'net.0.gamma': '0.weight', 'net.0.beta': '0.beta'}
    """
    names = list(names)
    if rename is None:
        return {name: name for name in names}
    if isinstance(rename, Mapping):
        made = _apply_rules(names, rename)
    elif callable(rename):
        made = {name: rename(name) for name in names}
    else:
        raise WrongType(f"rename is a mapping of names or globs, or a function; got {type(rename).__name__}")
    renamed: dict[str, str] = {}
    previous: dict[str, str] = {}
    for name, new in made.items():
        if new is None:
            continue
        if not isinstance(new, str):
            raise WrongType(f"rename returned {new!r} for {name!r}; expected a name, or None to leave it out")
        if new in previous:
            raise InvalidArgument(f"rename gives both {previous[new]!r} and {name!r} the name {new!r}")
        previous[new] = name
        renamed[name] = new
    return renamed


def _apply_rules(names: list[str], rules: Mapping[str, str | None]) -> dict[str, str | None]:
    made: dict[str, str | None] = {}
    for pattern, new in rules.items():
        if not isinstance(pattern, str) or not (new is None or isinstance(new, str)):
            raise WrongType(f"rename maps names to names; got {pattern!r}: {new!r}")
        if new is not None and new.count("*") > pattern.count("*"):
            raise InvalidArgument(f"rename: {new!r} has more '*' than {pattern!r}, so their values are not defined")
        stars = "(.*)".join(re.escape(piece) for piece in pattern.split("*"))
        expression = re.compile(f"(?s:{stars}(\\..*)?)")  # a group per `*`, and one for everything below the name
        matches = {name: match for name in names if (match := expression.fullmatch(name))}
        if not matches:
            words = [".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)]
            raise NoSuchParameter(f"rename: {pattern!r} matches no name in the file{did_you_mean(pattern, words)}")
        for name, match in matches.items():
            made.setdefault(name, None if new is None else _substitute(new, match))
    return {name: made.get(name, name) for name in names}


def _substitute(new: str, match: re.Match[str]) -> str:
    *stars, below = match.groups(default="")
    pieces = new.split("*")
    made = pieces[0] + "".join(star + piece for star, piece in zip(stars, pieces[1:], strict=False)) + below
    return made if new else made.removeprefix(".")
