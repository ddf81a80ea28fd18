"""Batches of a stream on several processes: all of them have a next one, or it is over for all."""

from collections.abc import Iterable, Iterator
from typing import Any

from stoker.data import Loader
from stoker.distributed import World
from stoker.errors import BadData
from stoker.loop._progress import length_of

_OVER = object()


def in_step(loader: Loader, batches: Iterable[Any], world: World) -> Iterable[Any]:
    """The batches; where nobody knows how many there are, all ranks ask each other before each of them.

    A rank whose stream ends before the others' would leave them waiting.
    """
    return batches if world.size == 1 or length_of(loader) is not None else _agreed(batches, world)


def _agreed(batches: Iterable[Any], world: World) -> Iterator[Any]:
    number, walk = 0, iter(batches)
    while not world.any((batch := next(walk, _OVER)) is _OVER):  # waits for the others
        number += 1
        yield batch
    ended = world.all_gather(batch is _OVER)
    if not all(ended):
        raise BadData(
            f"rank {ended.index(True)}'s stream ended after {number} batches, and rank {ended.index(False)}'s goes on: "
            "every rank reads the same stream, and stoker gives each its share of it"
        )
