"""Streams of several ranks: their batches end together."""

from collections.abc import Iterable, Iterator
from typing import Any

from stoker.data import Loader, PaddingBatch
from stoker.distributed import World
from stoker.errors import BadData

_END = object()


def length_of(loader: Any) -> int | None:
    """The batches of an epoch, or None if their number is unknown."""
    try:
        return len(loader)
    except TypeError:
        return None


def stop_streams_together(world: World, loader: Loader, batches: Iterable[Any]) -> Iterable[Any]:
    """The batches. If their number is unknown, ranks ask each other before each one: none is left waiting."""
    if world.size == 1 or length_of(loader) is not None:
        return batches
    return _until_all_end(world, batches) if loader.sharded else _in_lockstep(world, batches)


def _in_lockstep(world: World, batches: Iterable[Any]) -> Iterator[Any]:
    number, iterator = 0, iter(batches)
    while not world.any((batch := next(iterator, _END)) is _END):
        number += 1
        yield batch
    ended = world.all_gather(batch is _END)
    if not all(ended):
        raise BadData(
            f"rank {ended.index(True)}'s stream ended after {number} batches, and rank {ended.index(False)}'s did "
            "not: every rank reads the same stream, and stoker gives each its share of it"
        )


def _until_all_end(world: World, batches: Iterable[Any]) -> Iterator[Any]:
    """The batches of a rank that has its own data; padding after its last one, until every rank has ended."""
    iterator, last = iter(batches), _END
    while world.any((batch := next(iterator, _END)) is not _END):
        if last is _END and world.any(batch is _END):
            raise BadData("the data of a rank is empty, and the data of another is not: every rank needs a part")
        last = last if batch is _END else batch
        yield PaddingBatch(last) if batch is _END else batch
