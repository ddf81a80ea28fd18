"""What users need in their own hooks: only rank 0, and all at once."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from stoker.distributed._join import joined, world

P = ParamSpec("P")
R = TypeVar("R")


def rank_zero(function: Callable[P, R]) -> Callable[P, R | None]:
    """A function that only rank 0 runs; on the others it gives None.

    >>> @rank_zero
    ... def greet() -> str:
    ...     return "hello"
    >>> greet()
    'hello'
    """

    @functools.wraps(function)
    def only_there(*args: P.args, **kwargs: P.kwargs) -> R | None:
        return function(*args, **kwargs) if world().is_first else None

    return only_there


def barrier() -> None:
    """Waits until every process is here; alone, it does nothing."""
    joined().barrier()
