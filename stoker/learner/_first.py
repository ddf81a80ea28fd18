"""Work that only rank 0 does, with one outcome for all: an error there is raised on every rank."""

import builtins
from collections.abc import Callable
from typing import TypeVar

from stoker import errors
from stoker.distributed import World
from stoker.errors import StokerError

T = TypeVar("T")


def only_by_first(world: World, work: Callable[[], T]) -> T | None:
    """What the work gives, on rank 0; the others wait for it and have None.

    >>> only_by_first(World(), lambda: 3)
    3

    Nothing is begun before every rank is here, so none of them still reads what the work writes.
    """
    if world.size == 1:
        return work()
    world.barrier()
    if not world.is_first:
        if (said := world.broadcast_object(None)) is not None:
            raise _same(*said)
        return None
    try:
        found = work()
    except Exception as error:
        world.broadcast_object((type(error).__name__, str(error)))
        raise
    world.broadcast_object(None)
    return found


def _same(name: str, text: str) -> Exception:
    """Another rank's error, as the same kind where that is one of ours or Python's."""
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(text)
    return StokerError(f"{name}: {text}")
