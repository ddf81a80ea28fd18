"""What an address asks for, read and checked."""

import math
from collections.abc import Callable
from typing import Any

from starlette.datastructures import QueryParams

from stoker.errors import InvalidArgument
from stoker.view.ui._points import Wish

_NAMES = 1000  # curves in one answer
_POINTS = 20_000  # of a curve; a screen has fewer pixels
_TOGETHER = 500_000  # points in one answer


def wish(query: QueryParams) -> Wish:
    """Which points an address asks for; `InvalidArgument` where it makes no sense."""
    names = tuple(dict.fromkeys(query.getlist("name")))
    if not 1 <= len(names) <= _NAMES:
        raise InvalidArgument(f"expected from 1 to {_NAMES} names (?name=train/loss&name=…); got {len(names)}")
    asked = Wish(
        names=names,
        most=_number(query, "most", int, 1000, lowest=2, highest=_POINTS),
        source=_choice(query, "source", ("all", "epochs", "running")),
        by=_choice(query, "by", ("update", "epoch", "time")),
        start=_number(query, "from", float, -math.inf),
        end=_number(query, "to", float, math.inf),
    )
    if len(names) * asked.most > _TOGETHER:
        raise InvalidArgument(
            f"{len(names)} names with most={asked.most}; expected at most {_TOGETHER} points in one answer: "
            "ask for fewer names, or for fewer points of each"
        )
    if asked.start > asked.end:
        raise InvalidArgument(f"from={asked.start} is after to={asked.end}; expected from ≤ to")
    return asked


def ids(query: QueryParams, *, most: int) -> list[str]:
    """The runs that an address names."""
    found = list(dict.fromkeys(query.getlist("id")))
    if len(found) > most:
        raise InvalidArgument(f"expected at most {most} runs; got {len(found)}")
    return found


def _choice(query: QueryParams, key: str, known: tuple[str, ...]) -> Any:
    given = query.get(key) or known[0]
    if given not in known:
        raise InvalidArgument(f"{key}={given[:40]!r}; expected one of {', '.join(known)}")
    return given


def _number(
    query: QueryParams,
    key: str,
    kind: Callable[[str], Any],
    default: float,
    *,
    lowest: float = -math.inf,
    highest: float = math.inf,
) -> Any:
    given = query.get(key)
    if not given:
        return default
    try:
        found = kind(given)
    except ValueError:
        found = math.nan
    if not lowest <= found <= highest:  # nor is NaN
        between = f" from {lowest} to {highest}" if lowest > -math.inf else ""
        raise InvalidArgument(f"{key}={given[:40]!r}; expected a number{between}")
    return found
