"""The names in a file, as a model calls them."""

import re
from collections.abc import Callable, Iterable, Mapping

from stoker.errors import InvalidArgument, NoSuchParameter, WrongType, did_you_mean

Rename = Mapping[str, str | None] | Callable[[str], str | None]


def renamed(names: Iterable[str], rename: Rename | None) -> dict[str, str]:
    """The new name of every name, in order; those that `rename` gives up (`None`) are left out.

    A dotted name takes everything below it along, and each `*` of a new name is what that of the old one stood for.
    The first rule that matches a name is the one that counts.

    >>> renamed(["net.0.gamma", "net.0.beta", "old.w"], {"net.*.gamma": "*.weight", "net": "", "old": None})
    {'net.0.gamma': '0.weight', 'net.0.beta': '0.beta'}
    """
    names = list(names)
    if rename is None:
        return {name: name for name in names}
    if isinstance(rename, Mapping):
        made = _by_rules(names, rename)
    elif callable(rename):
        made = {name: rename(name) for name in names}
    else:
        raise WrongType(f"rename is a mapping of names or globs, or a function; got {type(rename).__name__}")
    kept = {name: new for name, new in made.items() if new is not None}
    before: dict[str, str] = {}
    for name, new in kept.items():
        if not isinstance(new, str):
            raise WrongType(f"rename made {new!r} of {name!r}; expected a name, or None to leave it out")
        if new in before:
            raise InvalidArgument(f"rename makes {new!r} of both {before[new]!r} and {name!r}")
        before[new] = name
    return kept


def _by_rules(names: list[str], rules: Mapping[str, str | None]) -> dict[str, str | None]:
    made: dict[str, str | None] = {}
    for pattern, new in rules.items():
        if not isinstance(pattern, str) or not (new is None or isinstance(new, str)):
            raise WrongType(f"rename is names by names; got {pattern!r}: {new!r}")
        if new is not None and new.count("*") > pattern.count("*"):
            raise InvalidArgument(
                f"rename: {new!r} has more '*' than {pattern!r}, so it is not clear what they stand for"
            )
        found = {name: match for name in names if (match := re.fullmatch(_expression(pattern), name))}
        if not found:
            words = [".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)]
            raise NoSuchParameter(f"rename: {pattern!r} matches no name in the file{did_you_mean(pattern, words)}")
        for name, match in found.items():
            made.setdefault(name, None if new is None else _filled(new, match))
    return {name: made.get(name, name) for name in names}


def _expression(pattern: str) -> str:
    """A group for each `*`, and a last one for everything below the name."""
    return f"(?s:{'(.*)'.join(re.escape(piece) for piece in pattern.split('*'))}(\\..*)?)"


def _filled(new: str, match: re.Match[str]) -> str:
    *stars, below = match.groups(default="")
    pieces = new.split("*")
    made = pieces[0] + "".join(star + piece for star, piece in zip(stars, pieces[1:], strict=False)) + below
    return made if new else made.removeprefix(".")
